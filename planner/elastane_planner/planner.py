"""Searches for the best plan of a model on devices, within a budget.

- Order of the devices: recursive, by least cuts (`device_order`).
- Least load: a plan for each number of stages, simulated (`partition`).
- Local search from each of them (`search`), then device swaps with it from the best.
- Other orders of devices, rotations and reversals as far as they are cheap: all of the above.
- Pairs of moves from the best plan, if plans have few neighbours; all plans, if there are few.
- The current plan stays unless another gains enough, including the cost of moving (`migration`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set
from itertools import chain, permutations
from math import comb, inf, perm
from typing import NamedTuple

import msgspec

from elastane_planner.cluster import Cluster
from elastane_planner.costs import Costs
from elastane_planner.device_order import device_order, groups
from elastane_planner.enumeration import plans
from elastane_planner.errors import Disconnected, InvalidPlan, InvalidRequest, PlanError, TooFewStages
from elastane_planner.memory import MODES, MemoryNeeds, Misfit, Need
from elastane_planner.migration import choose, holdings, migration
from elastane_planner.partition import OPERATIONS_MAX, Fits, Grain, grains, operations, partitions
from elastane_planner.plan import Plan, Stage
from elastane_planner.profile import Profile
from elastane_planner.search import GAIN_MIN, Bounds, Judge, Judged, bare, climbed, neighbours, swaps
from elastane_planner.shadows import copies_missing, with_shadows
from elastane_planner.simulate import Timeline, step_seconds, timeline

PHASE_SHARE = 0.4
"""Share of the remaining budget for each stage of the search except the last."""

SIMULATED_BLOCKS_MAX, BLOCKS_OVERHEAD = 2_000_000, 300
"""Bound where neither a clock nor a count is given, and what a simulation takes beside its blocks."""

SWAPPED_MAX = 4
"""Plans of local search whose devices are swapped."""

EXHAUSTED_MAX = 50_000
"""Up to so many plans, all are looked at."""

PAIRED_MAX, PAIRS_MAX = 8, 60_000
"""Plans from which pairs of moves are tried, and about how many pairs at most."""


class Gain(NamedTuple):
    """Result of one stage of the search: its name, the best step so far, simulations so far."""

    search: str
    step_seconds: float
    simulations: int


class Answer(msgspec.Struct, frozen=True):
    """A plan, its step time and memory, and how it was found. `notes` are sentences for people.

    step_seconds is 0 if no time of a unit is known. memory: by device that holds a unit.
    """

    plan: Plan
    step_seconds: float
    timeline: Timeline
    memory: dict[int, Need]
    gains: tuple[Gain, ...] = ()
    notes: tuple[str, ...] = ()


def make_plan(
    profile: Profile,
    cluster: Cluster,
    micro_batches: int,
    *,
    stages: tuple[int, int | None] = (1, None),
    shadows: int = 0,
    barred: Set[int] = frozenset(),
    keep: Plan | None = None,
    held: Mapping[int, Set[int]] | None = None,
    horizon_steps: int = 1000,
    seconds: Callable[[], float] | None = None,
    budget_seconds: float = 1.0,
    simulations_max: int | None = None,
) -> Answer:
    """Return the plan with the shortest predicted step that was found. Called by masters and `elastane plan`.

    stages: minimum and maximum (None: no bound). shadows: further copies of each unit. barred: devices that
    only give their units away. keep: the current plan. held: units by device, to compute moves; None: those
    of `keep`. horizon_steps: steps until the next expected change, within which a move must pay off.
    seconds: a clock, for `budget_seconds` of search; simulations_max bounds it by count. Without a clock the
    answer is the same in every process; it never depends on the order in which devices are given.
    Raises InvalidRequest, InvalidPlan, Disconnected, TooFewStages and DoesNotFit.
    """
    low, high = _checked(profile, cluster, micro_batches, stages, shadows, barred, horizon_steps)
    start = seconds() if seconds is not None else 0.0
    notes = []
    known = profile
    if not profile.measured:
        units = (
            msgspec.structs.replace(unit, forward_seconds=1.0, backward_seconds=2.0) for unit in profile.units
        )
        known = Profile(tuple(units))
        notes.append("no time of a unit is known: all are assumed to take equally long")
    ranking = _Ranking(cluster)
    if seconds is None and simulations_max is None:
        size = BLOCKS_OVERHEAD + 2 * micro_batches * min(high, len(profile.units))
        simulations_max = max(100, SIMULATED_BLOCKS_MAX // size)
    search = _Search(
        Costs(known, ranking.cluster, micro_batches),
        bounds=Bounds(low, high, profile.cuts, ranking.to_ranks(_allowed(cluster, barred))),
        shadows=shadows,
        keep=None if keep is None else ranking.plan_to_ranks(keep),
        held=None if held is None else ranking.held_by_ranks(held),
        horizon_steps=horizon_steps,
        simulations_max=simulations_max,
        seconds=seconds,
        seconds_max=start + budget_seconds,
    )
    found = search.run()
    plan = ranking.plan_of_ranks(found.plan if keep is not None else search.in_order(found.plan))
    shown = timeline(known, cluster, plan, micro_batches)
    return Answer(
        plan=plan,
        step_seconds=shown.step_seconds if profile.measured else 0.0,
        timeline=shown,
        memory=MemoryNeeds(Costs(known, cluster, micro_batches)).by_device(plan),
        gains=tuple(search.gains),
        notes=(*notes, *search.notes),
    )


class _Search:
    """One search, on devices in the order of their rank."""

    def __init__(
        self,
        costs: Costs,
        *,
        bounds: Bounds,
        shadows: int,
        keep: Plan | None,
        held: Mapping[int, Set[int]] | None,
        horizon_steps: int,
        simulations_max: int | None,
        seconds: Callable[[], float] | None,
        seconds_max: float,
    ) -> None:
        self.gains: list[Gain] = []
        self.notes: list[str] = []
        self._costs, self._bounds, self._shadows, self._keep = costs, bounds, shadows, keep
        self._held = holdings(keep) if held is None and keep is not None else held
        self._horizon = horizon_steps
        self._needs = MemoryNeeds(costs)
        self._judge = Judge(
            costs,
            self._needs,
            dress=self._dressed,
            held=self._held,
            horizon_steps=horizon_steps,
            simulations_max=simulations_max,
            seconds=seconds,
            seconds_max=seconds_max,
        )
        self._alike = _alike(costs.cluster, self._held or {})

    def run(self) -> Judged:
        """Return the best plan found. Raises DoesNotFit if none keeps to the memory."""
        orders = self._orders()
        best = self._starts(orders[0])
        self._gained("least load", best)
        phases: list[tuple[str, Callable[[list[Judged]], list[Judged]]]] = [("local search", self._local)]
        if len(set(self._alike)) > 1:
            phases.append(("device swaps", self._swapped))
        if len(orders) > 1:
            phases.append(("other orders of devices", lambda _: self._other_orders(orders[1:])))
        if self._count() <= EXHAUSTED_MAX:
            phases.append(("all plans", self._exhausted))
        elif self._pairs_from(best[0].plan):
            phases.append(("pairs of moves", self._paired))
        spent = False
        for name, phase in phases:
            self._judge.allow(1.0 if name == phases[-1][0] else PHASE_SHARE)
            best = _distinct(phase(best) + best)
            spent |= self._judge.spent
            self._gained(name, best)
        found = best[0]
        if spent:
            self.notes.append(f"the budget ended the search after {self._judge.simulations} simulations")
        if missing := copies_missing(found.plan, self._shadows):
            stages = ", ".join(map(str, missing))
            self.notes.append(f"no device is left to shadow stage {stages}: a death may lose its units")
        return self._kept(found) or found

    def _local(self, found: list[Judged]) -> list[Judged]:
        return self._climbed(found, self._neighbours)

    def _swapped(self, found: list[Judged]) -> list[Judged]:
        return self._climbed(found[:SWAPPED_MAX], self._all_moves)

    def _other_orders(self, orders: Iterable[tuple[int, ...]]) -> list[Judged]:
        found: list[Judged] = []
        for order in orders:
            if not self._judge.ended():
                found += self._climbed(self._judged(self._partitions(order)), self._all_moves)
        return found

    def _paired(self, found: list[Judged]) -> list[Judged]:
        return self._climbed(found[: self._pairs_from(found[0].plan)], self._two_moves)

    def _exhausted(self, found: list[Judged]) -> list[Judged]:
        """Try all plans, with equal devices in one order only."""
        judge, bounds, best = self._judge, self._bounds, found[0]
        seen = set()
        for used in range(len(bounds.devices), 0, -1):
            for order in permutations(bounds.devices, used):
                key = tuple(self._alike[device] for device in order)
                if key in seen:
                    continue
                seen.add(key)
                for plan in plans(self._costs, order, prefixes=False):
                    if judge.spent:
                        return [best]
                    if bounds.stages_min <= len(plan.stages) <= bounds.stages_max:
                        best = judge.judge(plan, best.objective * (1 - GAIN_MIN)) or best
        return [best]

    def _count(self) -> int:
        """Return an upper bound of the number of plans, counting every order of devices."""
        cuts, devices = len(self._bounds.cuts), len(self._bounds.devices)
        return sum(perm(devices, used) * comb(used - 1 + cuts, used - 1) for used in range(1, devices + 1))

    def _pairs_from(self, plan: Plan) -> int:
        """Return from how many plans pairs of moves are tried: fewer if they have many neighbours."""
        near = sum(1 for _ in self._all_moves(bare(plan)))
        return min(PAIRED_MAX, PAIRS_MAX // (near * near + 1))

    def _climbed(self, starts: Iterable[Judged], moves: Callable[[Plan], Iterable[Plan]]) -> list[Judged]:
        """Return the local optimum reached from each start."""
        return [climbed(self._judge, start, moves) for start in starts]

    def _orders(self) -> list[tuple[int, ...]]:
        """Return orders of the devices: the recursive one, then rotations and reversals of it and the ranks.

        As many as are cheap. Orders that differ only in the places of equal devices count once.
        """
        costs, devices = self._costs, self._bounds.devices
        first = device_order(costs.cluster, devices)
        self._looks = grains(costs, len(first), self._bounds.stages_max)
        self._tell(self._looks)
        lines = [way for line in (first, devices) for way in (line, line[::-1])]
        orders = [line[turn:] + line[:turn] for turn in range(len(first)) for line in lines]
        distinct: dict[tuple[int, ...], tuple[int, ...]] = {}
        for order in orders:
            distinct.setdefault(tuple(self._alike[device] for device in order), order)
        most = int(OPERATIONS_MAX // operations(self._looks, len(first), self._bounds.stages_max))
        return list(distinct.values())[: max(1, most)]

    def _starts(self, order: tuple[int, ...]) -> list[Judged]:
        """Return starting plans, best first."""
        found = self._judged(self._partitions(order))
        if self._keep is not None and self._is_plan(self._keep):
            found += self._judged([bare(self._keep)])
        if not found:
            misfit = self._judge.misfit
            if misfit is not None:
                raise self._needs.does_not_fit(misfit)
            raise Disconnected("no plan has a link wherever one is needed", hint="Measure the links again.")
        return _distinct(found)

    def _partitions(self, order: tuple[int, ...]) -> list[Plan]:
        """Return the plans of least load; with memory limits, also those of stages that fit or may fit."""
        rooms: list[Fits | None] = [None]
        if self._needs.limited:
            rooms += [self._room(flying_all) for flying_all in (False, True)]
        costs, most = self._costs, self._bounds.stages_max
        found = {
            plan: None
            for look in self._looks
            for room in rooms
            for stages, (_, plan) in partitions(costs, order, most, look, room).items()
            if stages >= self._bounds.stages_min
        }
        return list(found)

    def _judged(self, plans: Iterable[Plan]) -> list[Judged]:
        return [judged for plan in plans if (judged := self._judge.judge(plan)) is not None]

    def in_order(self, plan: Plan) -> Plan:
        """Return the plan with interchangeable devices in the order of their ranks."""
        free: dict[int, list[int]] = {}
        for device in reversed(self._bounds.devices):
            free.setdefault(self._alike[device], []).append(device)
        held = [*plan.devices, *(device for shadows in plan.shadows for device in shadows)]
        return _renamed(plan, {device: free[self._alike[device]].pop() for device in dict.fromkeys(held)})

    def _room(self, flying_all: bool) -> Fits:
        """Return whether a stage fits with one of its micro-batches in flight, or with all."""
        needs, count = self._needs, self._costs.micro_batches

        def fits(first: int, end: int, devices: tuple[int, ...]) -> bool:
            local = -(-count // len(devices))
            flying = local if flying_all else 1
            options = [
                needs.replica(first, end, local, flying, memory, replicas=len(devices)).total
                for memory in MODES
            ]
            limits = [self._costs.cluster.devices[device].memory_bytes for device in devices]
            return min(options) <= min((limit for limit in limits if limit is not None), default=inf)

        return fits

    def _neighbours(self, plan: Plan) -> Iterable[Plan]:
        return neighbours(plan, self._bounds, self._costs)

    def _all_moves(self, plan: Plan) -> Iterable[Plan]:
        return chain(swaps(plan, self._bounds, self._alike), self._neighbours(plan))

    def _two_moves(self, plan: Plan) -> Iterable[Plan]:
        seen = {plan}
        for near in self._all_moves(plan):
            for other in self._all_moves(near):
                if other not in seen:
                    seen.add(other)
                    yield other

    def _dressed(self, plan: Plan) -> Plan:
        """Return the plan with its shadows."""
        if not self._shadows:
            return plan
        return with_shadows(self._costs, self._needs, plan, self._shadows, self._bounds.devices)

    def _kept(self, best: Judged) -> Judged | None:
        """Return the current plan if no other gains enough over it; None if it is replaced."""
        keep = self._keep
        if keep is None:
            return None
        if not self._is_plan(keep) or isinstance(self._needs.fit(keep), Misfit):
            self.notes.append("the current plan no longer fits: its devices, stages or memory have changed")
            return None
        if copies_missing(keep, self._shadows) and not copies_missing(best.plan, self._shadows):
            self.notes.append("the current plan has fewer copies of its units than requested")
            return None
        running = step_seconds(self._costs, keep)
        if best.plan == keep:
            self.notes.append("the current plan is the best one found")
            return best
        costs = self._costs
        moving = migration(costs.profile, costs.cluster, self._held or {}, best.plan)
        choice = choose(running, best.step_seconds, moving, self._horizon)
        self.notes.append(choice.reason)
        return Judged(keep, running, running) if choice.keeps else None

    def _is_plan(self, plan: Plan) -> bool:
        """Return whether a plan is within the bounds."""
        costs, bounds = self._costs, self._bounds
        try:
            plan.check(len(costs.profile.units), len(costs.cluster.devices), bounds.cuts)
        except InvalidPlan:
            return False
        holding = holdings(plan).keys() <= set(bounds.devices)
        return holding and bounds.stages_min <= len(plan.stages) <= bounds.stages_max

    def _gained(self, search: str, found: list[Judged]) -> None:
        self.gains.append(Gain(search, found[0].step_seconds, self._judge.simulations))

    def _tell(self, looks: Iterable[Grain]) -> None:
        """Note what was coarsened."""
        cuts, most = self._bounds.cuts, min(len(self._bounds.devices), self._costs.micro_batches)
        for look in looks:
            if len(look.cuts) < len(cuts) or len(look.replicas) < most:
                numbers = ", ".join(map(str, look.replicas))
                self.notes.append(
                    f"coarsened: first plans with {numbers} replicas a stage are cut at {len(look.cuts)} of "
                    f"{len(cuts)} places; local search takes any number and place"
                )


class _Ranking:
    """The cluster with its devices in a fixed order: the fastest first, then by name."""

    def __init__(self, cluster: Cluster) -> None:
        devices, bandwidth = cluster.devices, cluster.bandwidth
        self._given = sorted(
            range(len(devices)), key=lambda index: (-devices[index].speed, devices[index].name)
        )
        self.rank = {device: rank for rank, device in enumerate(self._given)}
        self.cluster = Cluster(
            tuple(devices[index] for index in self._given),
            tuple(tuple(bandwidth[u][v] for v in self._given) for u in self._given),
        )

    def to_ranks(self, devices: Iterable[int]) -> tuple[int, ...]:
        """Return the ranks of devices as given, the lowest first."""
        return tuple(sorted(self.rank[device] for device in devices))

    def held_by_ranks(self, held: Mapping[int, Set[int]]) -> dict[int, Set[int]]:
        """Return what devices hold, by rank, without devices that are gone."""
        return {self.rank[device]: units for device, units in held.items() if device in self.rank}

    def plan_to_ranks(self, plan: Plan) -> Plan:
        """Return a plan of devices as given, by rank. Unknown devices stay unknown."""
        return _renamed(plan, self.rank)

    def plan_of_ranks(self, plan: Plan) -> Plan:
        """Return a plan of ranks, of devices as given."""
        return _renamed(plan, dict(enumerate(self._given)))


def _renamed(plan: Plan, names: Mapping[int, int]) -> Plan:
    def renamed(devices: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(names.get(device, -1) for device in devices)

    stages = tuple(
        Stage(stage.first_unit, stage.end_unit, renamed(stage.devices), stage.memory) for stage in plan.stages
    )
    return Plan(stages, tuple(map(renamed, plan.shadows)))


def _distinct(found: Iterable[Judged]) -> list[Judged]:
    """Return each plan once, the best first."""
    return sorted({judged.plan: judged for judged in found}.values(), key=lambda judged: judged.objective)


def _allowed(cluster: Cluster, barred: Set[int]) -> list[int]:
    return [device for device in range(len(cluster.devices)) if device not in barred]


def _alike(cluster: Cluster, held: Mapping[int, Set[int]]) -> tuple[int, ...]:
    """Return a number for each device, equal for interchangeable devices."""
    bandwidth, count = cluster.bandwidth, len(cluster.devices)

    def same(u: int, v: int) -> bool:
        one, other = cluster.devices[u], cluster.devices[v]
        return (
            msgspec.structs.replace(one, name=other.name) == other
            and held.get(u) == held.get(v)
            and bandwidth[u][v] == bandwidth[v][u]
            and all(
                bandwidth[u][w] == bandwidth[v][w] and bandwidth[w][u] == bandwidth[w][v]
                for w in range(count)
                if w not in (u, v)
            )
        )

    numbers: list[int] = []
    for device in range(count):
        numbers.append(next((numbers[other] for other in range(device) if same(device, other)), device))
    return tuple(numbers)


def _checked(
    profile: Profile,
    cluster: Cluster,
    micro_batches: int,
    stages: tuple[int, int | None],
    shadows: int,
    barred: Set[int],
    horizon_steps: int,
) -> tuple[int, int]:
    """Return the minimum and maximum possible number of stages. Raises PlanError."""
    for name, value, least in (
        ("micro_batches", micro_batches, 1),
        ("least number of stages", stages[0], 1),
        ("most stages", stages[0] if stages[1] is None else stages[1], stages[0]),
        ("shadows", shadows, 0),
        ("horizon_steps", horizon_steps, 1),
    ):
        if value < least:
            raise InvalidRequest(f"{name} is {value}, and at least {least}", value=value, least=least)
    devices = _allowed(cluster, barred)
    if not devices:
        raise InvalidRequest("every device is barred", hint="Leave at least one device to hold the units.")
    parts = groups(cluster)
    if len(parts) > 1:
        names = [", ".join(cluster.devices[device].name for device in part) for part in parts]
        raise Disconnected(
            f"no links lead from one group of devices to another and back: {' | '.join(names)}",
            hint="Measure the missing links, or plan for one of the groups.",
            groups=" | ".join(names),
        )
    possible = min(len(devices), len(profile.cuts) + 1)
    if stages[0] > possible:
        raise TooFewStages(
            f"at least {stages[0]} stages are asked for; {len(devices)} devices, and units divided at "
            f"{len(profile.cuts)} places, make {possible} at most",
            hint="Ask for fewer stages, or give more devices or units.",
            stages_max=possible,
        )
    return stages[0], min(possible, inf if stages[1] is None else stages[1])  # type: ignore[return-value]


__all__ = ["Answer", "Gain", "PlanError", "make_plan"]
