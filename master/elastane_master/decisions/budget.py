"""Detects that a job's budget is spent, also between step boundaries.

At step boundaries autoscaling.py checks the cost. Between them, when workers wait or a step takes long, the
time is predictable as long as workers and prices stay the same, and a Tick is due then.
"""

from __future__ import annotations

from elastane_master.decisions import autoscaling, cost, life, ring
from elastane_master.decisions.decision_context import DecisionContext
from elastane_master.decisions.ring_state import Stage
from elastane_master.decisions.state import HALTED, OVER, JobState
from elastane_scheduler.autoscaling.modes import Budget


def spent_at(state: JobState) -> float | None:
    """Return when a job's budget will be spent; None: never, as far as is known."""
    if not state.settings.scaling.startswith("budget=") or state.scaling.budget_spent:
        return None
    if state.phase in OVER or state.phase in HALTED or state.suspending or state.awaited():
        return None
    mode = autoscaling.mode_of(state)
    return cost.spent_at(state, mode.micros) if isinstance(mode, Budget) else None


def settle(ctx: DecisionContext) -> None:
    """After any event, react to a spent budget: suspend the job, or choose the cheapest number."""
    due = spent_at(ctx.state)
    if due is None or ctx.now < due:
        return
    ctx.touch()
    ctx.state.scaling.budget_spent = True
    if not autoscaling.suspends_if_spent(ctx.state):
        autoscaling.look_between(ctx)
    elif ctx.state.ring.stage is Stage.NONE:  # nobody trains, and the work is in the checkpoint
        life.suspend(ctx, autoscaling.why_suspended(ctx.state))
        ring.dismiss(ctx)
