"""The best plan, device order and schedule of tiny cases by exhaustion, and a lower bound for large ones.

The reference for the planner's search, in tests and in `planner.py`: slow, but it examines everything that
its bound does not rule out.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations
from math import inf
from typing import NamedTuple

from elastane_planner.costs import Costs
from elastane_planner.enumeration import plans
from elastane_planner.errors import InvalidRequest
from elastane_planner.memory import MemoryNeeds, Misfit
from elastane_planner.plan import Plan
from elastane_planner.schedule import Block
from elastane_planner.simulate import least_seconds, step_seconds

PLANS_MAX = 5_000_000


def best_plan(
    costs: Costs, orders: Sequence[Sequence[int]] | None = None, needs: MemoryNeeds | None = None
) -> tuple[float, Plan]:
    """Return the shortest step of all plans in list ordering, and its plan, the first of several.

    orders: None for all orders of all sets of devices. Raises InvalidRequest for more than PLANS_MAX plans,
    or if no plan fits.
    """
    count = len(costs.cluster.devices)
    if orders is None:
        sets = (permutations(range(count), used) for used in range(count, 0, -1))
        candidates = (
            plan for found in sets for order in found for plan in plans(costs, order, prefixes=False)
        )
    else:
        candidates = (plan for order in orders for plan in plans(costs, order))
    best: tuple[float, Plan] | None = None
    for number, plan in enumerate(candidates):
        if number >= PLANS_MAX:
            raise InvalidRequest(
                f"there are more than {PLANS_MAX} plans", hint="The oracle is for tiny cases."
            )
        if best is not None and least_seconds(costs, plan) >= best[0]:
            continue
        fitted = plan if needs is None else needs.fit(plan)
        if isinstance(fitted, Misfit):
            continue
        seconds = step_seconds(costs, fitted)
        if best is None or seconds < best[0]:
            best = seconds, fitted
    if best is None:
        raise InvalidRequest("no plan fits")
    return best


def least_step_seconds(costs: Costs) -> float:
    """Return a lower bound of the step of every plan on this cluster, memory and links without limit.

    The maximum of: all work divided over all devices; one micro-batch from end to end; the heaviest unit,
    whose whole micro-batches are divided over at most all devices.
    """
    count, speeds = costs.micro_batches, costs.speeds
    units = len(costs.profile.units)
    work = costs.seconds(0, units)
    heaviest = max(costs.seconds(unit, unit + 1) for unit in range(units))
    shared = -(-count // min(len(speeds), count)) * heaviest / max(speeds)
    return max(count * work / sum(speeds), work / max(speeds), shared)


def best_order(
    costs: Costs, plan: Plan, nodes_max: int = 1_000_000
) -> tuple[float, dict[int, tuple[Block, ...]]]:
    """Return the shortest step of a plan in any order of its blocks, and such an order.

    Branch and bound over active orders (Giffler and Thompson, 1960): of the blocks that can come next, the
    one that would end first is next on its device, or another that could start before that end. Frames leave
    in the order in which they are made. Raises InvalidRequest above `nodes_max` partial orders.
    """
    search = _Orders(costs, plan, nodes_max)
    search.extend(_Partial.start(plan, costs.micro_batches))
    return search.best, search.order


class _Partial(NamedTuple):
    """Part of an order: when devices and links are free, and each micro-batch is ready for its next block."""

    free: dict[int, float]
    links: dict[tuple[int, int], float]
    ready: tuple[float, ...]
    following: tuple[int, ...]
    placed: tuple[Block, ...]

    @classmethod
    def start(cls, plan: Plan, micro_batches: int) -> _Partial:
        return cls(dict.fromkeys(plan.devices, 0.0), {}, (0.0,) * micro_batches, (0,) * micro_batches, ())


class _Orders:
    """The search of `best_order`."""

    def __init__(self, costs: Costs, plan: Plan, nodes_max: int) -> None:
        self._costs, self._plan, self._nodes_left = costs, plan, nodes_max
        self._path = [("F", stage) for stage in range(len(plan.stages))]
        self._path += [("B", stage) for stage in reversed(range(len(plan.stages)))]
        self._sums = [
            costs.sum_seconds(stage.first_unit, stage.end_unit, stage.devices) for stage in plan.stages
        ]
        self.best, self.order = inf, dict[int, tuple[Block, ...]]()

    def extend(self, partial: _Partial) -> None:
        """Try every block that may come next."""
        self._nodes_left -= 1
        if self._nodes_left < 0:
            raise InvalidRequest("too many orders of blocks", hint="The oracle is for tiny cases.")
        options = [self._timed(partial, micro_batch) for micro_batch in range(len(partial.ready))]
        possible = [option for option in options if option is not None]
        if not possible:
            self._finish(partial)
            return
        if self._least(partial) >= self.best:
            return
        end, device = min((end, device) for _, end, device, _ in possible)
        rivals = [option for option in possible if option[2] == device and option[0] <= end]
        for start, finish, _, micro_batch in sorted(rivals):
            if start < end or finish == end:
                self.extend(self._placed(partial, micro_batch, device, finish))

    def _timed(self, partial: _Partial, micro_batch: int) -> tuple[float, float, int, int] | None:
        """Return when a micro-batch's next block starts and ends, its device, and the micro-batch."""
        step = partial.following[micro_batch]
        if step == len(self._path):
            return None
        device = self._plan.stages[self._path[step][1]].replica_of(micro_batch)
        start = max(partial.free[device], partial.ready[micro_batch])
        return start, start + self._seconds(step, micro_batch), device, micro_batch

    def _seconds(self, step: int, micro_batch: int) -> float:
        kind, index = self._path[step]
        stage = self._plan.stages[index]
        device = stage.replica_of(micro_batch)
        forward, backward = self._costs.block_seconds(stage.first_unit, stage.end_unit, device, stage.memory)
        return forward if kind == "F" else backward

    def _placed(self, partial: _Partial, micro_batch: int, device: int, end: float) -> _Partial:
        step = partial.following[micro_batch]
        kind, index = self._path[step]
        links, ready = partial.links, end
        after = self._path[step + 1][1] if step + 1 < len(self._path) else index
        if after != index:
            target = self._plan.stages[after].replica_of(micro_batch)
            cut = self._plan.stages[max(index, after)].first_unit
            ready = max(end, links.get((device, target), 0.0)) + self._costs.frame_seconds(
                cut, device, target
            )
            links = {**links, (device, target): ready}
        block = Block("F" if kind == "F" else "B", index, micro_batch)
        return _Partial(
            {**partial.free, device: end},
            links,
            (*partial.ready[:micro_batch], ready, *partial.ready[micro_batch + 1 :]),
            (*partial.following[:micro_batch], step + 1, *partial.following[micro_batch + 1 :]),
            (*partial.placed, block),
        )

    def _least(self, partial: _Partial) -> float:
        """Return a lower bound of the steps that extend this partial order."""
        until = dict(partial.free)
        least = 0.0
        for micro_batch, step in enumerate(partial.following):
            path = partial.ready[micro_batch]
            for later in range(step, len(self._path)):
                index = self._path[later][1]
                seconds = self._seconds(later, micro_batch)
                until[self._plan.stages[index].replica_of(micro_batch)] += seconds
                path += seconds
            least = max(least, path + self._sums[0])
        for stage, seconds in zip(self._plan.stages, self._sums, strict=True):
            least = max(least, max(until[device] for device in stage.devices) + seconds)
        return least

    def _finish(self, partial: _Partial) -> None:
        step = self._least(partial)
        if step < self.best:
            self.best = step
            self.order = {
                device: tuple(
                    block
                    for block in partial.placed
                    if self._plan.stages[block.stage].replica_of(block.micro_batch) == device
                )
                for device in self._plan.devices
            }
