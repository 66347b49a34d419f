"""Stale synchronous parallel as a policy of leases: no push ever waits, and none of a live lease is refused.

The staleness of a task in a slot is the number of tasks applied to the slot between the task's pull and its
push (Ho et al., "More effective distributed ML via a stale synchronous parallel parameter server", NIPS
2013). Whom would a push have to wait for? Two tasks that have both pulled, and may both be overtaken no
more, would wait for one another. So the limit is kept before anything is pulled: by what is leased.

A task, once leased, may be applied at any moment until it is over. It is *outstanding* while it is leased,
*returned* when its lease has ended without success: its worker may wake up and push; *closing* when it is
FAILED and not all slots have said yet that they take no more of it. From then on, and once it is DONE, it is
finished. Pulls follow the lease, so what can be applied between u's pull and push is

    finished since u's lease + others outstanding + returned + closing  <=  limit

No step of a task raises that sum but the first lease of one, which is granted only if it stays within the
limit for every outstanding task and the new one. A returned task can always be leased again, since it is in
the sum already; if the queue leases returned tasks first, nothing can come to a standstill.

But for a data set that nobody goes through any more: its returned tasks would keep their place for ever. So
leases from before all that are outstanding can be *fenced* out: slots take nothing more of them, and their
tasks are forgotten here. Each counts as finished, as it may have been applied to some slots before, and needs
room when it is leased again.
"""

from __future__ import annotations

import msgspec

from elastane_shards.errors import IllegalTransition, InvalidSettings, InvariantViolated
from elastane_slots.tasks import TaskName


class StalenessGate(msgspec.Struct, kw_only=True):
    """The tasks of all data sets of a job that push, as far as they can still be applied.

    limit: None: none. finished: number of tasks that are over. outstanding: leased tasks, in the order of
    their leases, with `finished` at that moment. returned, closing: see above; dicts, so that their order
    is stored, too. leases: number of the newest lease of each that is outstanding or returned.
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
        """Return how many tasks may be leased now for the first time since they were done or begun.

        None: any number. The same that are returned need no room.
        """
        if self.limit is None:
            return None
        applicable = len(self.outstanding) + len(self.returned) + len(self.closing)
        oldest = next(iter(self.outstanding.values()), self.finished)
        return max(0, self.limit + 1 - applicable - (self.finished - oldest))

    def leased(self, name: TaskName, lease: int) -> None:
        """A task was leased, by a number higher than all before.

        Raises IllegalTransition if it is leased already, or there is no room for it.
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
        """A task became DONE: every slot has applied it.

        One that is not here was forgotten, with all that was applied of it: it is counted already.
        Raises IllegalTransition if it is FAILED.
        """
        if name in self.outstanding or name in self.returned or name in self.closing:
            self._over(name, "DONE")
            self.finished += 1

    def gave_back(self, name: TaskName) -> None:
        """A lease ended without success, and the task will be leased again."""
        if self.outstanding.pop(name, None) is None:
            raise IllegalTransition("a task came back that was not leased", name=name)
        self.returned[name] = None

    def failed(self, name: TaskName) -> None:
        """A task became FAILED; `closed` follows."""
        self._over(name, "FAILED")
        self.closing[name] = None

    def closed(self, name: TaskName) -> None:
        """No slot takes any more of a FAILED task. Repeating it changes nothing."""
        if name in self.closing:
            del self.closing[name]
            self.finished += 1  # it may have been applied since the leases that are outstanding

    def fence(self, last: int) -> int:
        """Return up to which number leases can be fenced out. last: of the newest lease of any task."""
        oldest = next(iter(self.outstanding), None)
        return last if oldest is None else self.leases.get(oldest, 0) - 1

    def forgettable(self, fence: int) -> list[TaskName]:
        """Return the returned tasks that have no lease after a fence."""
        return [name for name in self.returned if self.leases.get(name, fence) <= fence]

    def fenced(self, fence: int) -> None:
        """Whoever is leased from now on pulls from slots that take nothing of leases up to this number."""
        for name in self.forgettable(fence):
            self._over(name, "forgotten")
            self.finished += 1  # it may have been applied since the leases that are outstanding

    def worst(self) -> int:
        """Highest staleness that a push of an outstanding task can have; 0 without any."""
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
