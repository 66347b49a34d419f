"""Which tasks are done again after a slot went back to a snapshot: those DONE that the snapshot has not.

All slots are asked again: those that have a task say *applied before*, so it is applied where it is missing
and nowhere twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from elastane_shards.intervals import IntervalSet
from elastane_slots.applied import AppliedSet
from elastane_slots.tasks import TaskName, TaskRun


class DoneTasks(msgspec.Struct, frozen=True):
    """The DONE tasks of a data set, as its queue knows them.

    epoch: the current one; done: of it. tasks: number of tasks of each epoch before. not_done: of these, the
    tasks that are FAILED, or were opened again and are not DONE yet, by epoch.
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
    """Yield the tasks that are DONE and not applied, ascending: to be opened again after a restore.

    At a checkpoint there are none.
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
    """Yield the tasks of the data set that are applied and not DONE, ascending.

    Those in flight, and what FAILED tasks have left in the slot.
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
    """Return the next epoch that has to be looked at: those before it are DONE and applied as a whole."""
    end = min([done.epoch, *(number for number in done.not_done if number >= epoch)])
    return max(epoch, min(end, applied.even_until(done.dataset, epoch, done.tasks)))
