"""Leases of tasks that push, as the script gets them, and their reports."""

from __future__ import annotations

from concurrent.futures import FIRST_COMPLETED, Future, wait

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
    """Return the task of a lease that was held."""
    attempt, lease, generation = held.attempt, held.lease, held.generation
    return PushTask(held.epoch, held.index, held.indices, attempt, dataset, lease, generation)


def report_of(task: PushTask, end: TaskEnd) -> list[shard_pb2.TaskReport]:
    """Return what is reported of a task: nothing if it is FAILED already."""
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
    """What the loop over tasks needs of a prepared model. pulls, pushes: in the background, with `ahead`.

    ahead: most pushes that may be on their way while the script works on. own_seeds: each task begins with
    random numbers of its own, so that it can be computed again in another order.
    """

    def __init__(self, prepared: PreparedPs, ahead: int = 0, *, own_seeds: bool = False) -> None:
        self._prepared, self._ahead = prepared, ahead
        self.own_seeds = own_seeds or ahead > 0
        self._on_the_way: dict[Future[TaskEnd], PushTask] = {}
        prepared.in_background = ahead > 0
        self._begun = 0

    def begin(self, task: PushTask) -> None:
        """The script gets a task."""
        probes.reached("task", self._begun)
        self._begun += 1
        self._prepared.begin(task)

    def pull_ahead(self, task: PushTask) -> None:
        """Begin to pull what a later task needs."""
        self._prepared.pull_ahead(task)

    def end(self, task: PushTask) -> list[shard_pb2.TaskReport]:
        """The script asks for the next task: wait for this one's answers. Raises NotPushedError."""
        return report_of(task, self._prepared.end().result())

    def end_later(self, task: PushTask) -> list[shard_pb2.TaskReport]:
        """As `end`, but return reports of the tasks that have their answers. Raises their errors."""
        self._on_the_way[self._prepared.end()] = task
        return self.reports(len(self._on_the_way) - self._ahead)

    def leave(self) -> None:
        """The script has left the loop: its tasks are given back."""
        self._prepared.leave()

    def reports(self, at_least: int = 0) -> list[shard_pb2.TaskReport]:
        """Return reports of pushes that were answered; waits until `at_least` were, -1: all."""
        wanted = len(self._on_the_way) if at_least < 0 else at_least
        ended = {future for future in self._on_the_way if future.done()}
        while len(ended) < wanted:
            ended |= wait(set(self._on_the_way) - ended, return_when=FIRST_COMPLETED).done
        return [
            report
            for future in list(self._on_the_way)
            if future in ended
            for report in report_of(self._on_the_way.pop(future), future.result())
        ]
