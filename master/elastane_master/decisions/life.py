"""Life cycle of a job: its phase, and the reason for it.

waiting <--> running --> succeeded | failed
 ^            |
 |            v
 +------- suspended          cancelled from any phase but the last three
 +------- max_wait_exceeded, from waiting
"""

from __future__ import annotations

import re
from collections.abc import Callable

from elastane_master.decisions import checkpoints, cost, held_state, majority, pipelines
from elastane_master.decisions.decision_context import DecisionContext
from elastane_master.decisions.effects import Done, Prepare
from elastane_master.decisions.events import Rejection
from elastane_master.decisions.ring_state import Stage
from elastane_master.decisions.slot_effects import PsDone, SendPs
from elastane_master.decisions.state import OVER, Phase
from elastane_proto.history import events as history
from elastane_proto.history.events import AnyHistoryEvent
from elastane_proto.job_settings import SETTINGS, JobSettings, out_of_bounds

FAILURES_MAX = 3
"""Number of consecutive errors of the script at one step after which the job fails."""

_CURRENCY = re.compile(r"[A-Z]{3}")

_Entered = Callable[[str], AnyHistoryEvent]
_ENTERED: dict[str, _Entered] = {
    "waiting": history.JobWaiting,
    "running": history.JobRunning,
    "suspended": history.JobSuspended,
    "succeeded": history.JobSucceeded,
    "failed": history.JobFailed,
    "cancelled": history.JobCancelled,
}
"""The event recorded when each phase is entered; `JobMaxWaitExceeded` carries more."""


def check_settings(settings: JobSettings) -> None:
    """Raise Rejection if the settings of a new job are invalid."""
    check_workers(settings.ests, settings.workers_min, settings.workers_max or settings.ests)
    for name, value, bound in out_of_bounds(settings):
        raise _out_of_range(name, value, bound)
    most = settings.pipeline_stages_max
    if 0 < most < settings.pipeline_stages_min:
        raise _out_of_range(
            "pipeline_stages_max", most, f"at least {settings.pipeline_stages_min}, the minimum"
        )
    if settings.checkpoint_interval_steps and not settings.checkpoint_url:
        raise Rejection(
            "invalid_argument",
            "checkpoint_interval_steps without a checkpoint_url",
            hint="set checkpoint_url to a folder that all workers reach",
            field="checkpoint_url",
        )
    check_prices(settings)


def check_prices(settings: JobSettings) -> None:
    """Raise Rejection for an invalid price or currency."""
    for name in ("spot_price_micros", "on_demand_price_micros"):
        check_price(name, getattr(settings, name))
    if not _CURRENCY.fullmatch(settings.currency):
        raise _out_of_range("currency", repr(settings.currency), "three capital letters, as USD")


def check_price(name: str, price_micros: int | None) -> None:
    """Raise Rejection for an invalid price of a worker per hour. name: of the field; None: no price."""
    bound = SETTINGS["spot_price_micros"].out_of_bounds(price_micros) if price_micros is not None else ""
    if bound:
        raise _out_of_range(name, price_micros, bound)


def check_workers(ests: int, workers_min: int, workers_max: int) -> None:
    """Raise Rejection unless 1 <= workers_min <= workers_max and workers_min <= N."""
    if ests < 1:
        raise _out_of_range("ests", ests, "at least 1")
    if workers_min < 1:
        raise _out_of_range("workers_min", workers_min, "at least 1")
    if workers_max < workers_min:
        raise _out_of_range("workers_max", workers_max, f"at least workers_min, {workers_min}")
    if workers_min > ests:
        raise _out_of_range("workers_min", workers_min, f"at most ests, {ests}: each worker hosts an EST")


def set_phase(ctx: DecisionContext, phase: Phase, reason: str, event: AnyHistoryEvent | None = None) -> None:
    """Enter a phase, or change the reason for it. event: reports it instead, if it is more specific."""
    state = ctx.state
    if (state.phase, state.reason) == (phase, reason):
        return
    ctx.touch()
    if state.phase != phase:
        ctx.note(event or _ENTERED[phase](reason))
    state.phase, state.reason = phase, reason


def _tell_cost(ctx: DecisionContext, phase: Phase) -> None:
    """Record an event with the cost of the job so far."""
    ctx.note(history.JobCost(phase, cost.spent(ctx.state, ctx.now)))


def end(ctx: DecisionContext, phase: Phase, reason: str) -> None:
    """End the job: all workers are released."""
    state, ring = ctx.state, ctx.state.ring
    if phase != "succeeded":
        cost.dropped(state, ctx.now)
    checkpoints.give_up(ctx, f"the job is over: {reason}", again=False)
    checkpoints.refuse_wanted(ctx, f"the job is over: {reason}")
    ring.dissolve(ctx.now)
    state.suspending, state.join_due, state.grace_until = False, None, None
    state.steps.drop_reports()
    state.early_ends, state.drift = {}, None
    ctx.queues.ring_stopped()
    set_phase(ctx, phase, reason)
    _tell_cost(ctx, phase)
    if phase != "succeeded":  # else workers that lease tasks may still need them
        state.slots.grace_until = None
        for ps in state.slots.attending():
            ctx.emit(SendPs(ps.ps, PsDone(f"the job is {phase}: {reason}")))
    for record in list(state.workers.values()):
        if record.awaited:
            del state.workers[record.worker]
            cost.left(state, record, ctx.now)
        elif record.role == "ring" or phase != "succeeded":
            record.draining, record.drain_reason, record.drain_sent = True, reason, True
            ctx.send(record.worker, Done(phase, reason))


def suspend(ctx: DecisionContext, reason: str) -> None:
    """Release every worker until Resume."""
    halt(ctx, "suspended", reason)
    lost = ctx.state.steps_unsaved
    if lost > 0:
        ctx.note(history.StepsUnsaved(lost))


def halt(ctx: DecisionContext, phase: Phase, reason: str, event: AnyHistoryEvent | None = None) -> None:
    """Stop training and release all workers until Resume. phase: one of HALTED.

    event: as of `set_phase`.
    """
    state, ring = ctx.state, ctx.state.ring
    state.suspending = False
    dissolve(ctx, reason)
    set_phase(ctx, phase, reason, event)
    _tell_cost(ctx, phase)
    for record in state.workers.values():
        if record.role == "tasks":
            ctx.send(record.worker, Done(phase, reason))
        elif not record.drain_sent:
            record.draining, record.drain_reason = True, reason
            record.asked(ctx.now)
            ctx.send(record.worker, Prepare(ring.generation, (), reason))


def dissolve(ctx: DecisionContext, reason: str) -> None:
    """Dissolve the ring and drop its work in progress; the caller notifies its members."""
    state, ring = ctx.state, ctx.state.ring
    ctx.touch()
    cost.dropped(state, ctx.now)
    state.join_due = None
    checkpoints.give_up(ctx, reason, again=True)
    held_state.load_given_up(state)
    ring.generation += 1
    ring.dissolve(ctx.now)
    ring.reason = reason
    state.early_ends, state.drift = {}, None
    state.steps.drop_reports()
    ctx.queues.ring_stopped()


def conclude_if_finished(ctx: DecisionContext) -> bool:
    """End the job if no member is left and some scripts have finished; True if so."""
    state = ctx.state
    if not state.finished or state.phase in OVER or state.active_members():
        return False
    if pipelines.lost_at_end(state):
        ctx.touch()
        state.finished, state.final_digests, state.ended_step = {}, {}, None
        return False
    steps = set(state.finished.values())
    last = max(steps)
    for commit in state.steps.commit(last):
        ctx.emit(commit)
        ctx.queues.step_committed(commit.step, ctx.now)
    total = state.total_steps
    if len(steps) == 1 and len(set(state.final_digests.values())) > 1:
        odd = majority.odd_ones_out(state.final_digests)
        words = majority.in_words(odd, list(state.final_digests))
        end(ctx, "failed", f"{words} after the last step, {last - 1}. {majority.CURE}")
    elif state.ended_step == last and state.signature is not None and last != state.signature.steps:
        of = f" of {state.signature.steps}" if state.signature.steps else ""
        end(ctx, "succeeded", f"the script ended the training early, after {last}{of} steps")
    elif last == total or (len(steps) == 1 and not total):
        end(ctx, "succeeded", f"the script came to its end after {last} steps")
    elif len(steps) == 1:
        end(ctx, "succeeded", f"the script came to its end after {last} of {total} steps")
    else:
        end(ctx, "failed", f"the workers' scripts ended at different steps: {sorted(steps)}")
    return True


def count_failure(ctx: DecisionContext, worker: str, step: int, message: str) -> bool:
    """Count an error of the script in a member after `step` steps; True if the job failed because of it.

    A script that fails at the same step in three consecutive rings will always fail there, because a replay
    is exact. Several members that fail in one ring count once.
    """
    state = ctx.state
    generation = state.ring.generation
    if state.failed_step != step:
        state.failures, state.failed_step, state.failed_generation = 0, step, -1
    if state.ring.stage is not Stage.RUNNING or generation == state.failed_generation:
        return False
    state.failures += 1
    state.failed_generation = generation
    if state.failures < FAILURES_MAX:
        return False
    end(
        ctx,
        "failed",
        f"the script raised {state.failures} times at step {step}, last in {worker}: {message}",
    )
    return True


def _out_of_range(name: str, value: object, bound: str) -> Rejection:
    return Rejection(
        "invalid_argument", f"{name} is {value}", hint=f"must be {bound}", field=name, value=value
    )
