"""Stale synchronous parallel, enforced by leases: no push waits, and no push of a live lease is refused.

The staleness of a task in a slot is the number of tasks applied to the slot between the task's pull and its
push (Ho et al., "More effective distributed ML via a stale synchronous parallel parameter server", NIPS
2013). If pushes waited, two tasks that have both pulled and have both reached the limit would wait for each
other. So the limit is enforced before the pull, when tasks are leased.

A leased task may be applied at any moment until it is over. It is *outstanding* while it is leased;
*returned* when its lease has ended without success, as its worker may still wake up and push; *closing* when
it is FAILED and some slots have not yet confirmed that they refuse it. After that, and once it is DONE, it is
finished. Pulls follow the lease, so the number of tasks that can be applied between u's pull and push is

    finished since u's lease + others outstanding + returned + closing  <=  limit

Only the first lease of a task raises that sum, and it is granted only if the sum stays within the limit for
every outstanding task and the new one. A returned task can always be leased again, since it is already in the
sum; if the queue leases returned tasks first, there is no deadlock.

The exception is a dataset that no worker iterates over any more: its returned tasks would occupy their places
for ever. So leases older than all outstanding ones can be *fenced*: slots refuse their pushes, and their
tasks are removed here. Each counts as finished, as it may have been applied to some slots before, and needs
room when it is leased again.
"""

from __future__ import annotations

import msgspec

from elastane_shards.errors import IllegalTransition, InvalidSettings, InvariantViolated
from elastane_slots.tasks import TaskName


class StalenessGate(msgspec.Struct, kw_only=True):
    """The tasks of all pushing datasets of a job that can still be applied.

    limit: None: no limit. finished: number of finished tasks. outstanding: leased tasks, in the order of
    their leases, with `finished` at that moment. returned, closing: see the module; dicts, so that their
    order is stored, too. leases: number of the newest lease of each outstanding or returned task.
    """

    limit: int | None = None
    finished: int = 0
    outstanding: dict[TaskName, int] = {}
    returned: dict[TaskName, None] = {}
    closing: dict[TaskName, None] = {}
    leases: dict[TaskName, int] = {}

    def check(self) -> None:
        """Raise InvalidSettings unless the limit is None, 0 or more."""
        if self.limit is not None and self.limit < 0:
            raise InvalidSettings(f"a staleness of {self.limit}", hint="0: one task after the other")

    def room(self) -> int | None:
        """Return how many fresh tasks may be leased now: new ones, or DONE ones reopened.

        None: any number. Returned tasks need no room.
        """
        if self.limit is None:
            return None
        applicable = len(self.outstanding) + len(self.returned) + len(self.closing)
        oldest = next(iter(self.outstanding.values()), self.finished)
        return max(0, self.limit + 1 - applicable - (self.finished - oldest))

    def leased(self, name: TaskName, lease: int) -> None:
        """Record a lease, with a higher number than all before.

        Raises IllegalTransition if the task is already leased, or there is no room for it.
        """
        if name in self.outstanding or name in self.closing:
            raise IllegalTransition("a task that is leased, or FAILED, was leased", name=name)
        if name not in self.returned and self.room() == 0:
            raise IllegalTransition(
                f"a lease beyond a staleness of {self.limit}", name=name, outstanding=len(self.outstanding)
            )
        self.returned.pop(name, None)
        self.outstanding[name] = self.finished
        self.leases[name] = lease

    def done(self, name: TaskName) -> None:
        """Record that a task became DONE: every slot has applied it.

        A task that is not here was fenced and is already counted. Raises IllegalTransition if it is FAILED.
        """
        if name in self.outstanding or name in self.returned or name in self.closing:
            self._over(name, "DONE")
            self.finished += 1

    def gave_back(self, name: TaskName) -> None:
        """Record that a lease ended without success; the task will be leased again."""
        if self.outstanding.pop(name, None) is None:
            raise IllegalTransition("a task came back that was not leased", name=name)
        self.returned[name] = None

    def failed(self, name: TaskName) -> None:
        """Record that a task became FAILED; `closed` follows."""
        self._over(name, "FAILED")
        self.closing[name] = None

    def closed(self, name: TaskName) -> None:
        """Record that all slots refuse a FAILED task from now on. Idempotent."""
        if name in self.closing:
            del self.closing[name]
            self.finished += 1  # it may have been applied since the leases that are outstanding

    def fence(self, last: int) -> int:
        """Return the number up to which leases can be fenced. last: that of the newest lease of any task."""
        oldest = next(iter(self.outstanding), None)
        return last if oldest is None else self.leases.get(oldest, 0) - 1

    def forgettable(self, fence: int) -> list[TaskName]:
        """Return the returned tasks whose newest lease is within a fence."""
        return [name for name in self.returned if self.leases.get(name, fence) <= fence]

    def fenced(self, fence: int) -> None:
        """Record a fence: slots refuse leases up to this number before any task leased from now on pulls."""
        for name in self.forgettable(fence):
            self._over(name, "forgotten")
            self.finished += 1  # it may have been applied since the leases that are outstanding

    def worst(self) -> int:
        """Highest possible staleness of an outstanding task's push; 0 if there is none."""
        applicable = len(self.outstanding) + len(self.returned) + len(self.closing) - 1
        since = (self.finished - before for before in self.outstanding.values())
        return max(since, default=-applicable) + applicable

    def validate(self) -> None:
        """Raise InvariantViolated if a task is in two states, or the limit is exceeded."""
        groups = (self.outstanding.keys(), self.returned.keys(), self.closing.keys())
        if sum(map(len, groups)) != len(set().union(*groups)):
            raise InvariantViolated("a task is outstanding, returned or closing at once")
        before = list(self.outstanding.values())
        if before != sorted(before) or (before and before[-1] > self.finished):
            raise InvariantViolated("leases are not in their order")
        if self.limit is not None and self.worst() > self.limit:
            raise InvariantViolated("a staleness beyond the limit", worst=self.worst(), limit=self.limit)

    def _over(self, name: TaskName, state: str) -> None:
        if self.outstanding.pop(name, None) is None and name not in self.returned:
            raise IllegalTransition(f"a task became {state} that was not leased", name=name)
        self.returned.pop(name, None)
        self.leases.pop(name, None)
