"""Rules for elastic jobs by hand: settling, keeping, orders, the virtual fair share, foresight."""

from __future__ import annotations

import math

import pytest

from elastane_scheduler.costs import Costs
from elastane_scheduler.execution import change
from elastane_scheduler.jobs import Job, JobState, arrived
from elastane_scheduler.plan import Shape
from elastane_scheduler.playing import Limits, play
from elastane_scheduler.policies.elastic import by_key, elastic_srtf, keep, keep_and_grow, settle, shortest
from elastane_scheduler.policies.fair_share import FairShare
from elastane_scheduler.policies.foresight import Foresight
from elastane_scheduler.policies.giving import worth
from elastane_scheduler.pool import Pool
from elastane_scheduler.simulation.beliefs import Beliefs
from elastane_scheduler.view import View

COSTS = Costs(start_seconds=10, stall_seconds=1, restore_seconds=5)


def job(name: str, steps: float, ests: int = 4, arrival: float = 0.0, known: bool = True) -> JobState:
    return arrived(Job(name, Shape(ests, (1.0,)), steps, arrival, (ests,), known=known))


def running(name: str, steps: float, devices: int, ests: int = 4, since: float = -100.0) -> JobState:
    state = job(name, steps, ests)
    change(state, (devices,), since, Costs(0, 0, 0))
    return state


def view(*jobs: JobState, devices: int = 4, now: float = 0.0) -> View:
    pool = Pool(("v100",), (devices,))
    return View(now, jobs, pool, pool.counts, COSTS)


def test_growth_that_comes_too_late_is_dropped() -> None:
    ends_soon = running("a", 50 + 5, 2)  # 2 s a step: 5 steps are 10 s, as long as a newcomer's start
    assert ends_soon.remaining_at(0.0) == 5
    assert settle(view(ends_soon), [(4,)]) == [(2,)]
    assert settle(view(running("b", 50 + 50, 2)), [(4,)]) == [(4,)]


def test_devices_that_another_needs_are_not_kept() -> None:
    long, short = running("a", 1000, 4), job("b", 10)
    assert settle(view(long, short), [(0,), (4,)]) == [(0,), (4,)]
    assert settle(view(long, short), [(2,), (0,)]) == [(4,), (0,)]  # nobody wanted the others


def test_the_shortest_takes_what_it_can_use() -> None:
    assert elastic_srtf(view(job("a", 100), job("b", 50), devices=6)) == [(2,), (4,)]
    assert by_key(shortest, 0.5)(view(running("a", 100 + 90, 4), job("b", 50))) == [(4,), (0,)]
    assert by_key(shortest)(view(running("a", 100 + 90, 4), job("b", 50))) == [(0,), (4,)]


def test_keeping_takes_nothing_away() -> None:
    jobs = (running("a", 1000, 2), job("b", 10, ests=1))
    assert keep(view(*jobs)) == [(2,), (1,)]
    assert keep_and_grow(view(*jobs, devices=5)) == [(4,), (1,)]


def test_worth_is_what_may_go_there() -> None:
    bound = arrived(Job("a", Shape(8, (1.0, math.inf)), 1, 0, (8, 0)))
    mixing = arrived(Job("b", Shape(6, (1.0, 2.0)), 1, 0, (6, 0)))
    assert worth([bound, mixing], (8, 4)) == (12 / 8, 2 / 4)


def test_jobs_that_have_not_said_their_steps_are_ranked_by_service() -> None:
    old, new = running("a", 10_000, 4, since=-900.0), job("b", 10_000)
    for state in (old, new):
        object.__setattr__(state.job, "known", False)
    beliefs = Beliefs()
    seen = [beliefs.see(state, 0.0) for state in (old, new)]
    assert seen[0].remaining_at(0.0) == pytest.approx(900)
    assert seen[1].remaining_at(0.0) == pytest.approx(60)
    assert elastic_srtf(view(*seen)) == [(0,), (4,)]


def test_the_fair_share_of_two_equal_jobs() -> None:
    fair = FairShare()
    one, other = job("a", 100), job("b", 100)
    fair.update(view(one, other))
    assert fair.end(one, 0.0) == fair.end(other, 0.0) == 200
    late = job("c", 10, arrival=100.0)
    fair.update(view(one, other, late, now=100.0))
    # Two devices for one of them and one each for the others, from 100 s on.
    assert fair.end(late, 100.0) < fair.end(one, 100.0)
    assert fair.end(other, 100.0) > 200


def test_playing_charges_and_scores() -> None:
    jobs = (job("a", 100), job("b", 50))
    score, ends = play(view(*jobs), [(0,), (4,)], by_key(shortest))
    assert ends == [60 + 10 + 100, 60]
    assert score == sum(ends)
    charged, _ = play(view(*jobs), [(0,), (4,)], by_key(shortest), Limits((100, 100), 2.0))
    assert charged == score + 2 * 70
    assert play(view(*jobs), [(0,), (4,)], by_key(shortest), cutoff=100)[0] == math.inf


def test_foresight_stops_a_long_job_only_where_that_pays() -> None:
    long = running("a", 100 + 400, 4)
    decision = Foresight().decide(view(long, job("b", 30)))
    assert any(decision.allocation[1])
    almost = running("a", 100 + 12, 4)
    decision = Foresight().decide(view(almost, job("b", 30)))
    # 12 s are left: stopping it would cost it 15 s and 30 s of the other.
    assert decision.allocation[0] == (4,)
    assert decision.rejected


def test_foresight_is_not_blinded_by_a_job_that_fits_nowhere() -> None:
    gang = arrived(Job("gang", Shape(8, (1.0,), workers_min=8), 10, 0.0, (8,)))
    long = running("a", 100 + 400, 4)
    decision = Foresight().decide(view(gang, long, job("b", 30)))
    assert decision.allocation[0] == (0,)
    assert any(decision.allocation[2])
