"""Replay of spot traces: costs by hand, deadlines that are never missed, and what bad input does."""

from __future__ import annotations

import itertools
import json
import math
import random

import pytest

from elastane_scheduler.autoscaling.spot_deadline import UniformProgress, WideSpot
from elastane_scheduler.errors import InvalidSettings, InvalidTrace
from elastane_scheduler.simulation.availability import (
    Availability,
    generate_availability,
    read_availability,
)
from elastane_scheduler.simulation.spot_replay import SpotJob, replay, replay_all

SMALL = SpotJob(ests=4, workers=4, work_hours=1.0, spot_price=0.25, cold_start_seconds=60.0)
"""3,600 steps of a second on four workers."""


def steady(nodes: int, ticks: int = 400) -> Availability:
    return Availability(60.0, (nodes,) * ticks)


def test_spot_all_the_time() -> None:
    outcome = replay(steady(4), 0, SMALL, 7200.0, WideSpot())
    assert outcome.seconds == pytest.approx(3660) and not outcome.late
    assert outcome.cost == pytest.approx(0.25 * 3660 / 3600)
    assert (outcome.on_demand_hours, outcome.lost) == (0, 0)


def test_no_spot_at_all_waits_for_the_last_moment() -> None:
    outcome = replay(steady(0), 0, SMALL, 7200.0, WideSpot())
    # The last tick at which more than 2 cold starts and a poll are left is 3,360 s; the next decides.
    assert outcome.seconds == pytest.approx(3420 + 60 + 3600)
    assert outcome.cost == pytest.approx(3660 / 3600) and outcome.spot_hours == 0


def test_workers_that_are_lost_slow_the_job_and_no_more() -> None:
    trace = Availability(60.0, (*[4] * 11, *[2] * 1000))
    outcome = replay(trace, 0, SMALL, 36_000.0, WideSpot())
    assert outcome.lost == 2
    assert outcome.seconds == pytest.approx(660 + 2 * 3000)  # 600 steps at 1 s, the others at 2 s
    assert outcome.cost == pytest.approx(0.25 * (4 * 660 + 2 * 6000) / (4 * 3600))


def test_surplus_machines_stay_until_the_others_have_joined() -> None:
    # Uniform progress goes on demand at once (nothing is offered), and to spot when it comes.
    trace = Availability(60.0, (*[0] * 3, *[4] * 400))
    outcome = replay(trace, 0, SMALL, 7200.0, UniformProgress(4))
    # On demand from 60 s, ready at 120 s; spot from 180 s, ready at 240 s: it trains all the time after 120.
    assert outcome.seconds == pytest.approx(3600 + 120)
    assert outcome.on_demand_hours == pytest.approx(4 * 180 / 3600)


@pytest.mark.parametrize("seed", range(40))
def test_no_job_is_late_whatever_spot_does(seed: int) -> None:
    rng = random.Random(seed)
    ests = rng.choice((1, 4, 7, 16, 24))
    gap = rng.choice((30.0, 300.0, 900.0))
    cold = rng.choice((0.0, 20.0, 360.0, 1200.0))
    most = rng.randint(1, ests)
    job = SpotJob(ests, ests, rng.uniform(1, 6), 0.33, cold, most, rng.choice((0.0, 0.3)))
    shape = rng.choice(("generated", "flapping", "treacherous"))
    ticks = 3000
    nodes = {
        "generated": generate_availability(ests + 2, ticks, seed, gap).nodes,
        "flapping": tuple(itertools.islice(itertools.cycle((ests, 0)), ticks)),
        "treacherous": tuple(rng.choice((0, 1, ests - 1, ests)) for _ in range(ticks)),
    }[shape]
    alone = job.steps * job.step_seconds(most)
    deadline = alone * rng.uniform(1.0, 2.0) + 2 * cold + gap
    outcome = replay(Availability(gap, nodes), 0, job, deadline, WideSpot())
    assert not outcome.late, outcome


@pytest.mark.parametrize("deadline", [1.1, 1.25, 1.5])
def test_wide_spot_costs_less_than_uniform_progress(deadline: float) -> None:
    traces = [generate_availability(16, 2000, seed) for seed in range(3)]
    wide = replay_all(traces, SpotJob(), deadline, WideSpot())
    uniform = replay_all(traces, SpotJob(), deadline, UniformProgress(8))
    assert len(wide.outcomes) == len(uniform.outcomes) >= 30
    assert wide.late == uniform.late == 0 and wide.latest_seconds <= 0
    assert wide.cost < 0.95 * uniform.cost
    assert 0.33 < wide.cost < 1


def test_the_same_input_gives_the_same_costs() -> None:
    traces = [generate_availability(16, 700, 5)]
    assert replay_all(traces, SpotJob(), 1.5, WideSpot()) == replay_all(traces, SpotJob(), 1.5, WideSpot())
    assert generate_availability(16, 700, 6) != traces[0]


def test_a_job_without_on_demand_machines_may_never_end() -> None:
    job = SpotJob(4, 4, 1.0, 0.25, 60.0, on_demand_max=0)
    outcome = replay(steady(0), 0, job, 7200.0, WideSpot())
    assert outcome.seconds is None and outcome.late and outcome.cost == 0


def test_deadlines_that_are_out_of_reach_end_as_soon_as_possible() -> None:
    outcome = replay(steady(0), 0, SMALL, 60.0, WideSpot())
    assert outcome.late and outcome.seconds == pytest.approx(3660)


@pytest.mark.parametrize(
    "changes",
    [
        {"spot_price": math.nan},
        {"spot_price": -0.1},
        {"spot_price": math.inf},
        {"work_hours": 0.0},
        {"work_hours": math.nan},
        {"cold_start_seconds": -1.0},
        {"ests": 0},
        {"workers": 0},
        {"workers": 17},
        {"on_demand_max": -1},
        {"exchange_seconds": math.nan},
    ],
    ids=str,
)
def test_jobs_out_of_range_are_refused(changes: dict[str, float]) -> None:
    with pytest.raises(InvalidSettings):
        SpotJob(**changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(("deadline", "every"), [(0.0, 12.0), (math.nan, 12.0), (1.1, 0.0), (1.1, math.nan)])
def test_deadlines_and_starts_out_of_range_are_refused(deadline: float, every: float) -> None:
    with pytest.raises(InvalidSettings):
        replay_all([steady(4)], SMALL, deadline, WideSpot(), every)


def test_a_trace_that_is_too_short_is_refused() -> None:
    with pytest.raises(InvalidSettings, match="no trace is as long"):
        replay_all([steady(4, 10)], SMALL, 1.5, WideSpot())


def test_public_traces_are_read() -> None:
    text = json.dumps({"metadata": {"gap_seconds": 300}, "data": [0, 16, 3]})
    assert read_availability(text) == Availability(300.0, (0, 16, 3))
    assert [read_availability(text).at_tick(tick) for tick in (-1, 1, 3)] == [0, 16, 0]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"metadata": {"gap_seconds": 0}, "data": [1]}',
        '{"metadata": {"gap_seconds": 300}, "data": []}',
        '{"metadata": {"gap_seconds": 300}, "data": [-1]}',
        '{"metadata": {"gap_seconds": 300}, "data": [1e999]}',
        '{"metadata": {"gap_seconds": NaN}, "data": [1]}',
        '{"metadata": {"gap_seconds": 300}, "data": [99999999]}',
        "[" * 100_000,
    ],
    ids=lambda text: text[:50],
)
def test_other_files_are_refused(text: str) -> None:
    with pytest.raises(InvalidTrace):
        read_availability(text)


@pytest.mark.parametrize(
    ("nodes", "ticks", "gap"), [(-1, 5, 1.0), (4, 0, 1.0), (4, 5, 0.0), (4, 5, math.nan)]
)
def test_generated_traces_out_of_range_are_refused(nodes: int, ticks: int, gap: float) -> None:
    with pytest.raises(InvalidSettings):
        generate_availability(nodes, ticks, 1, gap)
