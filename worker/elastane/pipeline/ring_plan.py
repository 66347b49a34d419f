"""A generation's plan: which member runs which stage for which EST, and in which order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from elastane.collective.order import Ranges
from elastane.pipeline.stage_sums import Holders
from elastane_common.errors import ElastaneError
from elastane_planner.errors import PlanError
from elastane_planner.plan import Memory, Plan, Stage
from elastane_planner.schedule import Block, blocks
from elastane_proto.v1 import pipeline_pb2

_MEMORY: dict[int, Memory] = {
    pipeline_pb2.STAGE_MEMORY_UNSPECIFIED: "plain",
    pipeline_pb2.STAGE_MEMORY_PLAIN: "plain",
    pipeline_pb2.STAGE_MEMORY_CHECKPOINT: "checkpoint",
    pipeline_pb2.STAGE_MEMORY_SWAP: "swap",
}


class RingPlanError(ElastaneError):
    """A plan that this worker cannot run, because it is for another model or from a newer master."""

    code = "ELA392"


def plan_of(message: pipeline_pb2.PipelinePlan) -> Plan:
    """Convert a message to the planner's plan. Raises RingPlanError for features of newer versions."""
    stages = []
    for stage in message.stages:
        if stage.memory not in _MEMORY:
            raise RingPlanError(
                f"the plan keeps activations in a way ({stage.memory}) that this worker does not know",
                hint="start the worker with the version of the master",
            )
        stages.append(Stage(stage.first_unit, stage.end_unit, tuple(stage.replicas), _MEMORY[stage.memory]))
    return Plan(tuple(stages), tuple(tuple(stage.shadows) for stage in message.stages))


@dataclass(frozen=True)
class RingPlan:
    """A plan applied to a ring. members: their number. homes: the member that loads each EST's data."""

    plan: Plan
    members: int
    homes: tuple[int, ...]
    order: dict[int, tuple[Block, ...]]

    @classmethod
    def of(
        cls,
        plan: Plan,
        units: int,
        ranges: Ranges,
        order: dict[int, tuple[Block, ...]] | None = None,
    ) -> RingPlan:
        """Check a plan and order its blocks. order: replaces the planner's order. Raises RingPlanError."""
        homes = tuple(member for member, (start, end) in enumerate(ranges) for _ in range(start, end))
        try:
            plan.check(units, len(ranges))
            ordered = order or blocks(plan, len(homes))
        except PlanError as error:
            raise RingPlanError(f"the ring's plan does not fit its model: {error}") from error
        return cls(plan, len(ranges), homes, ordered)

    @property
    def num_ests(self) -> int:
        return len(self.homes)

    @property
    def last(self) -> int:
        """Index of the last stage."""
        return len(self.plan.stages) - 1

    def stage_of(self, member: int) -> int | None:
        """Return the stage that a member computes, or None."""
        for index, stage in enumerate(self.plan.stages):
            if member in stage.devices:
                return index
        return None

    def replica(self, stage: int, est: int) -> int:
        """Return the member that runs an EST on a stage."""
        return self.plan.stages[stage].replica_of(est)

    def holders(self, stage: int) -> Holders:
        """Return the members that hold a stage."""
        return Holders(self.plan.stages[stage].devices, self.plan.shadows_of(stage), self.num_ests)

    def held_by(self, member: int) -> list[int]:
        """Return the stages that a member holds, computed or not."""
        return [
            index
            for index, stage in enumerate(self.plan.stages)
            if member in stage.devices or member in self.plan.shadows_of(index)
        ]

    def ests_of(self, stage: int, member: int) -> list[int]:
        """Return the ESTs that a member computes on a stage."""
        if member not in self.plan.stages[stage].devices:
            return []
        return [est for est in range(self.num_ests) if self.replica(stage, est) == member]

    def units_of(self, stage: int) -> Sequence[int]:
        """Return the units of a stage."""
        return range(self.plan.stages[stage].first_unit, self.plan.stages[stage].end_unit)
