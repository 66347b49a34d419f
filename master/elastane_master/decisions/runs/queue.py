"""The order of runs that wait for slots, behind an interface that another scheduler can replace.

Higher priority first; then the owner with the least weighted, decayed use; then the older run. A run that
does not fit does not block others. The longest waiting run, from `starvation_seconds` on, has slots reserved
until it fits; after it has started, one run starts in the ordinary order before the next reservation, so that
priorities still count when all runs wait for long. A run beyond its owner's quota waits without blocking
others.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from typing import Literal, Protocol

import msgspec

from elastane_master.decisions.runs import placement, usage
from elastane_master.decisions.runs.allocation import Instances
from elastane_master.decisions.runs.index import Waiting
from elastane_master.decisions.runs.placement import Assignment, Free
from elastane_master.decisions.runs.run import Run
from elastane_master.decisions.runs.state import RunsState


class Place(msgspec.Struct, frozen=True):
    """A policy's verdict on one run.

    verdict: it starts, with the assignment; or slots are reserved for it; or it waits. reserved: it starts on
    reserved slots. needs: slots to reserve, by runner, as soon as they are free.
    """

    run_id: int
    verdict: Literal["start", "reserve", "wait"]
    reason: str
    assignment: Assignment = {}
    reserved: bool = False
    needs: Free = {}


class QueuePolicy(Protocol):
    """Decides which runs start next."""

    def order(
        self, state: RunsState, waiting: Waiting, free: Free, now: float, *, whole: bool = True
    ) -> Iterator[Place]:
        """Yield the waiting runs in order, subtracting from `free` what they get or is reserved for them.

        Only `free` is changed. whole: False to get only runs that start, or for which slots are reserved.
        """
        ...

    def position(self, state: RunsState, waiting: Waiting, run: Run, now: float) -> int:
        """Place of a waiting run in the order, from 1."""
        ...


class FairShare:
    """The order described in this module's docstring."""

    def order(
        self, state: RunsState, waiting: Waiting, free: Free, now: float, *, whole: bool = True
    ) -> Iterator[Place]:
        """See `QueuePolicy.order`."""
        quotas = _Quotas(state)
        misfits: dict[int, str] = {}
        reservation = _Reservation(state, waiting, free, now, quotas)
        if not state.reserved_turn:
            yield from reservation.place()
        for run_id in ordered(state, waiting, now):
            if run_id == reservation.run_id:
                continue
            shape = waiting.shapes[run_id]
            if (reason := misfits.get(shape)) is not None:
                if whole:
                    yield Place(run_id, "wait", reason)
                continue
            place = _try(state.runs[run_id], state, free, quotas)
            if place.verdict == "wait":
                misfits[shape] = place.reason
                if not whole and len(misfits) == len(waiting.shape_counts):
                    break
            if whole or place.verdict == "start":
                yield place
            if place.verdict == "start":
                yield from reservation.after(run_id)
        yield from reservation.place()

    def position(self, state: RunsState, waiting: Waiting, run: Run, now: float) -> int:
        """See `QueuePolicy.position`."""
        before = sum(
            len(runs)
            for priority, owners in waiting.by_priority.items()
            if priority > run.priority
            for runs in owners.values()
        )
        owners = waiting.by_priority.get(run.priority, {})
        aged = (run.queued_at, run.run_id)
        mine = _owner_key(state, run.owner, owners[run.owner][0], now) if run.owner in owners else None
        for owner, runs in owners.items():
            if owner == run.owner:
                before += bisect_left(runs, aged)
            elif mine is not None and _owner_key(state, owner, runs[0], now) < mine:
                before += len(runs)
        return before + 1


class ByTargets:
    """Runs in the order of the scheduling policy's targets, on the device types that it has chosen.

    Slots are reserved for runs that have waited too long, as in `FairShare`: no policy can starve a run.
    """

    def order(
        self, state: RunsState, waiting: Waiting, free: Free, now: float, *, whole: bool = True
    ) -> Iterator[Place]:
        """See `QueuePolicy.order`."""
        quotas = _Quotas(state)
        reservation = _Reservation(state, waiting, free, now, quotas)
        if not state.reserved_turn:
            yield from reservation.place()
        for run_id, target in state.allocation.targets.items():
            if run_id == reservation.run_id or run_id not in waiting:
                continue
            place = _try_on(state.runs[run_id], target, state, free, quotas)
            if whole or place.verdict == "start":
                yield place
            if place.verdict == "start":
                yield from reservation.after(run_id)
        yield from reservation.place()
        if whole:
            for run_id in ordered(state, waiting, now):
                if run_id not in state.allocation.targets and run_id != reservation.run_id:
                    yield Place(run_id, "wait", _why_not(state.runs[run_id]))

    def position(self, state: RunsState, waiting: Waiting, run: Run, now: float) -> int:
        """See `QueuePolicy.position`."""
        return FairShare().position(state, waiting, run, now)


def _why_not(run: Run) -> str:
    """Return why a waiting run has no target."""
    return run.decided[-1].reason if run.decided else "the scheduling policy has not decided about it yet"


def _try_on(run: Run, target: Instances, state: RunsState, free: Free, quotas: _Quotas) -> Place:
    """Start a run on the device types of its target."""
    if obstacle := quotas.obstacle(run):
        return Place(run.run_id, "wait", obstacle)
    slots = run.demand.slots_per_instance
    allowed: Free = {}
    left = {name: count * slots for name, count in target.items()}
    for name, there in free.items():
        kind = state.runners[name].computes_on
        if (usable := min(there, left.get(kind, 0))) and not placement.mismatch(run, state.runners[name]):
            allowed[name] = usable
    assignment = placement.place_start(run, state.runners, allowed)
    if assignment is None:
        there = sum(allowed.values())
        return Place(run.run_id, "wait", f"needs {run.demand.slots_min} slots, {there} free for it")
    placement.take(free, assignment, slots)
    quotas.take(run)
    return Place(run.run_id, "start", "its turn", assignment)


class SlotsOrder:
    """The order of the scheduling policy while it decides, else that of `FairShare`."""

    def __init__(self) -> None:
        self._fair_share, self._by_targets = FairShare(), ByTargets()

    def _of(self, state: RunsState) -> QueuePolicy:
        return self._by_targets if state.allocation.in_charge else self._fair_share

    def order(
        self, state: RunsState, waiting: Waiting, free: Free, now: float, *, whole: bool = True
    ) -> Iterator[Place]:
        """See `QueuePolicy.order`."""
        return self._of(state).order(state, waiting, free, now, whole=whole)

    def position(self, state: RunsState, waiting: Waiting, run: Run, now: float) -> int:
        """See `QueuePolicy.position`."""
        return self._of(state).position(state, waiting, run, now)


def ordered(state: RunsState, waiting: Waiting, now: float) -> Iterator[int]:
    """Yield the waiting runs by priority, use of the owner, and age."""
    for priority in sorted(waiting.by_priority, reverse=True):
        owners = waiting.by_priority[priority]
        for owner in sorted(owners, key=lambda owner: _owner_key(state, owner, owners[owner][0], now)):
            for _, run_id in owners[owner]:
                yield run_id


def _owner_key(
    state: RunsState, owner: str, oldest: tuple[float, int], now: float
) -> tuple[float, tuple[float, int]]:
    """Order owners by weighted use, then by their oldest run."""
    weight = state.settings.weights.get(owner, 1.0)
    return usage.used(state.uses.get(owner), now) / weight, oldest


class _Quotas:
    """Slots that owners may still take: quotas minus slots held and slots granted by this order."""

    def __init__(self, state: RunsState) -> None:
        self._most = state.slots_max
        self._rooms = {owner: usage.room(state.uses, state.slots_max, owner) for owner in state.slots_max}

    def obstacle(self, run: Run) -> str:
        """Return why a run may not start, or ""."""
        if (room := self._rooms.get(run.owner)) is None:
            return ""
        return usage.over_quota(run.owner, run.demand.slots_min, room, self._most[run.owner])

    def take(self, run: Run) -> None:
        """Count a run that starts."""
        if run.owner in self._rooms:
            self._rooms[run.owner] -= run.demand.slots_min


class _Reservation:
    """Gives slots to the longest waiting run, if one has waited too long: once in an order.

    run_id: the run that has got them; None: none so far. Subtracts them from `free`.
    """

    def __init__(self, state: RunsState, waiting: Waiting, free: Free, now: float, quotas: _Quotas) -> None:
        self._state, self._waiting, self._free, self._quotas = state, waiting, free, quotas
        self._now = now
        self._started: set[int] = set()
        self.run_id: int | None = None

    def after(self, run_id: int) -> Iterator[Place]:
        """Yield the place after a run has started in the ordinary order: the rest may be reserved now."""
        self._started.add(run_id)
        yield from self.place()

    def place(self) -> Iterator[Place]:
        """Yield the place of the run that starts, or for which slots are reserved; nothing if none does."""
        if self.run_id is None and (place := self._find()) is not None:
            self.run_id = place.run_id
            yield place

    def _find(self) -> Place | None:
        state, waiting = self._state, self._waiting
        hopeless: set[int] = set()
        for run_id in waiting.starving(self._now, state.settings.starvation_seconds):
            run, shape = state.runs[run_id], waiting.shapes[run_id]
            if run_id in self._started or shape in hopeless:
                continue
            if self._quotas.obstacle(run):  # reserved slots would be useless to it
                hopeless.add(shape)
                continue
            assignment = placement.place_start(run, state.runners, self._free)
            if assignment is not None:
                placement.take(self._free, assignment, run.demand.slots_per_instance)
                self._quotas.take(run)
                return Place(run_id, "start", "it had waited longest", assignment, reserved=True)
            if needs := placement.reserve(run, state.runners, self._free):
                return Place(run_id, "reserve", "slots are reserved for it as they come free", needs=needs)
            hopeless.add(shape)
            if len(hopeless) == len(waiting.shape_counts):
                return None
        return None


def _try(run: Run, state: RunsState, free: Free, quotas: _Quotas) -> Place:
    if obstacle := quotas.obstacle(run):
        return Place(run.run_id, "wait", obstacle)
    assignment = placement.place_start(run, state.runners, free)
    if assignment is None:
        reason = f"needs {run.demand.slots_min} slots, {sum(free.values())} free"
        return Place(run.run_id, "wait", reason)
    placement.take(free, assignment, run.demand.slots_per_instance)
    quotas.take(run)
    return Place(run.run_id, "start", "its turn", assignment)
