"""Leases of tasks that push, as the script gets them, and their reports."""

from __future__ import annotations

from elastane.runtime.slots.prepared import PreparedPs
from elastane.runtime.slots.task import PushTask, TaskEnd
from elastane_proto.v1 import shard_pb2


def task_of(dataset: str, leased: shard_pb2.Task) -> PushTask:
    """Return the task of a lease."""
    return PushTask(
        leased.epoch,
        leased.index,
        range(leased.range.start, leased.range.end),
        leased.attempt,
        dataset,
        leased.lease,
        leased.map_generation,
    )


def report_of(task: PushTask, end: TaskEnd) -> list[shard_pb2.TaskReport]:
    """Return what is reported of a task: nothing if it is FAILED already."""
    report = shard_pb2.TaskReport(epoch=task.epoch, index=task.index, attempt=task.attempt)
    if end.kind == "closed":
        return []
    if end.kind == "done":
        report.lives_sum = end.lives_sum
    elif end.kind == "returned":
        report.returned, report.error = True, end.error
    else:
        report.error, report.non_finite = end.error, True
    return [report]


class PushingTasks:
    """What the loop over tasks needs of a prepared model."""

    def __init__(self, prepared: PreparedPs) -> None:
        self._prepared = prepared

    def begin(self, dataset: str, leased: shard_pb2.Task) -> PushTask:
        """The script gets a task."""
        task = task_of(dataset, leased)
        self._prepared.begin(task)
        return task

    def end(self, task: PushTask) -> list[shard_pb2.TaskReport]:
        """The script asks for the next task. Raises NotPushedError."""
        return report_of(task, self._prepared.end())
