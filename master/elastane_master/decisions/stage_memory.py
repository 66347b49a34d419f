"""Keeps a pipeline's stages within the memory limits of its workers.

    a worker joins      the job needs enough workers to hold the model, if all had as much memory as the
                    largest; with fewer it waits, and if no number suffices, the worker is refused
    a worker leaves     the same, with the remaining workers
    a plan is chosen    its stages keep activations, or run forwards again, so that they fit

Optimizer state and activations are counted as far as the script's profile has them.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

import msgspec

from elastane_planner.cluster import Cluster, Device
from elastane_planner.costs import Costs
from elastane_planner.links import UNKNOWN_BYTES_PER_SECOND
from elastane_planner.memory import MemoryNeeds, Misfit
from elastane_planner.plan import Plan, Stage
from elastane_planner.profile import Profile

SEARCHED_MAX = 512
"""Workers times units up to which plans are searched: within a decision, for which the whole master waits."""


def workers_least(profile: Profile, micro_batches: int, workers_most: int, memory_bytes: int) -> int:
    """Return the smallest number of workers, each with this much memory, that can hold the model.

    Raises DoesNotFit, which names a stage, if more than workers_most would be needed. For models beyond
    `SEARCHED_MAX` only weights and optimizer are counted, and they are not refused.
    """
    count = min(workers_most, micro_batches)
    if count * len(profile.units) > SEARCHED_MAX:
        held = sum(unit.parameter_bytes + unit.optimizer_bytes for unit in profile.units)
        return min(count, max(1, -(-held // memory_bytes)))
    least = _searched(profile, micro_batches, count, memory_bytes)
    if least is None or least > count:
        needs = MemoryNeeds(_costs(profile, micro_batches, count, memory_bytes))
        misfit = needs.fit(_one_each(profile, count))
        if isinstance(misfit, Misfit):
            raise needs.does_not_fit(misfit)
    return count if least is None else min(least, count)


@lru_cache(maxsize=64)
def _searched(profile: Profile, micro_batches: int, count: int, memory_bytes: int) -> int | None:
    """Return the smallest sufficient number of devices; None: no number suffices.

    Cached: it takes up to half a second, and is needed whenever workers come and leave."""
    costs = _costs(profile, micro_batches, count, memory_bytes)
    return MemoryNeeds(costs).least_devices(costs.cluster.devices[0])


def _costs(profile: Profile, micro_batches: int, count: int, memory_bytes: int) -> Costs:
    devices = [Device(f"worker {index}", memory_bytes=memory_bytes) for index in range(count)]
    return Costs(profile, Cluster.uniform(devices, UNKNOWN_BYTES_PER_SECOND), micro_batches)


def first_fit(costs: Costs, plans: Iterable[Plan]) -> Plan | str:
    """Return the first plan that fits the devices' memory, with memory modes of its stages.

    Returns why the first plan does not fit, if none does.
    """
    needs, problem = MemoryNeeds(costs), ""
    for plan in plans:
        found = needs.fit(_plain(plan))
        if isinstance(found, Plan):
            return found
        error = needs.does_not_fit(found) if not problem else None
        problem = problem or f"{error}; {error.hint if error else ''}"
    return problem


def _one_each(profile: Profile, count: int) -> Plan:
    """Return a plan with as many stages as possible, of about equally many units, with a device each."""
    starts = [0, *profile.cuts]
    stages = min(count, len(starts))
    chosen = [starts[len(starts) * stage // stages] for stage in range(stages)]
    ends = [*chosen[1:], len(profile.units)]
    bounds = zip(chosen, ends, strict=True)
    return Plan(tuple(Stage(first, end, (device,)) for device, (first, end) in enumerate(bounds)))


def _plain(plan: Plan) -> Plan:
    stages = tuple(msgspec.structs.replace(stage, memory="plain") for stage in plan.stages)
    return msgspec.structs.replace(plan, stages=stages)
