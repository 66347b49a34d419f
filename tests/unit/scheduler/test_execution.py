"""How changes are charged: starts, stalls, restores, make-before-break."""

from __future__ import annotations

import itertools
import math
import random

import pytest

from elastane_scheduler.costs import Costs, parse_costs
from elastane_scheduler.errors import InvalidSettings
from elastane_scheduler.execution import change, finish_with
from elastane_scheduler.jobs import Job, JobState, arrived
from elastane_scheduler.plan import Shape

COSTS = Costs(start_seconds=10, stall_seconds=1, restore_seconds=5)


def job(steps: float = 100, ests: int = 4, **options: object) -> JobState:
    shape = Shape(ests, (1.0, 2.0), **options)  # type: ignore[arg-type]
    return arrived(Job("a", shape, steps, 0.0, (ests, 0)))


def test_a_first_start_takes_the_start_alone() -> None:
    state = job()
    change(state, (4, 0), 0.0, COSTS)
    assert state.finish_seconds == 110
    assert state.remaining_at(10) == 100
    assert state.remaining_at(60) == 50


def test_growth_trains_on_until_newcomers_are_ready() -> None:
    state = job()
    change(state, (2, 0), 0.0, COSTS)  # 2 s a step from 10 s on
    change(state, (4, 0), 20.0, COSTS)
    assert state.remaining_at(30) == 90  # not held up
    assert state.remaining_at(31) == 90  # the stall
    assert state.finish_seconds == 121


def test_shrinking_stalls() -> None:
    state = job()
    change(state, (4, 0), 0.0, COSTS)
    change(state, (2, 0), 20.0, COSTS)
    assert state.remaining_at(21) == 90
    assert state.finish_seconds == 21 + 180


def test_a_job_that_keeps_nothing_restores() -> None:
    state = job()
    change(state, (4, 0), 0.0, COSTS)
    change(state, (0, 4), 20.0, COSTS)
    assert state.finish_seconds == 20 + 15 + 90 * 2
    change(state, (0, 0), 50.0, COSTS)
    assert state.finish_seconds == math.inf
    assert state.remaining_at(1e6) == pytest.approx(82.5)
    change(state, (4, 0), 100.0, COSTS)
    assert state.finish_seconds == pytest.approx(115 + 82.5)


def test_nothing_is_restored_that_never_trained() -> None:
    state = job()
    change(state, (4, 0), 0.0, COSTS)
    change(state, (0, 0), 5.0, COSTS)
    change(state, (4, 0), 5.0, COSTS)
    assert state.finish_seconds == 115


def test_newcomers_that_are_starting_do_not_start_anew() -> None:
    state = job()
    change(state, (2, 0), 0.0, COSTS)
    change(state, (4, 0), 8.0, COSTS)
    # Two are ready at 10, the others at 18, with a stall.
    assert state.remaining_at(18) == 96
    assert state.finish_seconds == 19 + 96


def test_a_plan_costs_what_the_change_then_costs() -> None:
    rng = random.Random(5)
    for _ in range(500):
        state, now = job(ests=rng.randint(1, 6)), 0.0
        done = 0.0
        for _ in range(6):
            devices = (rng.randint(0, 3), rng.randint(0, 3))
            planned = finish_with(state, devices, now, COSTS)
            left = state.remaining_at(now)
            change(state, devices, now, COSTS)
            assert state.finish_seconds == planned
            assert state.remaining_at(now) == pytest.approx(left)
            assert left <= 100 - done + 1e-9  # progress is never lost
            done = 100 - left
            times = [now + x for x in (0, 0.5, 1, 5, 9, 12, 30)]
            lefts = [state.remaining_at(t) for t in times]
            assert all(later <= sooner + 1e-9 for sooner, later in itertools.pairwise(lefts))
            if state.finish_seconds < math.inf:
                assert state.remaining_at(state.finish_seconds) == pytest.approx(0, abs=1e-6)
                now = min(state.finish_seconds, now + rng.uniform(0, 15))
            else:
                now += rng.uniform(0, 15)
            if state.remaining_at(now) <= 0:
                break


def test_service_is_device_seconds() -> None:
    state = job()
    change(state, (2, 0), 0.0, COSTS)
    change(state, (2, 1), 10.0, COSTS)
    assert state.service_at(20.0) == 50


def test_a_job_whose_types_may_not_mix_stays_on_its_type() -> None:
    state = job(mixes=False)
    change(state, (2, 0), 0.0, COSTS)
    assert state.shape.usable == (0,)


def test_costs_are_read() -> None:
    assert parse_costs("2,0.5,1") == parse_costs("restore=1, start=2,stall=0.5") == Costs(2, 0.5, 1)


@pytest.mark.parametrize(
    "text", ["", "1,2", "1,2,3,4", "a,1,1", "nan,1,1", "-1,0,0", "stop=1,2,3", "1,start=1,1", "inf,0,0"]
)
def test_costs_that_are_refused(text: str) -> None:
    with pytest.raises(InvalidSettings):
        parse_costs(text)
