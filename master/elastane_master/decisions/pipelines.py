"""Pipeline jobs: decisions at each change of the ring.

the first worker joins --> its model's units become the job's; unsupported options are off
a worker joins, leaves --> how many workers hold the model in their memory (stage_memory.py)
a ring goes            --> its plan (stage_plans.py), and the source of each unit (unit_holders.py)
a script ends          --> its units count towards the result
"""

from __future__ import annotations

import msgspec

from elastane_master.decisions import stage_memory, stage_plans, unit_holders, unit_seconds
from elastane_master.decisions.decision_context import DecisionContext
from elastane_master.decisions.effects import UnitSource
from elastane_master.decisions.events import Rejection, ScaleRequested, Signature, WorkerJoined
from elastane_master.decisions.ring_state import Stage
from elastane_master.decisions.stages import StageOnWorkers, StagePlan
from elastane_master.decisions.state import JobState, WorkerRecord
from elastane_planner.errors import PlanError
from elastane_proto.history import events as history
from elastane_proto.job_settings import DEFAULTS, JobSettings

UNITS_MAX = 10_000
WITHOUT = {"scaling": "--auto", "sentinel_steps": "--sentinel"}
"""Settings that are off for pipelines, by the option that sets them."""
STAGED = {
    "pipeline_stages_min": "--pipeline",
    "pipeline_stages_max": "--pipeline",
    "pipeline_shadows": "--shadow",
}
"""Settings of pipelines alone, by the option that sets them."""


def require_model(settings: JobSettings, signature: Signature, worker: str) -> None:
    """Raise Rejection if a worker's units are impossible, too many, or missing in a pipeline job."""
    model = signature.pipeline
    if model is None:
        asked = {
            option for name, option in STAGED.items() if getattr(settings, name) != getattr(DEFAULTS, name)
        }
        if asked:
            raise Rejection(
                "mismatch",
                f"{worker}: the script has no pipeline, for which the job has {' and '.join(sorted(asked))}",
                hint="leave the option out: the script calls job.prepare, and trains the whole model",
                worker=worker,
            )
        return
    if len(model.units) > UNITS_MAX:
        raise Rejection(
            "invalid_argument",
            f"the model of {worker} has {len(model.units)} units",
            hint=f"at most {UNITS_MAX}: join some to one unit",
            worker=worker,
        )
    try:
        stage_plans.profile_of(model)
    except PlanError as error:
        raise Rejection("invalid_argument", f"{worker}: {error}", hint=error.hint, **error.facts) from None


def require_memory(state: JobState, event: WorkerJoined) -> None:
    """Raise Rejection if no ring of this job could hold the model in the workers' memory."""
    model, own = event.signature.pipeline, unit_seconds.memory_believed(event.memory_bytes)
    if model is None or not own:
        return
    memory = max([own, *(record.memory_bytes for record in state.ring_workers())])
    settings, profile = state.settings, stage_plans.profile_of(model)
    try:
        stage_memory.workers_least(profile, settings.ests, settings.workers_most, memory)
    except PlanError as error:
        least = error.facts.get("devices", "")
        too_many = least.isdecimal() and int(least) > settings.ests
        raise Rejection(
            "invalid_argument",
            f"{event.worker}: the model does not fit into {settings.workers_most} workers: {error}",
            hint=f"{error.hint}; they would need --ests {least}, too" if too_many else error.hint,
            **error.facts,
        ) from None


def memory_known(ctx: DecisionContext) -> None:
    """Record how many workers the model needs, by the memory limits of those present.

    Called when workers join or leave, when their memory changes, and when the bounds change.
    """
    state = ctx.state
    model = state.signature.pipeline if state.signature else None
    if model is None:  # called at every join: not for other jobs
        return
    memory = max((one.memory_bytes for one in state.workers.values() if one.role == "ring"), default=0)
    if not memory:
        return
    settings, profile = state.settings, stage_plans.profile_of(model)
    try:
        least = stage_memory.workers_least(profile, settings.ests, settings.workers_most, memory)
    except PlanError:  # the worker that made it possible has left: use the maximum, which comes closest
        least = min(settings.ests, settings.workers_most)
    state.pipeline.workers_least = least


def require_scalable(state: JobState, event: ScaleRequested) -> None:
    """Raise Rejection for autoscaling of a pipeline."""
    if state.unit_count and event.scaling:
        raise Rejection(
            "invalid_argument",
            "a pipeline does not scale by itself",
            hint="set the number of workers: elastane scale MIN:MAX",
            field="scaling",
        )


def require_enough(state: JobState, settings: JobSettings) -> None:
    """Raise Rejection if the bounds no longer allow enough workers to hold the model."""
    least = state.pipeline.workers_least
    if settings.workers_most < least:
        raise Rejection(
            "invalid_argument",
            f"the model needs the memory of {least} workers, and {settings.workers_most} would be allowed",
            hint=f"allow at least {least} workers, or start some that may use more memory",
            field="workers_max",
        )


def model_known(ctx: DecisionContext) -> None:
    """Turn off options that pipelines do not support, once the job turns out to be one."""
    state = ctx.state
    if not state.unit_count:
        return
    off = {name: option for name, option in WITHOUT.items() if getattr(state.settings, name)}
    if off:
        defaults = {name: getattr(DEFAULTS, name) for name in off}
        state.settings = msgspec.structs.replace(state.settings, **defaults)
        ctx.note(history.PipelineWithout(" and ".join(off.values())))


def ring_goes(ctx: DecisionContext, resume_step: int, loaded: str | None) -> None:
    """Decide the plan of the ring that starts now, and the sources of its members' units.

    loaded: checkpoint that provides all units, if no worker holds them; empty: the initial state.
    """
    state, ring, book = ctx.state, ctx.state.ring, ctx.state.pipeline
    if not state.unit_count:
        return
    before, plan = book.plan, stage_plans.decide(state)
    is_same = before is not None and set(before.workers) == set(plan.workers)
    if book.proposed is not None and stage_plans.same_stages(plan, book.proposed):
        book.changed_at, book.changes = ctx.now, book.changes + 1
    elif not is_same:
        book.changes = 0
    book.plan, book.proposed, book.finished_units, book.absent = plan, None, {}, {}
    sources: tuple[UnitSource, ...] = unit_holders.sources(state, resume_step)
    if loaded is not None:
        sources = unit_holders.stored(state, loaded)
    ring.plan = msgspec.structs.replace(
        stage_plans.in_ring(plan, ring.names()),
        sources=sources,
        checkpoint_url=state.settings.checkpoint_url if loaded else "",
    )
    if not stage_plans.same_stages(plan, before):
        ctx.note(_planned(plan, before, replanned=is_same))


def ended(state: JobState, record: WorkerRecord) -> None:
    """Record the units of a worker whose script has ended."""
    ring, units = state.ring, record.units
    if ring.stage is Stage.RUNNING:
        places = [place for place, member in enumerate(ring.members) if member.worker == record.worker]
        units = unit_holders.planned(ring.plan, places[0]) if places else units
    if state.unit_count:
        state.pipeline.finished_units[record.worker] = units


def lost_at_end(state: JobState) -> bool:
    """True if all scripts have ended or died, and units of the result were lost."""
    return bool(state.finished) and not state.active_members() and not unit_holders.result_is_whole(state)


def _planned(plan: StagePlan, before: StagePlan | None, *, replanned: bool) -> history.StagesPlanned:
    return history.StagesPlanned(
        tuple(_place(stage) for stage in plan.stages),
        replanned,
        plan.reason,
        plan.step_seconds,
        before.step_seconds if before is not None and replanned else 0.0,
    )


def _place(stage: StageOnWorkers) -> history.StagePlace:
    return history.StagePlace(stage.first_unit, stage.end_unit, stage.replicas, stage.shadows, stage.memory)
