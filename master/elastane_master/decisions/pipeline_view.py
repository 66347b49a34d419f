"""The stages of a pipeline as they are shown: their load, which is slowest and why, what a death costs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

import msgspec

from elastane_master.decisions import unit_holders
from elastane_master.decisions.events import UnitRange
from elastane_master.decisions.ring_state import Stage
from elastane_master.decisions.stages import StageMemory, StageOnWorkers, StagePlan
from elastane_master.decisions.state import OVER, JobState

SLOW_FRACTION = 0.1
"""A worker that is so much slower than the fastest of the pipeline is named as the reason."""


class StageState(msgspec.Struct, frozen=True):
    """A stage, as job.proto's StageState."""

    first_unit: int
    end_unit: int
    replicas: tuple[str, ...]
    shadows: tuple[str, ...]
    memory: StageMemory
    load_seconds: float


Held = TypeVar("Held", StageOnWorkers, StageState)


class PipelineState(msgspec.Struct, frozen=True):
    """The stages of a job, as job.proto's PipelineState."""

    units: int
    stages: tuple[StageState, ...]
    step_seconds: float
    bubble: float
    reason: str
    slowest_stage: int
    slowest_reason: str
    risk: str


def view(state: JobState) -> PipelineState | None:
    """Return the stages of a job; None if its model is not cut, has no plan yet, or the job is over."""
    plan = state.pipeline.plan
    if not state.unit_count or plan is None or state.phase in OVER:
        return None
    loads = plan.stage_seconds or (0.0,) * len(plan.stages)
    slowest = max(range(len(loads)), key=lambda index: (loads[index], -index)) if any(loads) else -1
    return PipelineState(
        units=state.unit_count,
        stages=tuple(
            StageState(stage.first_unit, stage.end_unit, stage.replicas, stage.shadows, stage.memory, seconds)
            for stage, seconds in zip(plan.stages, loads, strict=True)
        ),
        step_seconds=plan.step_seconds,
        bubble=plan.bubble,
        reason=plan.reason,
        slowest_stage=slowest,
        slowest_reason=_why_slowest(state, plan, slowest) if slowest >= 0 else "",
        risk=_risk(state, plan) if state.ring.stage is Stage.RUNNING else "",
    )


def _why_slowest(state: JobState, plan: StagePlan, slowest: int) -> str:
    """Say why a stage takes longest: its device, its units, or what cannot be cut."""
    stage = plan.stages[slowest]
    speeds = {worker: _speed(state, worker) for one in plan.stages for worker in one.replicas}
    worker = min(stage.replicas, key=lambda name: (speeds[name], name))
    ratio = speeds[worker] / max(speeds.values())
    parts = []
    if ratio < 1 - SLOW_FRACTION:
        parts.append(f"{worker} computes at {ratio:.2g} of the speed of the fastest worker")
    parts.append(f"{unit_holders.units_text(_units(stage))} take{'s' * _is_one(stage)}")
    parts[-1] += f" {plan.stage_seconds[slowest]:.3g} s of a step on {worker}"
    if _is_one(stage):
        parts.append("a unit is never cut")
    elif stage.memory != "plain":
        parts.append(f"it keeps to its memory by {stage.memory}")
    return "; ".join(parts)


def _risk(state: JobState, plan: StagePlan) -> str:
    """Say what the death of a worker costs."""
    alone = held_once(plan.stages)
    if not alone:
        return "every unit has a second holder: a death costs the step in flight"
    saved = state.checkpoints.saved_step
    source = f"the checkpoint of step {saved}" if saved >= 0 else "the initial state: no checkpoint is saved"
    workers = " or ".join(dict.fromkeys(stage.replicas[0] for stage in alone))
    units = unit_holders.units_text(
        unit_holders.ranges_of(unit for stage in alone for unit in range(stage.first_unit, stage.end_unit))
    )
    each = "has one holder" if len(alone) == 1 and _is_one(alone[0]) else "have one holder each"
    return f"{units} {each}: if {workers} dies, the job goes back to {source} (--shadow 1)"


def held_once(stages: Iterable[Held]) -> list[Held]:
    """Return the stages whose units one worker alone holds."""
    return [stage for stage in stages if len(stage.replicas) + len(stage.shadows) == 1]


def _units(stage: StageOnWorkers) -> tuple[UnitRange, ...]:
    return unit_holders.ranges_of(range(stage.first_unit, stage.end_unit))


def _is_one(stage: StageOnWorkers) -> bool:
    return stage.end_unit == stage.first_unit + 1


def _speed(state: JobState, worker: str) -> float:
    record = state.workers.get(worker)
    return (record.speed if record is not None else 0.0) or 1.0
