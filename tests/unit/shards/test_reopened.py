"""Tasks that are done again: their order, their count, and what is stored of them."""

from __future__ import annotations

import msgspec
import pytest

from elastane_shards.dynamic import DynamicQueue
from elastane_shards.errors import InvalidRequest
from elastane_shards.settings import QueueSettings
from elastane_shards.snapshot import PUSHES_VERSION
from elastane_shards.tasks import Outcome, QueueStatus, TaskState


def queue(**settings: object) -> DynamicQueue:
    return DynamicQueue(QueueSettings(task_size=10, size=60, **settings))  # type: ignore[arg-type]


def run_through(queue: DynamicQueue, count: int) -> None:
    for _ in range(count):
        [lease] = queue.lease("w", 1, 0.0)
        assert queue.report("w", lease.epoch, lease.index, lease.attempt, "", 1.0) is Outcome.ACCEPTED


def test_returned_tasks_come_first_then_those_opened_again_then_new_ones() -> None:
    tasks = queue(epochs=3, max_attempts=9)
    run_through(tasks, 6 + 3)
    held = tasks.lease("w", 1, 0.0)[0]
    assert (held.epoch, held.index) == (1, 3)
    assert tasks.reopen([(0, 4, 6), (1, 1, 2)]) == 3
    tasks.give_back("w", 1, 3, 1, "a slot went back", 1.0)
    assert [(one.epoch, one.index, one.attempt) for one in tasks.lease("w", 6, 2.0)] == [
        (1, 3, 2),
        (0, 4, 1),
        (0, 5, 1),
        (1, 1, 1),
        (1, 4, 1),
        (1, 5, 1),
    ]


def test_fresh_tasks_are_limited_and_returned_ones_are_not() -> None:
    tasks = queue()
    tasks.lease("w", 2, 0.0)
    tasks.abandon("w", 1.0, counts=False)
    assert [one.index for one in tasks.lease("w", 6, 2.0, fresh_max=0)] == [0, 1]
    assert tasks.lease("w", 6, 2.0, fresh_max=0) == []
    assert [one.index for one in tasks.lease("w", 6, 2.0, fresh_max=2)] == [2, 3]


def test_a_given_back_task_has_no_failed_attempt() -> None:
    tasks = queue(max_attempts=1)
    for attempt in range(1, 6):
        lease = tasks.lease("w", 1, 0.0)[0]
        assert (lease.index, lease.attempt) == (0, attempt)
        assert tasks.give_back("v", 0, 0, attempt, "not its own", 1.0) is Outcome.STALE
        assert tasks.give_back("w", 0, 0, attempt, "a slot went back", 1.0) is Outcome.ACCEPTED
        assert tasks.give_back("w", 0, 0, attempt, "a slot went back", 1.0) is Outcome.STALE
    with pytest.raises(InvalidRequest):
        tasks.give_back("w", 0, 99, 1, "", 1.0)


def test_an_epoch_comes_back_with_its_failed_tasks_and_leaves_again() -> None:
    tasks = queue(epochs=2, max_attempts=1)
    for lease in tasks.lease("w", 6, 0.0):
        tasks.report("w", 0, lease.index, 1, "bad" if lease.index == 2 else "", 1.0)
    run_through(tasks, 6)
    assert tasks.complete
    with pytest.raises(InvalidRequest):
        tasks.reopen([(0, 1, 3)])
    assert tasks.reopen([(0, 3, 4), (1, 0, 1)]) == 2
    assert not tasks.complete and tasks.status(2.0) is QueueStatus.HAS_TODO and tasks.failed == 1
    assert [(one.epoch, one.index, one.state) for one in tasks.list_tasks(limit=3)] == [
        (0, 2, TaskState.FAILED),
        (0, 3, TaskState.TODO),
        (1, 0, TaskState.TODO),
    ]
    progress = tasks.progress(2.0)
    assert (progress.todo, progress.samples_done, progress.reopened) == (2, 11 * 10 - 20, 2)
    tasks = DynamicQueue.restore(tasks.snapshot())
    first, second = tasks.lease("w", 2, 2.0)
    assert (first.epoch, first.index, second.epoch, second.index) == (0, 3, 1, 0)
    assert tasks.status(3.0) is QueueStatus.WAIT
    # Last, the epoch that came back: until then nothing is complete.
    tasks.report("w", 1, 0, 1, "", 3.0)
    assert not tasks.complete
    tasks.report("w", 0, 3, 1, "", 3.0)
    assert tasks.complete and tasks.failed == 1 and tasks.progress(3.0).samples_done == 110
    assert [(tasks.times_reopened(0, 3), tasks.times_reopened(0, 2))] == [(1, 0)]


def test_a_report_of_a_task_that_waits_to_be_done_again_counts_no_more() -> None:
    tasks = queue()
    run_through(tasks, 2)
    tasks.reopen([(0, 0, 1)])
    assert tasks.report("w", 0, 0, 1, "", 2.0) is Outcome.STALE
    assert tasks.list_tasks(TaskState.TODO, limit=1)[0].index == 0


def test_how_often_a_task_was_opened_again_takes_no_place_for_each() -> None:
    tasks = DynamicQueue(QueueSettings(task_size=1, size=100_000))
    for _ in range(3):
        for lease in tasks.lease("w", 100_000, 0.0, runs=True):
            tasks.report_run("w", 0, lease.index, lease.count, 1, 1.0)
        while lease_again := tasks.lease("w", 1000, 0.0, fresh_max=1000):
            for one in lease_again:
                tasks.report("w", 0, one.index, one.attempt, "", 1.0)
        tasks.reopen([(0, 0, 50_000)])
    assert tasks.times_reopened(0, 49_999) == 3 and tasks.times_reopened(0, 50_000) == 0
    assert len(tasks.snapshot()) < 1000


def test_a_queue_that_pushes_is_not_read_by_a_program_that_does_not_know_of_it() -> None:
    plain, pushes = queue(), queue(pushes=True)
    assert msgspec.msgpack.decode(plain.snapshot())["version"] == 2
    assert msgspec.msgpack.decode(pushes.snapshot())["version"] == PUSHES_VERSION == 3
    assert DynamicQueue.restore(pushes.snapshot()).settings.pushes
