"""Tasks that were leased as a run are one entry of a snapshot; snapshots of older masters are read."""

from __future__ import annotations

import msgspec
import pytest

from elastane_shards.dynamic import DynamicQueue
from elastane_shards.errors import InvalidSnapshot
from elastane_shards.settings import QueueSettings
from elastane_shards.tasks import Outcome, TaskState


def queue_with_runs(*, runs: bool = True) -> DynamicQueue:
    queue = DynamicQueue(QueueSettings(task_size=10, size=100_000, epochs=1, lease_seconds=60.0))
    for number in range(8):
        queue.lease(f"w{number % 2}", 500, 100.0 + number, {"rng/python": b"state"}, runs=runs)
    return queue


def seen(queue: DynamicQueue) -> list[object]:
    return [queue.progress(200.0), queue.list_tasks(None, None, 10_000), queue.next_deadline()]


def test_a_snapshot_of_runs_is_small_and_says_all_that_single_tasks_would() -> None:
    queue, singles = queue_with_runs(), queue_with_runs(runs=False)
    assert len(queue.snapshot()) < 1000 < len(singles.snapshot()) // 50
    restored = DynamicQueue.restore(queue.snapshot())
    assert seen(restored) == seen(queue) == seen(singles)
    assert restored.snapshot() == queue.snapshot()


def test_a_run_of_which_some_came_back_or_are_done_is_kept_as_what_is_left_of_it() -> None:
    queue = queue_with_runs()
    for index in (3, 4, 499, 500):
        assert queue.report(f"w{index // 500 % 2}", 0, index, 1, "", 110.0) is Outcome.ACCEPTED
    assert queue.report("w0", 0, 10, 1, "broken", 110.0) is Outcome.ACCEPTED
    assert queue.lease("w9", 1, 111.0)[0].index == 10
    restored = DynamicQueue.restore(queue.snapshot())
    assert seen(restored) == seen(queue)
    assert [task.index for task in restored.list_tasks(TaskState.DONE, None, 10)] == [3, 4, 499, 500]
    assert restored.report_run("w0", 0, 11, 400, 1, 112.0) == [(11, 400, Outcome.ACCEPTED)]


def test_a_run_is_still_one_after_the_restore() -> None:
    restored = DynamicQueue.restore(queue_with_runs().snapshot())
    assert restored.report_run("w1", 0, 500, 500, 1, 110.0) == [(500, 500, Outcome.ACCEPTED)]


def test_a_snapshot_of_version_1_is_read_and_one_of_a_later_version_is_not() -> None:
    queue = queue_with_runs(runs=False)
    state = msgspec.msgpack.decode(queue.snapshot())
    state["version"] = 1
    doing = state["tasks"][2]
    for held in doing:
        assert held.pop() == 1  # the count, which version 1 does not have
    restored = DynamicQueue.restore(msgspec.msgpack.encode(state))
    assert seen(restored) == seen(queue)
    state["version"] = 4
    with pytest.raises(InvalidSnapshot, match="version 4"):
        DynamicQueue.restore(msgspec.msgpack.encode(state))
