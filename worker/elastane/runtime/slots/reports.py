"""Converts leases of pushing tasks to the script's tasks, and their results to reports."""

from __future__ import annotations

from concurrent.futures import Future
from queue import SimpleQueue

from elastane.runtime import probes
from elastane.runtime.leased_ahead import HeldTask
from elastane.runtime.slots.prepared import PreparedPs
from elastane.runtime.slots.task import PushTask, TaskEnd
from elastane_proto.v1 import shard_pb2


def task_of(dataset: str, leased: shard_pb2.Task) -> PushTask:
    """Return the task of a lease."""
    indices = range(leased.range.start, leased.range.end)
    lease, generation = leased.lease, leased.map_generation
    return PushTask(leased.epoch, leased.index, indices, leased.attempt, dataset, lease, generation)


def held_task(dataset: str, held: HeldTask) -> PushTask:
    """Return the task of a lease that was taken ahead."""
    attempt, lease, generation = held.attempt, held.lease, held.generation
    return PushTask(held.epoch, held.index, held.indices, attempt, dataset, lease, generation)


def report_of(task: PushTask, end: TaskEnd) -> list[shard_pb2.TaskReport]:
    """Return what is reported of a task: its report, or nothing if it is already FAILED."""
    report = shard_pb2.TaskReport(epoch=task.epoch, index=task.index, attempt=task.attempt)
    if end.kind == "closed":
        return []
    if end.kind == "done":
        report.lives_sum = end.lives_sum
        report.map_generations.extend(end.map_generations)
    elif end.kind == "returned":
        report.returned, report.error = True, end.error
    else:
        report.error, report.non_finite = end.error, True
    return [report]


class PushingTasks:
    """The loop's view of a prepared model. With `ahead`, pulls and pushes run in the background.

    ahead: maximum number of pushes in flight while the script continues. own_seeds: each task starts with
    its own random numbers, so that it can be replayed in another order.
    """

    def __init__(self, prepared: PreparedPs, ahead: int = 0, *, own_seeds: bool = False) -> None:
        self._prepared, self._ahead = prepared, ahead
        self.own_seeds = own_seeds or ahead > 0
        self._on_the_way: dict[Future[TaskEnd], PushTask] = {}
        #: Those that have ended, as they come, and those of them that are not reported yet.
        self._answered: SimpleQueue[Future[TaskEnd]] = SimpleQueue()
        self._ended = set[Future[TaskEnd]]()
        prepared.in_background = ahead > 0
        self._begun = 0

    def begin(self, task: PushTask) -> None:
        """Record that the script gets a task."""
        probes.reached("task", self._begun)
        self._begun += 1
        self._prepared.begin(task)

    def pull_ahead(self, task: PushTask) -> None:
        """Start to pull the weights of a later task."""
        self._prepared.pull_ahead(task)

    def end(self, task: PushTask) -> list[shard_pb2.TaskReport]:
        """Wait for this task's answers, when the script asks for the next task. Raises NotPushedError."""
        return report_of(task, self._prepared.end().result())

    def end_later(self, task: PushTask) -> list[shard_pb2.TaskReport]:
        """End the task; wait while more than `ahead` are in flight. Return reports; raise their errors."""
        end = self._prepared.end()
        self._on_the_way[end] = task
        end.add_done_callback(self._answered.put)
        return self.reports(len(self._on_the_way) - self._ahead)

    def leave(self) -> None:
        """Give back the script's tasks, because it has left the loop."""
        self._prepared.leave()

    def reports(self, at_least: int = 0) -> list[shard_pb2.TaskReport]:
        """Return reports of answered pushes. at_least: number to wait for; -1: all."""
        wanted = len(self._on_the_way) if at_least < 0 else at_least
        while len(self._ended) < wanted or not self._answered.empty():
            self._ended.add(self._answered.get())
        reports = list[shard_pb2.TaskReport]()
        for future in [future for future in self._on_the_way if future in self._ended]:
            self._ended.discard(future)
            reports += report_of(self._on_the_way.pop(future), future.result())
        return reports
