"""Reopened tasks: DONE tasks that must be done again because their results were lost.

Those of the current epoch are in `EpochTasks.reopened`; those of earlier epochs are here, each epoch with
all its tasks, until they are finished again. The number of times that tasks were reopened is stored as one
set of tasks for each time, which takes few bytes for any number of tasks.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator

from elastane_shards.epoch import EpochTasks
from elastane_shards.errors import InvariantViolated
from elastane_shards.intervals import IntervalSet
from elastane_shards.snapshot import ReopenedSnapshot, tasks_of
from elastane_shards.tasks import AttemptError

Failed = tuple[int, int, tuple[AttemptError, ...]]
"""Epoch, index and errors of a FAILED task."""


class ReopenedTasks:
    """Epochs before the current one that have unfinished tasks again.

    epochs: their tasks, ascending by epoch. count: number of tasks reopened since the beginning.
    """

    __slots__ = ("_times", "count", "epochs")

    def __init__(self) -> None:
        self.epochs: dict[int, EpochTasks] = {}
        self.count = 0
        self._times: dict[int, list[IntervalSet]] = {}

    def bring_back(self, epoch: int, num_tasks: int, failed: list[Failed]) -> EpochTasks:
        """Restore the tasks of an epoch that is over; its FAILED ones are removed from `failed`."""
        if epoch not in self.epochs:
            mine = {index: errors for number, index, errors in failed if number == epoch}
            failed[:] = [one for one in failed if one[0] != epoch]
            self.epochs[epoch] = EpochTasks.of_ended(num_tasks, mine)
            self.epochs = dict(sorted(self.epochs.items()))
        return self.epochs[epoch]

    def put_away(self, num_tasks: int, failed: list[Failed]) -> None:
        """Remove the epochs that are finished again; their FAILED tasks go back to `failed`."""
        for epoch in [one for one, tasks in self.epochs.items() if tasks.finished == num_tasks]:
            for index, errors in self.epochs.pop(epoch).failed.items():
                insort(failed, (epoch, index, errors), key=lambda one: one[:2])

    def counted(self, epoch: int, start: int, end: int) -> None:
        """Count one more reopening of tasks [start, end)."""
        self.count += end - start
        levels = self._times.setdefault(epoch, [])
        parts = [(start, end)]
        for level in levels:
            again = [part for run in parts for part in _common(level, *run)]
            for run in parts:
                level.add(*run)
            parts = again
        if parts:
            levels.append(IntervalSet(parts))

    def times(self, epoch: int, index: int) -> int:
        """Number of times that a task was reopened."""
        return sum(index in level for level in self._times.get(epoch, ()))

    def validate(self, epoch: int, num_tasks: int, max_attempts: int) -> None:
        """Raise InvariantViolated if an epoch before `epoch` contradicts itself, or is finished."""
        if list(self.epochs) != sorted(self.epochs) or any(not 0 <= one < epoch for one in self.epochs):
            raise InvariantViolated("epochs that came back are out of order", epochs=list(self.epochs))
        for number, tasks in self.epochs.items():
            tasks.validate(num_tasks, max_attempts)
            if tasks.counter != num_tasks or tasks.finished == num_tasks:
                raise InvariantViolated("an epoch came back for nothing", epoch=number)

    def snapshot(self) -> ReopenedSnapshot | None:
        """Serialise; None if nothing was ever reopened."""
        if not self.count:
            return None
        times = {epoch: [level.to_gaps() for level in levels] for epoch, levels in self._times.items()}
        epochs = {epoch: tasks_of(tasks) for epoch, tasks in self.epochs.items()}
        return ReopenedSnapshot(epochs, times, self.count)

    @classmethod
    def restore(cls, stored: ReopenedSnapshot | None) -> ReopenedTasks:
        """Inverse of `snapshot`. Raises InvalidSnapshot, InvariantViolated."""
        tasks = cls()
        if stored is not None:
            tasks.count = stored.count
            tasks.epochs = {epoch: one.restored() for epoch, one in sorted(stored.epochs.items())}
            tasks._times = {
                epoch: [IntervalSet.from_gaps(level) for level in levels]
                for epoch, levels in stored.times.items()
            }
        return tasks


def _common(members: IntervalSet, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield the runs of [start, end) that are in the set."""
    for first, last in members.intervals(start):
        if first >= end:
            return
        yield first, min(last, end)
