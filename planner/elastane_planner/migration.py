"""Bytes that move from one plan to another, and when a better plan justifies them.

A device that gets a unit receives its parameters, buffers and optimizer state from a holder. All pairs
send at once. The objective of a change is

    step seconds * steps until the next change + bytes / bandwidth
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from math import inf

import msgspec

from elastane_planner.amounts import bytes_text, seconds_text
from elastane_planner.cluster import Cluster
from elastane_planner.plan import Plan
from elastane_planner.profile import Profile, UnitProfile

GAIN_MIN = 0.02
"""A plan is kept unless another gains so much of what is to come: less is within what measuring is off."""


class Move(msgspec.Struct, frozen=True):
    """A unit that a device needs. source: the sending device; None: no device holds it, so it is loaded."""

    unit: int
    source: int | None
    target: int
    bytes: int


class Migration(msgspec.Struct, frozen=True):
    """The moves that a change of plan needs. Seconds include transfers, but not reading a checkpoint."""

    moves: tuple[Move, ...]
    bytes: int
    seconds: float


class Choice(msgspec.Struct, frozen=True):
    """Decision for a plan, with the reason as a sentence."""

    keeps: bool
    reason: str


def holdings(plan: Plan) -> dict[int, set[int]]:
    """Return the units that each device of a plan holds, as replica or shadow."""
    held: dict[int, set[int]] = {}
    for index, stage in enumerate(plan.stages):
        for device in stage.devices + plan.shadows_of(index):
            held.setdefault(device, set()).update(range(stage.first_unit, stage.end_unit))
    return held


def state_bytes(unit: UnitProfile) -> int:
    """Return the bytes of a unit that move with it."""
    return unit.parameter_bytes + unit.optimizer_bytes + unit.buffer_bytes


def migration(profile: Profile, cluster: Cluster, held: Mapping[int, Set[int]], plan: Plan) -> Migration:
    """Return the moves to a plan from what devices hold (`held`: device -> units).

    Each unit comes from the holder whose link finishes first; the largest units are placed first. A unit
    without a holder has no source.
    """
    wanted = [
        (unit, device)
        for device, units in holdings(plan).items()
        for unit in units
        if unit not in held.get(device, ())
    ]
    size = [state_bytes(unit) for unit in profile.units]
    names = [device.name for device in cluster.devices]
    busy: dict[tuple[int, int], float] = {}
    moves: list[Move] = []
    for unit, target in sorted(wanted, key=lambda pair: (-size[pair[0]], pair[0], names[pair[1]])):
        options = [
            (busy.get((source, target), 0.0) + _seconds(size[unit], cluster.bandwidth[source][target]), name)
            for source, name in enumerate(names)
            if source != target and unit in held.get(source, ())
        ]
        source = None
        if options:
            until, name = min(options)
            source = names.index(name)
            busy[source, target] = until
        moves.append(Move(unit, source, target, size[unit]))
    return Migration(
        moves=tuple(sorted(moves, key=lambda move: (move.target, move.unit))),
        bytes=sum(move.bytes for move in moves),
        seconds=max(busy.values(), default=0.0),
    )


def choose(
    kept_step_seconds: float,
    step_seconds: float,
    moving: Migration,
    horizon_steps: int,
    gain_min: float = GAIN_MIN,
) -> Choice:
    """Decide between the current plan and another, for the steps until the next expected change.

    The other wins if it saves more than `gain_min` of the time of those steps, its migration included.
    """
    kept = kept_step_seconds * horizon_steps
    other = step_seconds * horizon_steps + moving.seconds
    gain = 1 - other / kept if 0 < kept < inf else (0.0 if kept <= other else 1.0)
    facts = (
        f"{seconds_text(step_seconds)} a step in place of {seconds_text(kept_step_seconds)}, "
        f"{bytes_text(moving.bytes)} to move in {seconds_text(moving.seconds)}"
    )
    if gain > gain_min:
        return Choice(False, f"{facts}: {gain:.1%} less over {horizon_steps} steps")
    return Choice(True, f"{facts}: {gain:.1%} less over {horizon_steps} steps is not above {gain_min:.0%}")


def _seconds(size: int, bandwidth: float) -> float:
    if not size:
        return 0.0
    return size / bandwidth if bandwidth else inf
