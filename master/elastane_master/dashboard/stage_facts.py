"""Gathers what a job's page shows of its pipeline: the stages, and its last step as a picture."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from elastane_master.dashboard.drawing import StepPicture, draw_step
from elastane_master.decisions import stage_plans
from elastane_master.decisions.pipeline_view import PipelineState
from elastane_master.jobs.job_server import JobServer
from elastane_planner.errors import PlanError
from elastane_planner.last_step import BLOCKS_TOLD_MAX, is_too_long, measured_timeline

BLOCKS_PREDICTED_MAX: Final = 1024
"""Blocks of a step up to which it is simulated to be drawn."""


@dataclass(frozen=True, slots=True)
class StageFacts:
    """A pipeline as its page shows it. picture: of `step`, or, without one, of the step that is predicted;
    None: neither is known. bubble: of the picture. untold: why steps are never measured; empty: they are."""

    view: PipelineState
    picture: StepPicture | None = None
    step: int | None = None
    bubble: float = 0.0
    step_seconds: float = 0.0
    untold: str = ""


def stage_facts(server: JobServer, view: PipelineState | None) -> StageFacts | None:
    """Return what is known of a job's pipeline; None if its model is not cut."""
    state = server.machine.state
    plan = state.pipeline.plan
    if view is None or plan is None:
        return None
    by_device, workers, ests = stage_plans.on_devices(plan), plan.workers, state.settings.ests
    place = {worker: index for index, worker in enumerate(workers)}
    told = server.last_step()
    try:
        found = measured_timeline(
            by_device, ests, {place[worker]: (one.began, one.blocks) for worker, one in told.items()}
        )
        step = next(iter(told.values())).step if found is not None else None
        if found is None and 2 * len(plan.stages) * ests <= BLOCKS_PREDICTED_MAX:
            found = stage_plans.predicted(state, plan)
    except PlanError:
        found = None
    untold = ""
    if is_too_long(by_device, ests):
        untold = f"Steps are not measured block by block: a worker has more than {BLOCKS_TOLD_MAX} in each."
    if found is None:
        return StageFacts(view, untold=untold)
    picture = draw_step(found, by_device, workers)
    return StageFacts(view, picture, step, found.bubble, found.step_seconds, untold)
