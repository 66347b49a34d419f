"""Index of waiting runs, by age and by owner, and of deadlines. Derived from the state, never stored.

No decision may depend on anything here that does not follow from the state: a restored machine has a new
index.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from typing import Literal

from elastane_master.decisions.runs.placement import Shape, shape_of
from elastane_master.decisions.runs.run import OVER, Run
from elastane_master.decisions.runs.state import RunsState

Aged = tuple[float, int]
"""A time and the id of a run."""
Subject = tuple[Literal["run", "runner"], int | str]


class Waiting:
    """Runs that wait for slots.

    by_wait: all, longest waiting first. by_priority: by priority and owner, oldest first. shapes: number of
    each run's shape; shape_counts: runs of each shape.
    """

    __slots__ = ("_entries", "_shape_numbers", "by_priority", "by_wait", "shape_counts", "shapes")

    def __init__(self) -> None:
        self.by_wait: list[Aged] = []
        self.by_priority: dict[int, dict[str, list[Aged]]] = {}
        self.shapes: dict[int, int] = {}
        self.shape_counts: dict[int, int] = {}
        self._shape_numbers: dict[Shape, int] = {}
        self._entries: dict[int, tuple[int, str, Aged, Aged]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, run_id: int) -> bool:
        return run_id in self._entries

    def add(self, run: Run) -> None:
        """Add a run, or update its position."""
        self.discard(run.run_id)
        entry = (run.priority, run.owner, (run.queued_at, run.run_id), (run.waiting_since, run.run_id))
        insort(self.by_wait, entry[3])
        insort(self.by_priority.setdefault(run.priority, {}).setdefault(run.owner, []), entry[2])
        self._entries[run.run_id] = entry
        if not self.shape_counts:
            self._shape_numbers.clear()
        number = self._shape_numbers.setdefault(shape_of(run), len(self._shape_numbers))
        self.shapes[run.run_id] = number
        self.shape_counts[number] = self.shape_counts.get(number, 0) + 1

    def discard(self, run_id: int) -> None:
        """Remove a run, if present."""
        entry = self._entries.pop(run_id, None)
        if entry is None:
            return
        priority, owner, aged, waited = entry
        number = self.shapes.pop(run_id)
        self.shape_counts[number] -= 1
        if not self.shape_counts[number]:
            del self.shape_counts[number]
        del self.by_wait[bisect_left(self.by_wait, waited)]
        owners = self.by_priority[priority]
        del owners[owner][bisect_left(owners[owner], aged)]
        if not owners[owner]:
            del owners[owner]
        if not owners:
            del self.by_priority[priority]

    def starving(self, now: float, starvation_seconds: float) -> Iterator[int]:
        """Yield the runs that have waited at least this long, oldest first."""
        for since, run_id in self.by_wait:
            if now - since < starvation_seconds:
                return
            yield run_id

    def next_starving(self, after: float, starvation_seconds: float) -> float | None:
        """Return when the next run will have waited this long."""
        place = bisect_right(self.by_wait, (after - starvation_seconds, math.inf))
        while place < len(self.by_wait):
            at = self.by_wait[place][0] + starvation_seconds
            if at > after:
                return at
            place += 1
        return None


class Deadlines:
    """The next deadline of each run and runner that has one."""

    __slots__ = ("_at", "_heap")

    def __init__(self) -> None:
        self._heap: list[tuple[float, Subject]] = []
        self._at: dict[Subject, float] = {}

    def set(self, subject: Subject, at: float | None) -> None:
        """Replace the deadline; None: there is none."""
        if at is None:
            self._at.pop(subject, None)
        elif self._at.get(subject) != at:
            self._at[subject] = at
            heapq.heappush(self._heap, (at, subject))

    def next(self) -> float | None:
        """Return the earliest."""
        while self._heap:
            at, subject = self._heap[0]
            if self._at.get(subject) == at:
                return at
            heapq.heappop(self._heap)
        return None

    def due(self, now: float) -> list[Subject]:
        """Remove and return the due ones, in a fixed order."""
        due: list[Subject] = []
        while (at := self.next()) is not None and at <= now:
            _, subject = heapq.heappop(self._heap)
            del self._at[subject]
            due.append(subject)
        return due


class Index:
    """waiting, deadlines: see there. pending: runs that have not been launched, for whatever reason.
    active: runs with a launch. waiting_data: runs that wait for their dataset. alive_by_owner: unfinished
    runs of each owner. ticked_at: time of the last Tick.
    """

    __slots__ = (
        "_seen",
        "active",
        "alive_by_owner",
        "deadlines",
        "pending",
        "ticked_at",
        "waiting",
        "waiting_data",
    )

    def __init__(self, state: RunsState) -> None:
        self.waiting = Waiting()
        self.deadlines = Deadlines()
        self.active: set[int] = set()
        self.pending: set[int] = set()
        self.waiting_data: set[int] = set()
        self.alive_by_owner: dict[str, set[int]] = {}
        self.ticked_at = -math.inf
        self._seen: dict[int, tuple[object, ...]] = {}
        for run in state.runs.values():
            self.update(run)

    def update(self, run: Run) -> None:
        """Update the index from a run's record."""
        launched, waits = run.launch is not None, run.waits
        seen = (run.state, launched, waits, run.priority, run.queued_at, run.waiting_since)
        if self._seen.get(run.run_id) == seen:
            return
        self._seen[run.run_id] = seen
        if waits:
            self.waiting.add(run)
        else:
            self.waiting.discard(run.run_id)
        over = run.state in OVER
        _put(self.active, run.run_id, launched)
        _put(self.pending, run.run_id, not launched and not over)
        _put(self.waiting_data, run.run_id, run.state == "waiting_data")
        alive = self.alive_by_owner.setdefault(run.owner, set())
        _put(alive, run.run_id, not over)
        if not alive:
            del self.alive_by_owner[run.owner]

    def alive(self, owner: str) -> int:
        """Count the runs of an owner that are not over."""
        return len(self.alive_by_owner.get(owner, ()))

    def remove(self, run_id: int) -> None:
        """Remove a deleted run."""
        self._seen.pop(run_id, None)
        self.waiting.discard(run_id)
        self.active.discard(run_id)
        self.pending.discard(run_id)
        self.deadlines.set(("run", run_id), None)


def _put(runs: set[int], run_id: int, belongs: bool) -> None:
    if belongs:
        runs.add(run_id)
    else:
        runs.discard(run_id)
