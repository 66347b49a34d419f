"""Plans of a running job: the rungs that pay, by what its workers have measured."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastane_scheduler.errors import InvalidSettings
from elastane_scheduler.job_plan import WorkerSpeed, job_plan
from elastane_scheduler.plan import Shape


def speed(ests: int, workers: int, **changes: object) -> WorkerSpeed:
    """A worker that needs 0.1 s for an EST, in a ring whose steps have 0.05 s beside that."""
    fields = {
        "device_type": "a100",
        "ests": ests,
        "generation": 3,
        "ring_workers": workers,
        "est_seconds": 0.1,
        "est_spread_seconds": 0.01,
        "est_steps": 31,
        "ring_step_seconds": 0.1 * ests + 0.05,
        "ring_steps": 9,
    }
    return WorkerSpeed(**(fields | changes))  # type: ignore[arg-type]


def test_rungs_are_the_numbers_that_make_a_step_shorter() -> None:
    plan = job_plan(16, [speed(2, 8)] * 8, steps_left=1000, worker_hour=3.6)
    assert [rung.workers for rung in plan.rungs] == [1, 2, 3, 4, 6, 8, 16]
    assert plan.rest_seconds == pytest.approx(0.05)
    assert plan.workers == 8
    now = plan.rung_of(8)
    assert now is not None
    assert now.step_seconds == pytest.approx(plan.step_seconds)
    assert now.finish_seconds == pytest.approx(250)
    assert now.cost == pytest.approx(8 * 3.6 * 250 / 3600)
    # Sixteen ESTs: nine workers are as fast as eight.
    assert plan.rung_of(9) == now
    assert plan.rung_of(16).step_seconds == pytest.approx(0.15)  # type: ignore[union-attr]


@given(ests=st.integers(1, 300), seconds=st.floats(1e-4, 1e3), rest=st.floats(0, 10))
def test_each_rung_is_faster_than_the_one_before_and_none_is_missing(
    ests: int, seconds: float, rest: float
) -> None:
    alone = speed(ests, 1, est_seconds=seconds, ring_step_seconds=ests * seconds + rest)
    plan = job_plan(ests, [alone])
    assert all(b.step_seconds < a.step_seconds for a, b in pairwise(plan.rungs))
    for workers in range(1, ests + 1):
        rung = plan.rung_of(workers)
        assert rung is not None
        assert rung.ests_most == -(-ests // workers)


@pytest.mark.parametrize("ests", [1, 4])
def test_the_scripts_code_after_each_part_is_run_as_often_as_the_part(ests: int) -> None:
    """A script that sleeps 50 ms after optimizer.step(), beside 3 ms of computing."""
    measured = {"est_seconds": 0.003, "after_est_seconds": 0.05, "ring_step_seconds": ests * 0.053 + 0.01}
    plan = job_plan(8, [speed(ests, 8 // ests, **measured)] * (8 // ests))
    assert plan.rest_seconds == pytest.approx(0.01)
    assert [(rung.workers, pytest.approx(rung.step_seconds)) for rung in plan.rungs] == [
        (1, 0.434),
        (2, 0.222),
        (3, 0.169),
        (4, 0.116),
        (8, 0.063),
    ]


def test_unlike_devices_share_the_scripts_code_too() -> None:
    after = {"after_est_seconds": 0.1, "ring_step_seconds": 0.65}
    slow = speed(2, 2, device_type="t4", est_seconds=0.2, **after)
    plan = job_plan(5, [speed(3, 2, **after), slow])
    assert plan.rest_seconds == pytest.approx(0.05)
    assert plan.rungs[0].step_seconds == pytest.approx(5 * 0.2 + 0.05)
    assert plan.rungs[1].step_seconds == pytest.approx(0.6 + 0.05)


def test_limits_of_the_job_are_kept() -> None:
    plan = job_plan(16, [speed(4, 4)] * 4, workers_min=3, workers_max=8)
    assert [rung.workers for rung in plan.rungs] == [3, 4, 6, 8]
    assert plan.rung_of(2) is None


def test_nothing_is_planned_on_what_was_not_measured() -> None:
    fresh = speed(8, 2, est_seconds=0.0, est_steps=0, ring_step_seconds=0.0, ring_steps=0)
    for speeds in ([], [fresh, fresh]):
        plan = job_plan(16, speeds)
        assert plan.device is None
        assert plan.step_seconds is None
        assert plan.rungs == ()


def test_the_rest_is_of_the_present_ring_and_counts_from_its_slowest_worker() -> None:
    left_behind = speed(16, 1, generation=2, ring_step_seconds=9.0)
    ring = [speed(2, 2, ring_step_seconds=0.5), speed(2, 2, est_seconds=0.2, ring_step_seconds=0.5)]
    plan = job_plan(4, [left_behind, *ring])
    assert plan.workers == 2
    assert plan.step_seconds == pytest.approx(0.5)
    assert plan.rest_seconds == pytest.approx(0.1)


def test_unlike_devices_are_told_apart_and_each_counts() -> None:
    slow = speed(2, 3, device_type="t4", est_seconds=0.2, ring_step_seconds=0.45)
    plan = job_plan(10, [speed(4, 3, ring_step_seconds=0.45), speed(4, 3, ring_step_seconds=0.45), slow])
    assert [(known.device_type, known.est_seconds) for known in plan.devices] == [("a100", 0.1), ("t4", 0.2)]
    assert plan.device == plan.devices[0]  # most are of it
    assert plan.rest_seconds == pytest.approx(0.05)
    now = plan.rung_of(3)
    assert now is not None
    assert (now.workers, now.ests_most) == (3, 4)
    assert now.step_seconds == pytest.approx(0.45)
    assert [rung.workers for rung in plan.rungs][:4] == [1, 2, 3, 4]
    assert plan.rungs[0].step_seconds == pytest.approx(1.05)  # one of the fast ones
    assert plan.rungs[3].step_seconds == pytest.approx(0.35)  # 3 + 3 + 3 and 1


@given(
    ests=st.integers(1, 12),
    fast=st.integers(1, 4),
    slow=st.integers(1, 4),
    seconds=st.sampled_from((0.13, 0.2, 0.55)),
    room=st.integers(1, 12),
)
def test_unlike_devices_reach_the_least_time_that_their_number_allows(
    ests: int, fast: int, slow: int, seconds: float, room: int
) -> None:
    ring = [speed(1, fast + slow, ring_steps=0) for _ in range(fast)]
    ring += [
        speed(1, fast + slow, ring_steps=0, device_type="t4", est_seconds=seconds, ests_max=room)
        for _ in range(slow)
    ]
    plan = job_plan(ests, ring)
    assert all(b.step_seconds < a.step_seconds for a, b in pairwise(plan.rungs))
    for workers in range(1, min(ests, fast + slow) + 1):
        counts = (min(workers, fast), max(0, workers - fast))
        shape = Shape(ests, (0.1, seconds), (ests, room))
        level = shape.level(counts)
        assert level is not None
        expected = shape.levels[level][0]
        rung = plan.rung_of(workers)
        assert rung is not None
        assert rung.step_seconds == pytest.approx(expected)


def test_ests_beyond_the_memory_of_a_worker_are_marked() -> None:
    plan = job_plan(8, [speed(4, 2, ests_max=5)] * 2)
    assert [rung.workers for rung in plan.rungs if not rung.fits] == [1]


def test_without_steps_or_a_price_there_is_no_time_left_and_no_cost() -> None:
    plan = job_plan(4, [speed(4, 1)])
    assert all(rung.finish_seconds is None and rung.cost is None for rung in plan.rungs)
    assert job_plan(4, [speed(4, 1)], worker_hour=1.0).rungs[0].cost is None
    assert job_plan(4, [speed(4, 1)], steps_left=0, worker_hour=1.0).rungs[0].cost == 0.0


@pytest.mark.parametrize("price", [-1.0, float("nan"), float("inf")])
def test_a_price_is_an_amount(price: float) -> None:
    with pytest.raises(InvalidSettings):
        job_plan(4, [speed(4, 1)], steps_left=1, worker_hour=price)
