"""Plans of other systems for comparison: data parallel, GPipe, 1F1B, PipeDream, HetPipe, CSV schedules.

All are made synchronous (a step ends with the sums of its gradients), sum gradients in this project's order,
and run in the same simulator. They compare *plans*, not the speed of those systems.

    data parallel  one stage on all devices
    GPipe          a balanced stage for each device; all forwards, then all backwards
    1F1B           the same stages; forwards and backwards in turn
    PipeDream      stages and replicas of least W by its own cost model (SOSP 2019, section 3.1); 1F1B
    HetPipe        V / k virtual workers of k devices in a row, each with k balanced stages (ATC 2020, equal
                   distribution), for the best k; 1F1B
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from math import inf

import msgspec

from elastane_planner.amounts import bytes_text
from elastane_planner.cluster import Cluster
from elastane_planner.costs import Costs
from elastane_planner.errors import InvalidPlan
from elastane_planner.memory import MemoryNeeds
from elastane_planner.pipedream import coarse_bounds
from elastane_planner.plan import Plan, Stage
from elastane_planner.plan_csv import stages_of
from elastane_planner.profile import Profile
from elastane_planner.schedule import Order, gpipe, one_f_one_b
from elastane_planner.simulate import timeline

_GROUPS_MAX = 24
"""With more units, the plans are made of groups of them."""


_Cut = tuple[float, int, tuple[tuple[int, int, int], ...]]


class Baseline(msgspec.Struct, frozen=True):
    """A plan of another system and its simulated step: infinite if it cannot run, `problem` says why."""

    name: str
    plan: Plan
    step_seconds: float
    bubble: float = 0.0
    problem: str = ""


def baselines(
    profile: Profile, cluster: Cluster, micro_batches: int, devices: Sequence[int]
) -> tuple[Baseline, ...]:
    """Return the plans of the other systems on these devices, in this order (that of `device_order`).

    Stages take the cheapest memory that fits. Called by `elastane plan --baselines` and the benchmarks.
    """
    made = _Maker(profile, cluster, micro_batches, tuple(devices))
    balanced = made.balanced_plan()
    return (
        made.judged("data parallel", Plan((Stage(0, len(profile.units), tuple(devices)),)), one_f_one_b),
        made.judged("GPipe", balanced, gpipe),
        made.judged("1F1B", balanced, one_f_one_b),
        made.judged("PipeDream", made.pipedream(), one_f_one_b),
        made.hetpipe(),
    )


def scheduled(profile: Profile, cluster: Cluster, micro_batches: int, name: str, order: Order) -> Baseline:
    """Simulate a schedule read by `plan_csv.read_schedule`: its stages, with balanced units, on its rows.

    Called by `elastane plan --schedule`. Raises InvalidPlan if it does not fit the model or the cluster.
    """
    stages = stages_of(order)
    made = _Maker(profile, cluster, micro_batches, (), groups_max=max(_GROUPS_MAX, len(stages)))
    plan = made.plan_of(stages)
    plan.check(len(profile.units), len(cluster.devices), profile.cuts)
    return made.judged(name, plan, lambda *_: order)


class _Maker:
    def __init__(
        self,
        profile: Profile,
        cluster: Cluster,
        micro_batches: int,
        devices: tuple[int, ...],
        *,
        groups_max: int = _GROUPS_MAX,
    ) -> None:
        self._profile, self._cluster, self._micro_batches = profile, cluster, micro_batches
        self._devices = devices
        self._costs = Costs(profile, cluster, micro_batches)
        self._needs = MemoryNeeds(self._costs)
        self._bounds = coarse_bounds(profile, groups_max)

    def judged(self, name: str, plan: Plan, order_of: Callable[[Plan, int], Order]) -> Baseline:
        """Return a plan with its simulated step, or the reason why it cannot run."""
        order = order_of(plan, self._micro_batches)
        fitted = self._needs.fit(plan, order)
        if not isinstance(fitted, Plan):
            device = self._cluster.devices[fitted.device].name
            needed, there = bytes_text(fitted.bytes), bytes_text(fitted.memory_bytes)
            problem = f"stage {fitted.stage} needs {needed}; {device} has {there}"
            return Baseline(name, plan, inf, problem=problem)
        simulated = timeline(self._profile, self._cluster, fitted, self._micro_batches, order)
        problem = "" if simulated.step_seconds < inf else "a link that it needs is missing"
        return Baseline(name, fitted, simulated.step_seconds, simulated.bubble, problem)

    def balanced_plan(self) -> Plan:
        """Return a plan with one stage per device, or fewer if the model has fewer units."""
        stages = min(len(self._devices), len(self._bounds) - 1)
        return Plan(
            tuple(
                Stage(first, end, (device,))
                for (first, end), device in zip(self._balanced(stages), self._devices, strict=False)
            )
        )

    def plan_of(self, devices_of: Mapping[int, tuple[int, ...]]) -> Plan:
        """Return a plan with these devices for each stage, and balanced units. Raises InvalidPlan."""
        count = len(devices_of)
        if not count or list(devices_of) != list(range(count)):
            raise InvalidPlan(
                f"a schedule has the stages {', '.join(map(str, devices_of)) or '(none)'}",
                hint="Stages are numbered from 0, and none is left out.",
            )
        if count > len(self._bounds) - 1:
            raise InvalidPlan(
                f"a schedule has {count} stages, the model can have {len(self._bounds) - 1} at most",
                stages=count,
            )
        return Plan(
            tuple(
                Stage(first, end, devices)
                for (first, end), devices in zip(self._balanced(count), devices_of.values(), strict=True)
            )
        )

    def hetpipe(self) -> Baseline:
        """Return the best of HetPipe's plans: replica j of each stage is in virtual worker j."""
        count = len(self._devices)
        found = []
        for size in range(1, count + 1):
            if count % size or size > len(self._bounds) - 1:
                continue
            stages = tuple(
                Stage(first, end, self._devices[place::size])
                for place, (first, end) in enumerate(self._balanced(size))
            )
            found.append(self.judged("HetPipe", Plan(stages), one_f_one_b))
        return min(found, key=lambda baseline: baseline.step_seconds)

    def pipedream(self) -> Plan:
        """Return the plan with the least time of the slowest stage or link by PipeDream's cost model.

        A(l, d) = min over l' and r of max(A(l', d - r), 2 a / B, max(compute, 2 (r - 1) / r * parameters / B)
        / r) for groups [0, l) on the first d devices, per micro-batch. Ties: fewer stages.
        """
        bounds, devices, costs = self._bounds, self._devices, self._costs
        parameters = [unit.parameter_bytes for unit in self._profile.units]

        @cache
        def stage(first: int, end: int, low: int, high: int) -> float:
            group = devices[low:high]
            replicas = high - low
            compute = max(sum(costs.block_seconds(first, end, device)) for device in group)
            if replicas == 1:
                return compute
            size = sum(parameters[first:end])
            exchange = _over(2 * (replicas - 1) / replicas * size, costs.least_bandwidth(group))
            return max(compute, exchange) / replicas

        @cache
        def best(groups: int, used: int) -> _Cut:
            """(time, stages, ((first, end, replicas), ...)) of the first groups on `used` devices."""
            end = bounds[groups]
            found: _Cut = (stage(0, end, 0, used), 1, ((0, end, used),))
            for replicas in range(1, used):
                for before in range(1, groups):
                    first = bounds[before]
                    own = stage(first, end, used - replicas, used)
                    if own >= found[0]:
                        continue
                    time, stages, kept = best(before, used - replicas)
                    link = 2 * costs.frame_seconds(
                        first, devices[used - replicas - 1], devices[used - replicas]
                    )
                    option = (max(time, own, link), stages + 1, (*kept, (first, end, replicas)))
                    found = min(found, option)
            return found

        found = min(best(len(bounds) - 1, used) for used in range(1, len(devices) + 1))
        left = iter(devices)
        return Plan(
            tuple(
                Stage(first, end, tuple(next(left) for _ in range(replicas)))
                for first, end, replicas in found[2]
            )
        )

    def _balanced(self, stages: int) -> list[tuple[int, int]]:
        """Divide the units into this many stages so that the longest is as short as possible at speed 1."""
        bounds = self._bounds
        seconds = [
            sum(unit.forward_seconds + unit.backward_seconds for unit in self._profile.units[:bound])
            for bound in bounds
        ]

        @cache
        def best(groups: int, count: int) -> tuple[float, tuple[int, ...]]:
            if count == 1:
                return seconds[groups], (bounds[groups],)
            return min(
                (max(longest, seconds[groups] - seconds[before]), (*ends, bounds[groups]))
                for before in range(count - 1, groups)
                for longest, ends in (best(before, count - 1),)
            )

        ends = best(len(bounds) - 1, stages)[1]
        return list(zip((0, *ends), ends, strict=False))


def _over(size: float, bandwidth: float) -> float:
    if not size:
        return 0.0
    return size / bandwidth if bandwidth else inf
