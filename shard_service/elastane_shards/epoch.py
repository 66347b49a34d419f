"""The tasks of one epoch, by state: leased, re-queued, DONE, FAILED, and the cursor behind which all are new.

Every task below the cursor is in exactly one of DOING, re-queued, reopened, DONE and FAILED; the tasks
from the cursor on were never leased and take no memory. This module knows neither time nor settings:
`DynamicQueue` passes deadlines in and decides when a task has failed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from copy import copy
from heapq import nsmallest
from itertools import chain, islice

import msgspec

from elastane_shards.errors import InvariantViolated
from elastane_shards.intervals import IntervalSet
from elastane_shards.tasks import AttemptError, Parts, TaskState


class Held(msgspec.Struct, gc=False):
    """A task that was leased at least once and is not finished.

    worker, attempt, deadline: values of the newest lease. rng: RNG states of the first lease, shared by all
    tasks of one call and never changed. errors: one entry per failed attempt, oldest first.

    Tasks leased for the first time in one call share one object, so only their common deadline may be changed
    in place. A task that is leased again has its own object.
    """

    worker: str
    attempt: int
    deadline: float
    rng: Parts
    errors: tuple[AttemptError, ...] = ()


class EpochTasks:
    """State of one epoch's tasks, by index.

    counter: the first index that was never leased. doing: in order of leasing, which is the order of
    deadlines. requeued: the front of TODO as a stack, its last item is leased next. reopened: were DONE and
    are TODO again, as if never leased. failed: index -> the errors of its attempts.
    """

    __slots__ = ("counter", "doing", "done", "failed", "reopened", "requeued")

    def __init__(self) -> None:
        self.counter = 0
        self.doing: dict[int, Held] = {}
        self.requeued: dict[int, Held] = {}
        self.failed: dict[int, tuple[AttemptError, ...]] = {}
        self.done = IntervalSet()
        self.reopened = IntervalSet()

    @classmethod
    def of_ended(cls, num_tasks: int, failed: dict[int, tuple[AttemptError, ...]]) -> EpochTasks:
        """Return the tasks of an epoch that is over: DONE, except the FAILED ones."""
        tasks = cls()
        tasks.counter, tasks.failed = num_tasks, failed
        tasks.done.add(0, num_tasks)
        for index in failed:
            tasks.done.remove(index, index + 1)
        return tasks

    @property
    def finished(self) -> int:
        """Number of tasks that are DONE or FAILED."""
        return self.done.count + len(self.failed)

    @property
    def has_todo(self) -> bool:
        """True if a task below the cursor is TODO."""
        return bool(self.requeued or self.reopened)

    def take(self, worker: str, deadline: float, rng: Parts, num_tasks: int) -> tuple[int, Held] | None:
        """Lease the next task: a re-queued one first, else a fresh one. None if no task is TODO."""
        return self.take_returned(worker, deadline) or self.take_fresh(worker, deadline, rng, num_tasks)

    def take_returned(
        self, worker: str, deadline: float, among: Callable[[int], bool] | None = None
    ) -> tuple[int, Held] | None:
        """Lease the first re-queued task of those in `among`; None if there is none."""
        index = next((index for index in reversed(self.requeued) if among is None or among(index)), None)
        if index is None:
            return None
        held = self.requeued.pop(index)  # its own: see put_back
        held.worker = worker
        held.attempt += 1
        held.deadline = deadline
        self.doing[index] = held
        return index, held

    def take_fresh(self, worker: str, deadline: float, rng: Parts, num_tasks: int) -> tuple[int, Held] | None:
        """Lease a reopened task, else the one at the cursor; None if there is neither."""
        if self.reopened:
            index = self.reopened.first()
            self.reopened.remove(index, index + 1)
        elif self.counter < num_tasks:
            index = self.counter
            self.counter += 1
        else:
            return None
        held = self.doing[index] = Held(worker, 1, deadline, rng)
        return index, held

    def reopen(self, start: int, end: int) -> None:
        """Make DONE tasks TODO again."""
        self.done.remove(start, end)
        self.reopened.add(start, end)

    def take_run(self, worker: str, deadline: float, rng: Parts, limit: int, num_tasks: int) -> range:
        """Lease up to `limit` never-leased tasks at the cursor; return an empty range if there are none."""
        run = range(self.counter, min(num_tasks, self.counter + limit))
        if run:
            self.doing.update(dict.fromkeys(run, Held(worker, 1, deadline, rng)))
            self.counter = run.stop
        return run

    def held_alike(self, run: range, worker: str, attempt: int) -> bool:
        """True if `worker` holds all tasks of `run` from one run lease, as `attempt`."""
        doing = self.doing
        held = doing.get(run.start)
        return (
            held is not None
            and held.worker == worker
            and held.attempt == attempt
            and all(doing.get(index) is held for index in run)
        )

    def finish_run(self, run: range) -> None:
        """Mark consecutive leased tasks as DONE."""
        for index in run:
            del self.doing[index]
        self.done.add(run.start, run.stop)

    def finish(self, index: int) -> None:
        """Mark a leased or re-queued task as DONE."""
        if self.doing.pop(index, None) is None:
            del self.requeued[index]
        self.done.add(index, index + 1)

    def put_back(self, indices: Iterable[int]) -> None:
        """Return leased tasks to the front of TODO; the first of `indices` is leased next."""
        # A copy, because tasks leased in one call share one Held and this one will get a worker and deadline
        # of its own.
        for index in reversed(list(indices)):
            self.requeued[index] = copy(self.doing.pop(index))

    def park(self, index: int) -> None:
        """Mark a leased task as FAILED, keeping its errors."""
        self.failed[index] = self.doing.pop(index).errors

    def state_of(self, index: int) -> TaskState:
        """State of a task of this epoch."""
        if index in self.doing:
            return TaskState.DOING
        if index >= self.counter or index in self.requeued or index in self.reopened:
            return TaskState.TODO
        return TaskState.FAILED if index in self.failed else TaskState.DONE

    def indices(self, state: TaskState | None, start: int, limit: int, num_tasks: int) -> list[int]:
        """Return up to `limit` indices >= `start`, ascending, of the tasks in `state` (None: any state)."""
        match state:
            case None:
                return list(range(start, min(num_tasks, start + limit)))
            case TaskState.DOING:
                return nsmallest(limit, (index for index in self.doing if index >= start))
            case TaskState.FAILED:
                return nsmallest(limit, (index for index in self.failed if index >= start))
            case TaskState.TODO:
                opened = islice(_members(self.reopened, start), limit)
                found = nsmallest(limit, chain(opened, (i for i in self.requeued if i >= start)))
                first = max(start, self.counter)
                return found + list(range(first, min(num_tasks, first + limit - len(found))))
            case TaskState.DONE:
                return list(islice(_members(self.done, start), limit))

    def unfinished(self, start: int, limit: int) -> list[int]:
        """Return up to `limit` indices >= `start`, ascending, of tasks below the cursor that are not DONE."""
        groups = chain(self.doing, self.requeued, self.failed)
        opened = islice(_members(self.reopened, start), limit)
        return nsmallest(limit, chain(opened, (index for index in groups if index >= start)))

    def validate(self, num_tasks: int, max_attempts: int) -> None:
        """Check that each task is in exactly one state and the orders hold. Raises InvariantViolated."""
        self.done.validate()
        self.reopened.validate()
        groups = (self.doing, self.requeued, self.failed, self.reopened)
        known = [index for group in groups for index in group]
        if not 0 <= self.counter <= num_tasks:
            raise InvariantViolated("the cursor is outside the epoch", counter=self.counter, tasks=num_tasks)
        if len(set(known)) != len(known) or any(index in self.done for index in known):
            raise InvariantViolated("a task is in two states", known=sorted(known))
        if len(known) + self.done.count != self.counter:
            raise InvariantViolated(
                "tasks below the cursor are in no state",
                counter=self.counter,
                known=len(known),
                done=self.done.count,
            )
        if any(not 0 <= index < self.counter for index in known) or any(self.done.intervals(self.counter)):
            raise InvariantViolated("a task beyond the cursor has a state", counter=self.counter)
        deadlines = [held.deadline for held in self.doing.values()]
        if deadlines != sorted(deadlines):
            raise InvariantViolated("leases are not in the order of their deadlines")
        for group in (self.doing, self.requeued):
            for index, held in group.items():
                if held.attempt < 1 or len(held.errors) >= max_attempts or len(held.errors) > held.attempt:
                    raise InvariantViolated("a task has too many attempts for its state", index=index)
        for index, errors in self.failed.items():
            if len(errors) != max_attempts:
                raise InvariantViolated("a task is FAILED for another reason than its attempts", index=index)


def _members(indices: IntervalSet, start: int) -> Iterator[int]:
    for first, end in indices.intervals(start):
        yield from range(first, end)
