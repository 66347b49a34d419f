"""Determines from its journal in which order a run is replayed. Pure.

One push takes a slot from one state to the next, and was computed from the states that its task had pulled.
Starting with the final states of the run, `History.order` finds all states that they depend on, including
those in lives that were lost. All of these must be in the journal.

    free      updates whose previous state is no longer needed: made in place
    next      a task all of whose pulled states exist
    forced    if neither is left: an update whose previous state is kept as a copy
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from elastane.tables.journal_records import JournalEntry, JournalError, LifeBegun, Record

_TWO_RUNS: Final = "the folder has the journals of two runs"


class SlotState(NamedTuple):
    """A slot after `version` tasks of a life. Life 0, version 0: its initial values."""

    slot: int
    life: int
    version: int


@dataclass(frozen=True, slots=True)
class Execution:
    """A task as computed by a worker under one lease. pulls: for each request, the states by slot."""

    lease: int
    dataset: str
    epoch: int
    task: int
    attempt: int
    rates: list[list[float]]
    pulls: list[dict[int, SlotState]]

    def __str__(self) -> str:
        return f"{self.dataset} {self.epoch}:{self.task} (lease {self.lease})"


class Update(NamedTuple):
    """The push that led to a state. scale: factor of learning rates. digest: of the gradients."""

    lease: int
    scale: float
    digest: bytes
    generation: int


@dataclass
class History:
    """Contents of a journal."""

    executions: dict[int, Execution] = field(default_factory=dict)
    _updates: dict[SlotState, list[Update]] = field(default_factory=lambda: defaultdict(list))
    #: By (slot, life).
    _begun: dict[tuple[int, int], LifeBegun] = field(default_factory=dict)

    def add(self, record: Record) -> None:
        """Add a record. Raises JournalError if it contradicts another."""
        if isinstance(record, LifeBegun):
            if self._begun.setdefault((record.slot, record.life), record) != record:
                raise JournalError(
                    f"life {record.life} of slot {record.slot} began twice", hint=_TWO_RUNS, slot=record.slot
                )
            return
        execution = _execution(record)
        if self.executions.setdefault(record.lease, execution) != execution:
            raise JournalError(f"lease {record.lease} is of two tasks", hint=_TWO_RUNS)
        state = SlotState(record.slot, record.life, record.version)
        update = Update(record.lease, record.scale, record.digest, record.generation)
        if update not in (there := self._updates[state]):
            there.append(update)

    def order(self, ends: Iterable[SlotState]) -> ReplayOrder:
        """Return the computations that lead to a run's final states. Raises JournalError."""
        updates, ends = self._valid(), list(ends)
        before: dict[SlotState, SlotState | None] = {}
        needed: dict[int, set[SlotState]] = {}
        todo = [self.origin(end) for end in ends]
        while todo:
            state = todo.pop()
            if state in before:
                continue
            if not state.version:
                before[state] = None
                continue
            update = updates.get(state)
            if update is None:
                raise JournalError(
                    f"the journal lacks what made version {state.version} of slot {state.slot} in its life"
                    f" {state.life}",
                    hint="the process that applied it was killed before it had written that; such a run can"
                    " be repeated up to there alone",
                    slot=state.slot,
                    life=state.life,
                    version=state.version,
                )
            earlier = self.origin(state._replace(version=state.version - 1))
            before[state] = earlier
            todo.append(earlier)
            if update.lease not in needed:
                pulls = self.executions[update.lease].pulls
                needed[update.lease] = {self.origin(one) for asked in pulls for one in asked.values()}
                todo += needed[update.lease]
        found = {state: updates[state] for state, earlier in before.items() if earlier is not None}
        executions = {lease: self.executions[lease] for lease in needed}
        return ReplayOrder(executions, needed, before, found, ends, self.origin)

    def origin(self, state: SlotState) -> SlotState:
        """Return the equal state in the life in which its weights were computed."""
        while (begun := self._begun.get((state.slot, state.life))) and begun.version == state.version:
            if begun.before < 0:
                break
            state = state._replace(life=begun.before)
        return state if state.version else SlotState(state.slot, 0, 0)

    def _valid(self) -> dict[SlotState, Update]:
        """Return the update that led to each state.

        An owner may have applied pushes that its backup never received, and died. The backup's own pushes,
        under a map with a higher generation, then replace those of the dead owner.
        """
        valid: dict[SlotState, Update] = {}
        for state, updates in self._updates.items():
            newest = max(update.generation for update in updates)
            of_newest = [update for update in updates if update.generation == newest]
            if len(of_newest) > 1:
                raise JournalError(
                    f"two pushes made version {state.version} of slot {state.slot}", hint=_TWO_RUNS
                )
            valid[state] = of_newest[0]
        return valid


class Step(NamedTuple):
    """An update to make. keep: True if the previous state is still needed."""

    state: SlotState
    before: SlotState
    update: Update
    keep: bool


class ReplayOrder:
    """Schedules the computations of a replay; `done` and `made` report progress.

    ends: requested final state -> its `origin`, the state that is computed. initial: states to start from.
    """

    def __init__(
        self,
        executions: Mapping[int, Execution],
        pulled: Mapping[int, set[SlotState]],
        before: Mapping[SlotState, SlotState | None],
        updates: Mapping[SlotState, Update],
        ends: Iterable[SlotState],
        origin: Callable[[SlotState], SlotState],
    ) -> None:
        self.executions, self.origin = executions, origin
        self.ends = {end: origin(end) for end in ends}
        self._before, self._updates, self._pulled = before, updates, pulled
        self.initial = [state for state, earlier in before.items() if earlier is None]
        self.left = len(executions)
        #: Updates made by each execution.
        self.makes: dict[int, list[SlotState]] = defaultdict(list)
        for state, update in updates.items():
            self.makes[update.lease].append(state)
        #: For each state, the tasks that will pull it and the states that will be derived from it.
        self._readers: dict[SlotState, set[int]] = defaultdict(set)
        self._following: dict[SlotState, int] = defaultdict(int)
        for lease, states in pulled.items():
            for state in states:
                self._readers[state].add(lease)
        for earlier in before.values():
            if earlier is not None:
                self._following[earlier] += 1
        self._last = set(self.ends.values())
        self._made: set[SlotState] = set()
        self._ended: set[int] = set()
        self._missing = {lease: len(states) for lease, states in pulled.items()}
        #: Tasks ready to be computed, by dataset; updates ready to be made, the oldest first.
        self._ready: dict[str, list[int]] = defaultdict(list)
        self._candidates: dict[SlotState, None] = {}
        self._next_of: dict[SlotState, list[SlotState]] = defaultdict(list)
        for state, earlier in before.items():
            if earlier is not None:
                self._next_of[earlier].append(state)
        for lease, missing in self._missing.items():
            if not missing:
                self._is_ready(lease)
        for state in self.initial:
            self.made(state)

    def free(self) -> Iterator[Step]:
        """Remove and return the updates that need no copy."""
        while free := [state for state in self._candidates if not self._is_needed(state)]:
            for state in free:
                yield self._take(state, keep=False)

    def next(self, dataset: str) -> Execution | None:
        """Remove and return the first task of a dataset that can be computed."""
        ready = self._ready[dataset]
        return self.executions[heapq.heappop(ready)] if ready else None

    def forced(self) -> Step | None:
        """Remove and return an update whose previous state is still needed."""
        state = next(iter(self._candidates), None)
        return None if state is None else self._take(state, keep=True)

    def done(self, lease: int) -> list[SlotState]:
        """Record that a task was computed; return the states that are no longer needed."""
        self.left -= 1
        self._ended.add(lease)
        for state in self._pulled[lease]:
            self._readers[state].discard(lease)
        for state in self.makes[lease]:
            if self._before[state] in self._made:
                self._candidates[state] = None
        return [
            state
            for state in self._pulled[lease]
            if not self._readers[state] and not self._following[state] and state not in self._last
        ]

    def made(self, state: SlotState) -> None:
        """Record that a state exists."""
        self._made.add(state)
        for lease in self._readers[state]:
            self._missing[lease] -= 1
            if not self._missing[lease]:
                self._is_ready(lease)
        for following in self._next_of.pop(state, ()):
            if self._updates[following].lease in self._ended:
                self._candidates[following] = None

    def update(self, state: SlotState) -> Update:
        """Return the update that leads to a state."""
        return self._updates[state]

    def on_the_way(self) -> set[SlotState]:
        """Return the states in lives that were not lost."""
        found: set[SlotState] = set()
        for end in self.ends.values():
            state: SlotState | None = end
            while state is not None and state not in found:
                found.add(state)
                state = self._before[state]
        return found

    def datasets(self) -> list[str]:
        """Return the datasets with tasks that are not computed yet."""
        left = (one for lease, one in self.executions.items() if lease not in self._ended)
        return sorted({one.dataset for one in left})

    def _is_ready(self, lease: int) -> None:
        heapq.heappush(self._ready[self.executions[lease].dataset], lease)

    def _is_needed(self, state: SlotState) -> bool:
        """True if the previous state of `state` is needed for something else."""
        earlier = self._before[state]
        assert earlier is not None
        return bool(self._readers[earlier]) or self._following[earlier] > 1 or earlier in self._last

    def _take(self, state: SlotState, *, keep: bool) -> Step:
        del self._candidates[state]
        earlier = self._before[state]
        assert earlier is not None
        self._following[earlier] -= 1
        return Step(state, earlier, self._updates[state], keep)


def _execution(entry: JournalEntry) -> Execution:
    first = {
        slot: SlotState(slot, life, version) for slot, (life, version) in enumerate(entry.pulls) if life >= 0
    }
    later = [{told[0]: SlotState(*told) for told in asked} for asked in entry.later]
    return Execution(
        entry.lease, entry.dataset, entry.epoch, entry.task, entry.attempt, entry.rates, [first, *later]
    )
