"""The dynamic programme over stages: least load of the most loaded stage or link (SPP, INFOCOM 2022).

    W(l, s, r, i) = min over l' < l and r' <= i - r of the greatest of
        W(l', s - 1, r', i - r)
        the load of the link over the cut at l' between r' devices and the next r
        the load of a stage of units [l', l) on devices i - r .. i - 1 of the order

with the loads of `costs`. The least load is not the shortest step: the search starts from these plans, one
for each number of stages. Plans may leave the last devices of the order without a stage.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf, lcm
from typing import NamedTuple

from elastane_planner.costs import Costs
from elastane_planner.pipedream import coarse_bounds
from elastane_planner.plan import Plan, Stage

OPERATIONS_MAX = 1_000_000
"""Above this many steps of the innermost loop, as estimated, cuts and numbers of replicas are coarsened."""

Fits = Callable[[int, int, tuple[int, ...]], bool]
"""Returns True if a stage of units [first, end) could fit on these devices."""


class Grain(NamedTuple):
    """The cuts and numbers of replicas that the programme examines."""

    cuts: tuple[int, ...]
    replicas: tuple[int, ...]


def grains(costs: Costs, devices: int, stages_max: int) -> tuple[Grain, ...]:
    """Return one grain of all cuts and numbers of replicas, or, if that is too much, several partial ones.

    The partial ones have all stages on one device, on one or two, and on powers of two, each with as many
    cuts as the bound on operations allows.
    """
    cuts, most = costs.profile.cuts, min(devices, costs.micro_batches)
    whole = Grain(cuts, tuple(range(1, most + 1)))
    if operations([whole], devices, stages_max) <= OPERATIONS_MAX:
        return (whole,)
    powers = tuple(2**power for power in range(most.bit_length()))
    found = []
    for replicas in dict.fromkeys((powers, powers[:2], powers[:1])):
        kept = len(cuts)
        while kept > 1 and operations([Grain(cuts[:kept], replicas)], devices, stages_max) > OPERATIONS_MAX:
            kept -= 1
        found.append(Grain(tuple(coarse_bounds(costs.profile, kept + 1)[1:-1]), replicas))
    return tuple(found)


def operations(looks: Sequence[Grain], devices: int, stages_max: int) -> float:
    """Estimate the steps of the innermost loop, at least 1."""
    total = 1.0
    for look in looks:
        cuts, numbers = len(look.cuts), devices if len(look.replicas) > 1 else 1
        total += min(stages_max, cuts + 1) * cuts * max(4, cuts / 4) * numbers * len(look.replicas) ** 2 / 4
    return total


def partitions(
    costs: Costs, order: Sequence[int], stages_max: int, look: Grain, fits: Fits | None = None
) -> dict[int, tuple[float, Plan]]:
    """Return W and its plan for each number of stages up to `stages_max` that has one.

    Of plans with the same W the one on more devices comes first. fits: None for no limit.
    """
    table = _Table(costs, order, look, fits)
    found = {}
    for stages in range(1, stages_max + 1):
        table.extend()
        best = table.best()
        if best is not None:
            found[stages] = best
    return found


class _Cell(NamedTuple):
    """W of the first units on the first devices of the order, and the stage and cell it comes from."""

    load: float
    begin: int
    replicas: int
    before: _Cell | None


class _Table:
    """The cells of one number of stages: by end (index into the cuts) and number of devices, by replicas."""

    def __init__(self, costs: Costs, order: Sequence[int], look: Grain, fits: Fits | None) -> None:
        self._costs, self._order, self._fits = costs, tuple(order), fits
        self._ends = (0, *look.cuts, len(costs.profile.units))
        self._replicas = look.replicas
        self._stages = 0
        self._cells: dict[tuple[int, int], list[_Cell]] = {}
        self._slowest: dict[tuple[int, int, int], float] = {}
        self._loads: dict[tuple[int, int, int, int], float] = {}

    def extend(self) -> None:
        """Go from plans with s stages to those with s + 1."""
        self._stages += 1
        reached = {left for _, left in self._cells} if self._stages > 1 else {0}
        seats: dict[int, list[int]] = {}
        for left in sorted(reached):
            for replicas in self._replicas:
                if left + replicas <= len(self._order):
                    seats.setdefault(left + replicas, []).append(replicas)
        cells: dict[tuple[int, int], list[_Cell]] = {}
        for end in range(self._stages, len(self._ends)):
            for devices, options in seats.items():
                row = [self._cell(end, devices, replicas) for replicas in sorted(options)]
                found = [cell for cell in row if cell is not None]
                if found:
                    cells[end, devices] = sorted(found, key=lambda cell: cell.load)
        self._cells = cells

    def best(self) -> tuple[float, Plan] | None:
        """Return the least W of all units on any number of devices, and its plan."""
        end, count = len(self._ends) - 1, len(self._order)
        rows = [
            (self._cells[end, used][0], used) for used in range(count, 0, -1) if (end, used) in self._cells
        ]
        if not rows:
            return None
        cell, devices = min(rows, key=lambda row: row[0].load)
        stages, load = [], cell.load
        while True:
            used = self._order[devices - cell.replicas : devices]
            stages.append(Stage(self._ends[cell.begin], self._ends[end], used))
            end, devices = cell.begin, devices - cell.replicas
            if cell.before is None:
                return load, Plan(tuple(reversed(stages)))
            cell = cell.before

    def _cell(self, end: int, devices: int, replicas: int) -> _Cell | None:
        """Return the best placement of the first `end` parts on this many devices, the last on `replicas`."""
        if self._stages == 1:
            load = self._load(0, end, devices, replicas) if devices == replicas else inf
            return _Cell(load, 0, replicas, None) if load < inf else None
        best, least = None, inf
        left = devices - replicas
        for begin in range(end - 1, self._stages - 2, -1):
            load = self._load(begin, end, devices, replicas)
            if load >= least:
                break  # and so is every longer stage
            for before in self._cells.get((begin, left), ()):
                if before.load >= least:
                    break  # sorted by load
                worst = max(load, before.load, self._link(begin, left, before.replicas, replicas))
                if worst < least:
                    best, least = _Cell(worst, begin, replicas, before), worst
        return best

    def _load(self, begin: int, end: int, devices: int, replicas: int) -> float:
        """Return the load of parts [begin, end) on the last `replicas` of the devices; inf: does not fit."""
        key = (begin, end, devices, replicas)
        load = self._loads.get(key)
        if load is None:
            group = self._order[devices - replicas : devices]
            first, last = self._ends[begin], self._ends[end]
            fit = self._fits is None or self._fits(first, last, group)
            load = self._loads[key] = self._costs.stage_load(first, last, group) if fit else inf
        return load

    def _link(self, begin: int, devices: int, before: int, after: int) -> float:
        """Return the load of the links between stages that meet at a part and after this many devices."""
        size = self._costs.boundary_bytes(self._ends[begin])
        if not size:
            return 0.0
        key = (devices, before, after)
        slowest = self._slowest.get(key)
        if slowest is None:
            sources, targets = self._order[devices - before : devices], self._order[devices : devices + after]
            slowest = self._slowest[key] = self._costs.least_link(sources, targets)
        frames = -(-self._costs.micro_batches // lcm(before, after))
        return frames * size / slowest if slowest else inf
