"""Transfers of units at a change of plan, computed from Go alone and therefore equal in every member."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from elastane_proto.v1 import pipeline_pb2


@dataclass(frozen=True)
class Transfer:
    """State that all donors have and the receivers lack: each donor sends its stripe to each receiver.

    units: to transfer. common: include the common part. donors, receivers: members of the ring, by index.
    """

    units: tuple[int, ...]
    common: bool
    donors: tuple[int, ...]
    receivers: tuple[int, ...]


def units_of(plan: pipeline_pb2.PipelinePlan, member: int) -> frozenset[int]:
    """Return the units that the plan assigns to a member, as a replica or a shadow of their stages."""
    return frozenset(
        unit
        for stage in plan.stages
        if member in stage.replicas or member in stage.shadows
        for unit in range(stage.first_unit, stage.end_unit)
    )


def saved_by(plan: pipeline_pb2.PipelinePlan, member: int) -> frozenset[int]:
    """Return the units that a member writes to its checkpoint shard: those of which it is replica 0."""
    return frozenset(
        unit
        for stage in plan.stages
        if list(stage.replicas[:1]) == [member]
        for unit in range(stage.first_unit, stage.end_unit)
    )


def read_by(plan: pipeline_pb2.PipelinePlan, member: int) -> dict[str, frozenset[int]]:
    """Return the units that a member must read, by name of the checkpoint."""
    mine, found = units_of(plan, member), dict[str, frozenset[int]]()
    for source in plan.sources:
        units = mine & set(range(source.first_unit, source.end_unit))
        if source.checkpoint and not source.donors and units:
            found[source.checkpoint] = found.get(source.checkpoint, frozenset()) | units
    return found


def initial_of(plan: pipeline_pb2.PipelinePlan, member: int) -> frozenset[int]:
    """Return the units of a member that start from the script's initial values."""
    return units_of(plan, member) & frozenset(
        unit
        for source in plan.sources
        if not source.donors and not source.checkpoint
        for unit in range(source.first_unit, source.end_unit)
    )


def transfers(
    plan: pipeline_pb2.PipelinePlan, donors: Iterable[int], receivers: Iterable[int]
) -> tuple[Transfer, ...]:
    """Return the transfers of a change of plan, the same in every member.

    Units with the same donors and receivers are one transfer. donors, receivers: of the common part, from Go:
    members that have, or have not, entered a ring of this job.
    """
    homes: dict[int, set[int]] = {}
    for stage in plan.stages:
        for unit in range(stage.first_unit, stage.end_unit):
            homes.setdefault(unit, set()).update(stage.replicas, stage.shadows)
    groups: dict[tuple[tuple[int, ...], tuple[int, ...]], list[int]] = {}
    for source in plan.sources:
        holders = tuple(sorted(set(source.donors)))
        for unit in range(source.first_unit, source.end_unit):
            lacking = tuple(sorted(homes.get(unit, set()) - set(holders)))
            if holders and lacking:
                groups.setdefault((holders, lacking), []).append(unit)
    common = (tuple(sorted(set(donors))), tuple(sorted(set(receivers))))
    if all(common):
        groups.setdefault(common, [])
    return tuple(
        Transfer(tuple(sorted(units)), members == common, *members)
        for members, units in sorted(groups.items())
    )
