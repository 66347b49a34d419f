"""Read model of a pipeline: load of its stages, the slowest and why, cost of a death."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

import msgspec

from elastane_master.decisions import link_speeds, stage_plans, unit_holders
from elastane_master.decisions.events import UnitRange
from elastane_master.decisions.ring_state import Stage
from elastane_master.decisions.stages import StageMemory, StageOnWorkers, StagePlan
from elastane_master.decisions.state import OVER, JobState


class StageState(msgspec.Struct, frozen=True):
    """A stage, as job.proto's StageState."""

    first_unit: int
    end_unit: int
    replicas: tuple[str, ...]
    shadows: tuple[str, ...]
    memory: StageMemory
    load_seconds: float


Held = TypeVar("Held", StageOnWorkers, StageState)


class PipelineDevice(msgspec.Struct, frozen=True):
    """A worker as the planner sees it, as job.proto's PipelineDevice. host: identifies its links."""

    worker: str
    host: str
    speed: float
    memory_bytes: int


class LinkState(msgspec.Struct, frozen=True):
    """A measured link between two hosts, or within one, as job.proto's LinkState."""

    source: str
    target: str
    bytes_per_second: float


class PipelineState(msgspec.Struct, frozen=True):
    """The stages of a job, as job.proto's PipelineState. devices: connected workers of the plan."""

    units: int
    stages: tuple[StageState, ...]
    step_seconds: float
    bubble: float
    reason: str
    slowest_stage: int
    slowest_reason: str
    risk: str
    devices: tuple[PipelineDevice, ...] = ()
    links: tuple[LinkState, ...] = ()


def view(state: JobState) -> PipelineState | None:
    """Return the stages of a job; None if it is no pipeline, has no plan yet, or is over."""
    plan = state.pipeline.plan
    if not state.unit_count or plan is None or state.phase in OVER:
        return None
    loads = plan.stage_seconds or (0.0,) * len(plan.stages)
    slowest = max(range(len(loads)), key=lambda index: (loads[index], -index)) if any(loads) else -1
    records = [state.workers[worker] for worker in plan.workers if worker in state.workers]
    links = link_speeds.between(state, map(link_speeds.host_of, records))
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
        devices=tuple(
            PipelineDevice(one.worker, link_speeds.host_of(one), one.speed, one.memory_bytes)
            for one in records
        ),
        links=tuple(LinkState(*ends, value) for ends, value in links.items()),
    )


def _why_slowest(state: JobState, plan: StagePlan, slowest: int) -> str:
    """Explain why a stage is slowest: its device, its units, or an indivisible part."""
    stage = plan.stages[slowest]
    worker = min(stage.replicas, key=lambda name: (_speed(state, name), name))
    computing = [name for one in plan.stages for name in one.replicas]
    parts = [text] if (text := stage_plans.slow_text(state, computing, stage.replicas)) else []
    parts.append(f"{unit_holders.units_text(_units(stage))} take{'s' * _is_one(stage)}")
    parts[-1] += f" {plan.stage_seconds[slowest]:.3g} s of a step on {worker}"
    if _is_one(stage):
        parts.append("a unit is never cut")
    elif stage.memory != "plain":
        parts.append(f"it keeps to its memory by {stage.memory}")
    return "; ".join(parts)


def _risk(state: JobState, plan: StagePlan) -> str:
    """Describe the cost of a worker's death."""
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
    """Return the stages whose units only one worker holds."""
    return [stage for stage in stages if len(stage.replicas) + len(stage.shadows) == 1]


def _units(stage: StageOnWorkers) -> tuple[UnitRange, ...]:
    return unit_holders.ranges_of(range(stage.first_unit, stage.end_unit))


def _is_one(stage: StageOnWorkers) -> bool:
    return stage.end_unit == stage.first_unit + 1


def _speed(state: JobState, worker: str) -> float:
    record = state.workers.get(worker)
    return (record.speed if record is not None else 0.0) or 1.0
