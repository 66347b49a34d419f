"""Local search around a plan, judged by the simulated step.

The plans of the dynamic programme have the least load, which is not the shortest step. From each of them the
search moves boundaries by one and two, replicas from stage to stage, both at once, merges and splits stages,
and swaps devices, as long as the step improves. Deterministic unless the time budget runs out.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from itertools import islice
from math import inf

import msgspec

from elastane_planner.costs import Costs
from elastane_planner.memory import MemoryNeeds, Misfit
from elastane_planner.migration import migration
from elastane_planner.plan import Plan, Stage
from elastane_planner.simulate import least_seconds, step_seconds

GAIN_MIN = 1e-9
"""A plan is better if its objective is less by this share: ties are not to be decided by rounding."""


LOOKS = 20
"""Lower bounds that take about as long as a simulation, and so count for one in a bound on simulations."""

SPLITS = 3
"""Places at which a stage is cut for one division of its replicas."""


class Judged(msgspec.Struct, frozen=True):
    """A plan with memory modes chosen. objective: seconds of a step, plus a step's share of the moves."""

    plan: Plan
    objective: float
    step_seconds: float


class Judge:
    """Simulates plans, each once, until the budget is spent, but always finds one plan that fits.

    Created once for a search. `misfit`: of the plans that did not fit, the one that lacks least memory.
    """

    def __init__(
        self,
        costs: Costs,
        needs: MemoryNeeds,
        *,
        dress: Callable[[Plan], Plan] = lambda plan: plan,
        held: Mapping[int, Set[int]] | None = None,
        horizon_steps: int = 1000,
        simulations_max: int | None = None,
        seconds: Callable[[], float] | None = None,
        seconds_max: float = inf,
    ) -> None:
        """dress: adds the shadows. held: what devices hold now, to count moves; None: moves are free.

        seconds: a clock, and the time on it at which the budget ends; None: no time limit.
        """
        self.costs = costs
        self.simulations = 0
        self.spent = False
        self._looks = 0
        self.misfit: Misfit | None = None
        self._needs, self._dress, self._held, self._horizon = needs, dress, held, horizon_steps
        self._simulations_max: float = inf if simulations_max is None else simulations_max
        self._seconds, self._seconds_max = seconds, seconds_max
        self._known: dict[Plan, Judged | None] = {}
        self._least: dict[Plan, float] = {}
        self.allow(1.0)

    def allow(self, share: float) -> None:
        """Allow the use of this share of the remaining budget from now on."""
        self._simulations_end = self.simulations + share * (self._simulations_max - self.simulations)
        self._looks_end = self._looks + share * (LOOKS * self._simulations_max - self._looks)
        if self._seconds is not None:
            now = self._seconds()
            self._seconds_end = now + share * max(0.0, self._seconds_max - now)
        self.spent = False

    def ended(self) -> bool:
        """Return whether the allowed share is spent, and record it."""
        late = self._seconds is not None and self._seconds() >= self._seconds_end
        many = self.simulations >= self._simulations_end or self._looks >= self._looks_end
        if not self.simulations:
            return False  # whatever the budget, one plan is needed
        self.spent = self.spent or late or many
        return self.spent

    def judge(self, plan: Plan, below: float = inf) -> Judged | None:
        """Return a judged plan if it is below a bound; None also if it does not fit or cannot run.

        Plans whose lower bound is not below are not simulated, nor are new plans after the budget is spent.
        """
        if plan not in self._known:
            least = self._least.get(plan)
            if least is None:
                self._looks += 1
                least = self._least[plan] = least_seconds(self.costs, plan)
            if self.ended() or least >= below or least == inf:
                return None
            self._known[plan] = self._simulated(plan, below)
        judged = self._known[plan]
        return judged if judged is not None and judged.objective < below else None

    def _simulated(self, plan: Plan, below: float) -> Judged | None:
        fitted = self._needs.fit(self._dress(plan))
        if isinstance(fitted, Misfit):
            lack = fitted.bytes - fitted.memory_bytes
            if self.misfit is None or lack < self.misfit.bytes - self.misfit.memory_bytes:
                self.misfit = fitted
            return None
        self.simulations += 1
        seconds = objective = step_seconds(self.costs, fitted)
        if self._held is not None and seconds < inf:
            moving = migration(self.costs.profile, self.costs.cluster, self._held, fitted)
            objective += moving.seconds / self._horizon
        return Judged(fitted, objective, seconds) if objective < inf else None


class Bounds(msgspec.Struct, frozen=True):
    """Constraints of plans: number of stages, allowed cuts, devices that may compute."""

    stages_min: int
    stages_max: int
    cuts: tuple[int, ...]
    devices: tuple[int, ...]


def climbed(judge: Judge, start: Judged, moves: Callable[[Plan], Iterable[Plan]]) -> Judged:
    """Return the plan that no move improves; of a plan's moves the first improvement is taken."""
    best, improved = start, True
    while improved and not judge.spent:
        improved = False
        for plan in moves(bare(best.plan)):
            if judge.spent:
                break
            found = judge.judge(plan, best.objective * (1 - GAIN_MIN))
            if found is not None:
                best, improved = found, True
                break
    return best


def bare(plan: Plan) -> Plan:
    """Return only a plan's stages and devices, without the judge's choices: memory and shadows."""
    return Plan(tuple(Stage(stage.first_unit, stage.end_unit, stage.devices) for stage in plan.stages))


Groups = tuple[tuple[int, ...], ...]
"""Devices by stage."""


def neighbours(plan: Plan, bounds: Bounds, costs: Costs) -> Iterator[Plan]:
    """Yield plans with other boundaries, replica counts or stages; each replica has a micro-batch."""
    for found in _neighbours(plan, bounds, costs):
        if all(stage.replicas <= costs.micro_batches for stage in found.stages):
            yield found


def _neighbours(plan: Plan, bounds: Bounds, costs: Costs) -> Iterator[Plan]:
    begins = tuple(stage.first_unit for stage in plan.stages)
    groups = tuple(stage.devices for stage in plan.stages)
    units = len(costs.profile.units)
    idle = tuple(device for device in bounds.devices if device not in plan.devices)
    for _, shifted in _shifted(begins, bounds.cuts):
        yield _built(shifted, groups, units)
    for dealt in _moved(groups, idle):
        yield _built(begins, dealt, units)
    if len(groups) < bounds.stages_max:
        yield from _split(plan, bounds, idle, costs)
    if len(groups) > max(bounds.stages_min, 1):
        for place in range(1, len(groups)):
            joined = (groups[place - 1] + groups[place])[: costs.micro_batches]
            merged = (*groups[: place - 1], joined, *groups[place + 1 :])
            yield _built(begins[:place] + begins[place + 1 :], merged, units)
    for place, shifted in _shifted(begins, bounds.cuts):
        for source, target in ((place - 1, place), (place, place - 1)):
            if len(groups[source]) > 1:
                yield _built(shifted, _dealt(groups, source, target), units)


def swaps(plan: Plan, bounds: Bounds, alike: Sequence[int]) -> Iterator[Plan]:
    """Yield plans with two devices swapped. alike: a number for each device, equal if interchangeable."""
    idle = len(plan.stages)
    seats = [(index, device) for index, stage in enumerate(plan.stages) for device in stage.devices]
    seats += [(idle, device) for device in bounds.devices if device not in plan.devices]
    seen: set[tuple[int, int, int, int]] = set()
    for place, (stage, device) in enumerate(seats):
        for other_stage, other in seats[place + 1 :]:
            key = (stage, alike[device], other_stage, alike[other])
            if stage == idle or alike[device] == alike[other] or (stage != other_stage and key in seen):
                continue
            seen.add(key)
            change = {device: other, other: device}
            groups = [tuple(change.get(each, each) for each in held.devices) for held in plan.stages]
            yield _built([held.first_unit for held in plan.stages], groups, plan.stages[-1].end_unit)


def _built(begins: Sequence[int], groups: Sequence[tuple[int, ...]], units: int) -> Plan:
    """Return the plan whose stages begin at these units."""
    ends = (*begins[1:], units)
    return Plan(tuple(map(Stage, begins, ends, groups)))


def _shifted(begins: tuple[int, ...], cuts: Sequence[int]) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Yield stage beginnings with one boundary moved by one or two cuts, and the stage that it begins."""
    for place in range(1, len(begins)):
        at = bisect_left(cuts, begins[place])
        for step in (-1, 1, -2, 2):
            if 0 <= at + step < len(cuts):
                moved = cuts[at + step]
                after = begins[place + 1] if place + 1 < len(begins) else inf
                if begins[place - 1] < moved < after:
                    yield place, (*begins[:place], moved, *begins[place + 1 :])


def _moved(groups: Groups, idle: tuple[int, ...]) -> Iterator[Groups]:
    """Yield groups in which one stage has one more replica and at most one other stage has one less."""
    for source, given in enumerate(groups):
        if len(given) > 1:
            for target in range(len(groups)):
                if target != source:
                    yield _dealt(groups, source, target)
            yield (*groups[:source], given[:-1], *groups[source + 1 :])
    for target, given in enumerate(groups):
        if idle:
            yield (*groups[:target], (*given, idle[0]), *groups[target + 1 :])


def _dealt(groups: Groups, source: int, target: int) -> Groups:
    """Return the groups with one device moved from one stage to another, in the same order."""
    counts = [len(group) for group in groups]
    counts[source] -= 1
    counts[target] += 1
    order = iter([device for group in groups for device in group])
    return tuple(tuple(islice(order, count)) for count in counts)


def _split(plan: Plan, bounds: Bounds, idle: tuple[int, ...], costs: Costs) -> Iterator[Plan]:
    """Yield plans with one stage split: every division of its replicas, with the work divided likewise."""
    units = len(costs.profile.units)
    for place, stage in enumerate(plan.stages):
        inner = [cut for cut in bounds.cuts if stage.first_unit < cut < stage.end_unit]
        devices = stage.devices if stage.replicas > 1 else stage.devices + idle[:1]
        if not inner or len(devices) < 2:
            continue
        begins = [each.first_unit for each in plan.stages]
        groups = [each.devices for each in plan.stages]
        work = costs.seconds(stage.first_unit, stage.end_unit)
        for count in range(1, len(devices)):
            share = work * count / len(devices)
            nearest = sorted(inner, key=lambda cut: abs(costs.seconds(stage.first_unit, cut) - share))
            for cut in nearest[:SPLITS]:
                yield _built(
                    [*begins[: place + 1], cut, *begins[place + 1 :]],
                    [*groups[:place], devices[:count], devices[count:], *groups[place + 1 :]],
                    units,
                )
