"""Tasks to repeat after a slot went back to a snapshot: DONE tasks that the snapshot lacks.

A repeated task is pushed to all slots: those that have it answer APPLIED_BEFORE, so it is applied only where
it is missing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from elastane_shards.intervals import IntervalSet
from elastane_slots.applied import AppliedSet
from elastane_slots.tasks import TaskName, TaskRun


class DoneTasks(msgspec.Struct, frozen=True):
    """The DONE tasks of a dataset, as its queue knows them.

    epoch, done: the current epoch and its DONE tasks. tasks: number of tasks of each earlier epoch. not_done:
    tasks of earlier epochs that are FAILED, or reopened and not DONE yet, by epoch.
    """

    dataset: str
    epoch: int
    done: IntervalSet
    tasks: int
    not_done: Mapping[int, IntervalSet] = {}

    def __contains__(self, name: TaskName) -> bool:
        if name.dataset != self.dataset or not 0 <= name.epoch <= self.epoch:
            return False
        if name.epoch == self.epoch:
            return name.task in self.done
        except_for = self.not_done.get(name.epoch)
        return 0 <= name.task < self.tasks and (except_for is None or name.task not in except_for)

    def runs(self, epoch: int) -> Iterator[tuple[int, int]]:
        """Yield the DONE tasks of an epoch up to the current one as runs [start, end)."""
        if epoch == self.epoch:
            yield from self.done.intervals()
        elif self.tasks:
            yield from (self.not_done.get(epoch) or IntervalSet()).missing(0, self.tasks)


def missing(done: DoneTasks, applied: AppliedSet) -> Iterator[TaskRun]:
    """Yield the tasks that are DONE but not applied, ascending: to be reopened after a restore.

    A checkpoint has none.
    """
    epoch = 0
    while epoch <= done.epoch:
        if (later := _after_equal_epochs(done, applied, epoch)) > epoch:
            epoch = later
            continue
        tasks = applied.tasks(done.dataset, epoch)
        for start, end in done.runs(epoch):
            yield from (TaskRun(done.dataset, epoch, *run) for run in tasks.missing(start, end))
        epoch += 1


def surplus(done: DoneTasks, applied: AppliedSet) -> Iterator[TaskRun]:
    """Yield the tasks of the dataset that are applied but not DONE, ascending.

    These are in flight, or FAILED after they were applied to this slot.
    """
    epoch, last = 0, applied.newest_epoch(done.dataset)
    while epoch <= last:
        if (later := _after_equal_epochs(done, applied, epoch)) > epoch:
            epoch = later
            continue
        known = IntervalSet(done.runs(epoch)) if epoch <= done.epoch else IntervalSet()
        for start, end in applied.tasks(done.dataset, epoch).intervals():
            yield from (TaskRun(done.dataset, epoch, *run) for run in known.missing(start, end))
        epoch += 1


def _after_equal_epochs(done: DoneTasks, applied: AppliedSet, epoch: int) -> int:
    """Return the next epoch to examine: earlier ones are completely DONE and applied."""
    end = min([done.epoch, *(number for number in done.not_done if number >= epoch)])
    return max(epoch, min(end, applied.even_until(done.dataset, epoch, done.tasks)))
