"""Another plan for the same workers of a pipeline: when it pays off, and when it takes effect.

Plans are made in a thread (`jobs/stage_planning.py`), as soon as units are measured and again when the
measurements change: a device has become slow, units take longer. A plan takes effect at a step boundary, as
any planned change, if

    steps left x (T_now - T_new) > 2 x the time that a change takes

the planner's `keep` has not kept the current plan because of the cost of moving, and the last such change is
long enough ago: the pause doubles with each of them.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from elastane_master.decisions import balance, stage_plans
from elastane_master.decisions.decision_context import DecisionContext
from elastane_master.decisions.events import PipelinePlanned
from elastane_master.decisions.ring_state import Stage
from elastane_master.decisions.stage_plans import Question
from elastane_master.decisions.stages import StagePlan
from elastane_master.decisions.state import JobState


def question(state: JobState, now: float) -> Question | None:
    """Return the question to the planner for the ring that trains; None: nothing, or not now."""
    book = state.pipeline
    if not state.unit_count or state.ring.stage is not Stage.RUNNING or state.phase != "running":
        return None
    if book.plan is None or book.proposed is not None or state.ring.gone or now < _pause_over_at(state):
        return None
    asked = stage_plans.question(state)
    return asked if asked.profile.measured and len(asked.workers) == len(state.ring.names()) else None


def answer(
    asked: Question, generation: int, seconds: Callable[[], float], budget_seconds: float
) -> PipelinePlanned | None:
    """Ask the planner; None if it keeps the current plan. Raises PlanError. seconds: a clock."""
    found = stage_plans.answer(asked, seconds=seconds, budget_seconds=budget_seconds)
    if asked.keep is None or stage_plans.same_stages(found, asked.keep):
        return None
    found = stage_plans.with_figures(found, asked)
    now = stage_plans.with_figures(asked.keep, asked).step_seconds
    return PipelinePlanned(generation, found, now)


def planned(ctx: DecisionContext, event: PipelinePlanned) -> None:
    """Handle a plan from the planner's thread: it is used at the next step boundary, if it still pays off."""
    state, book = ctx.state, ctx.state.pipeline
    plan, before = event.plan, book.plan
    if event.generation != state.ring.generation or state.ring.stage is not Stage.RUNNING:
        return
    if before is None or state.ring.gone or not stage_plans.fits(state, plan):
        return
    if stage_plans.same_stages(plan, before) or ctx.now < _pause_over_at(state):
        return
    if not _pays(state, event.step_seconds_now, plan.step_seconds):
        return
    ctx.touch()
    why = f"a step of {event.step_seconds_now:.3g} s becomes one of {plan.step_seconds:.3g} s: {plan.reason}"
    if slow := stage_plans.slow_text(state, plan.workers):
        why = f"{slow}: {why}"
    book.plan = msgspec.structs.replace(before, step_seconds=event.step_seconds_now)
    book.proposed = msgspec.structs.replace(plan, reason=why)


def due(state: JobState) -> StagePlan | None:
    """Return the plan that takes effect at this boundary; None: the stages stay."""
    plan = state.pipeline.proposed
    is_calm = not state.ring.gone and state.checkpoints.in_flight is None
    return plan if plan is not None and is_calm and stage_plans.fits(state, plan) else None


def _pays(state: JobState, old_seconds: float, new_seconds: float) -> bool:
    gain = old_seconds - new_seconds
    worth_it = stage_plans.steps_left(state) * gain > balance.COST_FACTOR * state.balance.change_seconds
    return worth_it and gain >= balance.GAIN_FRACTION_MIN * old_seconds


def _pause_over_at(state: JobState) -> float:
    book = state.pipeline
    if book.changed_at is None or not book.changes:
        return 0.0
    return book.changed_at + balance.pause_seconds(book.changes)
