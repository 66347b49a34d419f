"""Chooses the devices that hold further copies of a stage, so that a death loses no unit.

A stage with replicas already has copies. Other stages get shadows: devices that compute for other stages or
none, hold the units too, and apply the same summed gradients. Each shadow costs the memory of a stage, and
each step the transfer of its parameter bytes.
"""

from __future__ import annotations

import msgspec

from elastane_planner.costs import Costs
from elastane_planner.memory import MemoryNeeds
from elastane_planner.plan import Plan


def with_shadows(costs: Costs, needs: MemoryNeeds, plan: Plan, copies: int, devices: tuple[int, ...]) -> Plan:
    """Return the plan with shadows, so that each stage has `copies` holders besides its first replica.

    `devices` with room come first, then those that shadow the fewest bytes, compute nothing, and have the
    fastest link. Fewer copies if devices run out.
    """
    computing, bandwidth = set(plan.devices), costs.cluster.bandwidth
    held: dict[int, int] = {}
    room = {device: need.total for device, need in needs.by_device(plan).items()}
    shadows: list[tuple[int, ...]] = []
    for stage in plan.stages:
        more = needs.shadow(stage.first_unit, stage.end_unit).total

        def rank(device: int, more: int = more, own: tuple[int, ...] = stage.devices) -> tuple[float, ...]:
            limit = costs.cluster.devices[device].memory_bytes
            full = limit is not None and room.get(device, 0) + more > limit
            slowest = min(bandwidth[source][device] for source in own)
            return full or not slowest, held.get(device, 0), device in computing, -slowest, device

        others = sorted((device for device in devices if device not in stage.devices), key=rank)
        chosen = tuple(others[: max(0, copies + 1 - stage.replicas)])
        for device in chosen:
            held[device] = held.get(device, 0) + more
            room[device] = room.get(device, 0) + more
        shadows.append(chosen)
    return msgspec.structs.replace(plan, shadows=tuple(shadows) if any(shadows) else ())


def copies_missing(plan: Plan, copies: int) -> list[int]:
    """Return the stages with fewer than `copies` holders besides their first replica."""
    return [
        index
        for index, stage in enumerate(plan.stages)
        if stage.replicas + len(plan.shadows_of(index)) <= copies
    ]
