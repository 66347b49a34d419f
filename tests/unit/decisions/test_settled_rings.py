"""Rings of all workers: they are kept without being chosen again, only where the choice would be the same."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from job_driver import JobDriver, settings

from elastane_master.decisions import balance, membership, quarantine
from elastane_master.decisions.state import JobState


def a_ring(**changes: object) -> JobDriver:
    job = JobDriver(settings(4, **changes))
    job.form("a", "b", "c")
    job.steps(0, 3)
    return job


def is_kept(state: JobState) -> bool:
    """Whether the members are kept; if so, the choice must have them in their order, for the same reason."""
    kept = membership.is_settled(state)
    if kept:
        choice = membership.next_members(state, planned=True, by_speed=False)
        assert balance.same_workers(choice.members, state.ring.members)
        assert choice.reason == membership.are_there(len(state.ring.members))
    return kept


@pytest.mark.parametrize("workers", [("a",), ("a", "b"), ("b", "a", "c", "d")])
def test_a_ring_of_all_workers_is_kept(workers: tuple[str, ...]) -> None:
    job = JobDriver(settings(4))
    job.form(*workers)
    job.steps(0, 3)
    assert is_kept(job.state)


def a_worker_joins(job: JobDriver) -> None:
    job.join("d")


def a_worker_drains(job: JobDriver) -> None:
    job.state.workers["b"].draining = True


def a_worker_was_sent_away(job: JobDriver) -> None:
    job.state.workers["b"].drain_sent = True


def a_worker_is_awaited(job: JobDriver) -> None:
    job.state.workers["b"].awaited = True


def a_worker_is_held_back(job: JobDriver) -> None:
    job.state.workers["b"].held_until = quarantine.FOR_GOOD


def a_worker_came_back_at_another_address(job: JobDriver) -> None:
    job.state.workers["b"].store_address = "elsewhere:1"


def a_worker_leases_tasks_now(job: JobDriver) -> None:
    job.state.workers["b"].role = "tasks"


def a_member_was_lost_and_has_joined_again(job: JobDriver) -> None:
    job.state.ring.gone, job.state.ring.order = ("c",), ("a", "b")


def another_worker_took_the_place_of_a_member(job: JobDriver) -> None:
    job.state.workers["d"] = job.state.workers.pop("b")


def the_order_is_another(job: JobDriver) -> None:
    job.state.ring.order = ("b", "a", "c")


def fewer_may_train(job: JobDriver) -> None:
    job.state.settings = msgspec.structs.replace(job.state.settings, workers_max=2)


def more_are_needed(job: JobDriver) -> None:
    job.state.settings = msgspec.structs.replace(job.state.settings, workers_min=4, workers_max=4)


@pytest.mark.parametrize(
    "change",
    [
        a_worker_joins,
        a_worker_drains,
        a_worker_was_sent_away,
        a_worker_is_awaited,
        a_worker_is_held_back,
        a_worker_came_back_at_another_address,
        a_worker_leases_tasks_now,
        a_member_was_lost_and_has_joined_again,
        another_worker_took_the_place_of_a_member,
        the_order_is_another,
        fewer_may_train,
        more_are_needed,
    ],
)
def test_a_ring_is_chosen_anew_once_anything_about_its_workers_has_changed(
    change: Callable[[JobDriver], None],
) -> None:
    job = a_ring(workers_min=2)
    assert is_kept(job.state)
    change(job)
    assert not is_kept(job.state)
