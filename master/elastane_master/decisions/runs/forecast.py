"""Earliest starts of waiting runs, if nothing else is submitted and running ones end as expected. Pure.

The queue is simulated: at the end of each launched run, in order, its slots become free, and the policy gives
them to waiting runs. The length of a queued run is not known, so one that starts in the simulation keeps its
slots. A run that no end makes room for has no forecast, with the reason: a run that holds slots has no known
end, or others in the queue come first.

    ends      run 3: in 40 s     run 5: unknown
    queue     run 8: in 40 s, waits for run 3     run 9: unknown, waits for run 5, whose end is unknown
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from elastane_master.decisions.runs import placement, usage
from elastane_master.decisions.runs.index import Waiting
from elastane_master.decisions.runs.placement import Shape
from elastane_master.decisions.runs.queue import QueuePolicy
from elastane_master.decisions.runs.run import Run
from elastane_master.decisions.runs.state import RunsState

RUNS_MAX: Final = 200
"""Waiting runs that are played: the first of the queue."""
ENDS_MAX: Final = 200
"""Ends that are played: the first of them."""
HOLDERS_MAX: Final = 5
"""Holders that are named."""


class SlotHolder(msgspec.Struct, frozen=True):
    """A run whose slots another one waits for. until_at: when it ends; None: unknown."""

    run_id: int
    slots: int
    until_at: float | None


class Forecast(msgspec.Struct, frozen=True):
    """Earliest start of a waiting run.

    earliest_at: seconds since the Unix epoch; None: unknown. holders: runs whose ends it waits for, earliest
    first. reason: what it waits for, or why nothing is known; "": no end makes room for it, because no runner
    fits or its owner has no quota left.
    """

    earliest_at: float | None
    holders: tuple[SlotHolder, ...]
    reason: str


@dataclass(frozen=True, eq=False)
class _Held:
    """Slots that become free at a run's end. ends_at: infinite: unknown."""

    run_id: int
    ends_at: float
    slots: Mapping[str, int]

    def holder(self, slots: int) -> SlotHolder:
        """Return the holder of `slots` awaited slots."""
        return SlotHolder(self.run_id, slots, None if self.ends_at == math.inf else self.ends_at)


def forecasts(
    state: RunsState,
    waiting: Waiting,
    policy: QueuePolicy,
    active: Iterable[int],
    ends: Mapping[int, float],
    now: float,
) -> dict[int, Forecast]:
    """Return the forecasts of the first RUNS_MAX waiting runs, by id.

    active: runs with a launch. ends: predicted end times, as far as known.
    """
    held = _held(state, active, ends, now)
    starts = _Play(state, policy, now).play(waiting, held)
    holders_of = _Holders(state, held)
    found = {}
    for run_id, start in starts.items():
        if start is None:
            run = state.runs[run_id]
            found[run_id] = _unknown(state, run, holders_of.find(run))
        else:
            found[run_id] = start
    return found


def _held(state: RunsState, active: Iterable[int], ends: Mapping[int, float], now: float) -> list[_Held]:
    """Return the slots that active runs hold, earliest end first."""
    slots: dict[int, dict[str, int]] = {run_id: {} for run_id in active}
    for name, runner in state.runners.items():
        if not runner.attends or runner.leaving:
            continue
        for holding in runner.holds.values():
            mine = slots.setdefault(holding.run_id, {})
            mine[name] = mine.get(name, 0) + holding.slots
    held = [
        _Held(run_id, max(now, ends.get(run_id, math.inf)), mine) for run_id, mine in slots.items() if mine
    ]
    return sorted(held, key=lambda one: (one.ends_at, one.run_id))


class _Play:
    """Simulation of the queue. Does not change the state."""

    def __init__(self, state: RunsState, policy: QueuePolicy, now: float) -> None:
        self._state, self._policy, self._now = state, policy, now
        self._free = placement.free_slots(state.runners)
        # Previous holder of each runner's free slots; None for slots that are free now.
        self._origins: dict[str, list[_Held | None]] = {
            name: [None] * slots for name, slots in self._free.items()
        }

    def play(self, waiting: Waiting, held: list[_Held]) -> dict[int, Forecast | None]:
        """Return the forecasts of the first waiting runs; None for runs that no known end makes room for."""
        first = self._first(waiting)
        found: dict[int, Forecast | None] = dict.fromkeys(first)
        part = Waiting()
        for run_id in first:
            part.add(self._state.runs[run_id])
        known = [one for one in held if one.ends_at < math.inf][:ENDS_MAX]
        for at, group in itertools.groupby(known, key=lambda one: one.ends_at):
            for one in group:
                self._end(one)
            for run_id, holders in self._start(part, at):
                found[run_id] = Forecast(at, holders, _waits(holders))
                part.discard(run_id)
            if not len(part):
                break
        return found

    def _first(self, waiting: Waiting) -> list[int]:
        """Return the first runs of the queue, and the one that has waited longest: slots may be reserved."""
        order = self._policy.order(self._state, waiting, dict(self._free), self._now)
        first = [place.run_id for place in itertools.islice(order, RUNS_MAX)]
        starving = waiting.starving(self._now, self._state.settings.starvation_seconds)
        return list(dict.fromkeys([*first, *itertools.islice(starving, 1)]))

    def _end(self, held: _Held) -> None:
        for name, slots in held.slots.items():
            self._free[name] = self._free.get(name, 0) + slots
            self._origins.setdefault(name, []).extend([held] * slots)

    def _start(self, part: Waiting, at: float) -> list[tuple[int, tuple[SlotHolder, ...]]]:
        """Return the runs that start, and the previous holders of their slots; reserved slots stay free."""
        started = []
        for place in self._policy.order(self._state, part, dict(self._free), at, whole=False):
            if place.verdict != "start":
                continue
            each = self._state.runs[place.run_id].demand.slots_per_instance
            placement.take(self._free, place.assignment, each)
            had: Counter[_Held] = Counter()
            for name, ranks in place.assignment.items():
                origins, slots = self._origins[name], len(ranks) * each
                had.update(one for one in origins[:slots] if one is not None)
                del origins[:slots]
            holders = [one.holder(slots) for one, slots in had.items()]
            started.append((place.run_id, tuple(sorted(holders, key=_by_end)[-HOLDERS_MAX:])))
        return started


class _Holders:
    """Holders of slots that a run may use, by the run's shape."""

    def __init__(self, state: RunsState, held: list[_Held]) -> None:
        self._state, self._held = state, held
        self._known: dict[Shape, list[SlotHolder]] = {}

    def find(self, run: Run) -> list[SlotHolder]:
        """Return the holders, earliest end first, unknown ends last."""
        shape = placement.shape_of(run)
        if shape not in self._known:
            usable = {name for name, one in self._state.runners.items() if not placement.mismatch(run, one)}
            # By what each holds: there may be thousands of holders, and of runners.
            counted = [
                (one, sum(slots for name, slots in one.slots.items() if name in usable)) for one in self._held
            ]
            self._known[shape] = [one.holder(slots) for one, slots in counted if slots]
        return self._known[shape]


def _by_end(holder: SlotHolder) -> tuple[float, int]:
    return (math.inf if holder.until_at is None else holder.until_at, holder.run_id)


def _waits(holders: tuple[SlotHolder, ...]) -> str:
    return f"waits for {_named(holders)}" if holders else "its turn comes"


def _unknown(state: RunsState, run: Run, fitting: list[SlotHolder]) -> Forecast:
    """Explain why no known end makes room for a run."""
    room = usage.room(state.uses, state.slots_max, run.owner)
    if run.demand.slots_min > room or placement.obstacle(run, state.runners):
        return Forecast(None, (), "")
    endless = tuple(one for one in fitting if one.until_at is None)[:HOLDERS_MAX]
    if endless:
        ends = "whose end is unknown" if len(endless) == 1 else "whose ends are unknown"
        return Forecast(None, endless, f"waits for {_named(endless)}, {ends}")
    before = "waits for runs of the queue that come before it, whose lengths are unknown"
    return Forecast(None, tuple(fitting[:HOLDERS_MAX]), before)


def _named(holders: tuple[SlotHolder, ...]) -> str:
    """Name runs: "run 3", "runs 3, 4 and 5"."""
    *most, last = (str(holder.run_id) for holder in holders)
    return f"runs {', '.join(most)} and {last}" if most else f"run {last}"
