"""Decisions at a step boundary: the step is prepared, and everything planned takes effect.

A boundary is the only point at which the ring can change without losing work, so joins, drains, scaling,
suspension and checkpoints all wait for it and are sent with its Prepared. Where members begin the next step
before that comes, a change waits for one more boundary (going_ahead.py). If the ring would end, or lose every
holder of the state, a checkpoint is saved first: meanwhile the next step's Prepared is held back, so that
nothing is applied that is not in the checkpoint.
"""

from __future__ import annotations

from elastane_master.decisions import (
    autoscaling,
    balance,
    checkpoints,
    cost,
    endings,
    fingerprints,
    following,
    forgotten,
    going_ahead,
    held_state,
    life,
    link_speeds,
    membership,
    messages,
    pipelines,
    ring,
    sentinel,
    stragglers,
    unit_holders,
    unit_seconds,
)
from elastane_master.decisions.assignment import Choice
from elastane_master.decisions.contexts import require_ranks
from elastane_master.decisions.decision_context import DecisionContext
from elastane_master.decisions.effects import Member
from elastane_master.decisions.events import (
    AppliedReported,
    Rejection,
    SavedReported,
    StepReported,
)
from elastane_master.decisions.ring_state import Stage
from elastane_master.decisions.state import JobState
from elastane_proto.history import events as history

SUSPENDED = "suspended on request"


def report_step(ctx: DecisionContext, event: StepReported) -> None:
    """Handle a member's report of a step; the last member's report prepares the step."""
    state, steps = ctx.state, ctx.state.steps
    if _reports_forgotten_ring(ctx, event):
        forgotten.require_bringable(state, event)
        why = f"{event.worker} trains in a ring whose Go the store has forgotten"
        forgotten.begin(ctx, why, event.worker)
        forgotten.bring(ctx, event)
        ring.reform(ctx, why)
        return
    if steps.catching_up:
        if ctx.attending(event.worker, event.session) is not None:
            forgotten.require_bringable(state, event)
            forgotten.bring(ctx, event)
            ring.proceed(ctx)
        return
    member = _reporting_member(ctx, event)
    if member is None:
        return
    if event.step <= steps.prepared:
        # The Prepared may have been lost with an old stream: send it again.
        if event.step == steps.prepared and steps.prepared >= state.ring.resume_step:
            ctx.send(event.worker, messages.prepared(state, event.worker))
        return
    if event.worker in steps.reports:
        return
    _check_report(ctx, event, member)
    contexts = state.contexts.after(event.step, event.contexts)
    if endings.goes_on(ctx, event.worker):
        return
    ctx.touch()
    record = state.workers[event.worker]
    held_state.proven(state, record, event.step)
    record.trainer_at, record.between_since = ctx.now, None
    if member.start == 0 and not steps.ready_order:
        steps.ready_order = event.ready_order
    digests = (event.settings_digest, event.state_digest)
    steps.report(event.worker, contexts, event.tasks, event.epoch, digests, goes_ahead=event.goes_ahead)
    ctx.queues.step_reported(event.worker, range(member.start, member.end))
    ring.commit_applied(ctx)
    # A member whose script ended cannot take part in this step's all-reduce.
    ended = [worker for worker in state.ring.gone if state.finished.get(worker, event.step + 1) <= event.step]
    if ended:
        ring.reform(ctx, f"the script of {ended[0]} ended before step {event.step}, the others go on")
    else:
        prepare_if_complete(ctx)


def prepare_if_complete(ctx: DecisionContext) -> None:
    """Prepare the step if all N contexts are in and nothing holds it back; members may then apply it."""
    state, book = ctx.state, ctx.state.steps
    if (
        book.hold
        or sentinel.holds(state)
        or state.ring.stage is not Stage.RUNNING
        or book.reported_ranks() < state.settings.ests
    ):
        return
    if fingerprints.hold_back(ctx):
        return
    ctx.touch()
    since, goes_ahead = book.prepared_at, book.goes_ahead()
    contexts = book.prepare(state.ring.generation, ctx.now)
    cost.prepared(state, ctx.now)
    state.contexts.put(book.prepared + 1, contexts)
    state.ring.stalled_since, state.ring.breaks = None, 0
    before = state.ring.names()
    autoscaling.step_prepared(ctx, since)
    if not _change_planned(ctx, goes_ahead=goes_ahead, last_seconds=ctx.now - since):
        sentinel.step_begins(state, book.current)
        ctx.queues.step_begins(state.ring.members, book.prepared + 1, ctx.now)
    for worker in before:
        if worker in state.workers:
            ctx.send(worker, messages.prepared(state, worker))


def applied(ctx: DecisionContext, event: AppliedReported) -> None:
    """Handle a heartbeat: a member applied a step, or entered or left user code between steps."""
    state = ctx.state
    record = ctx.attending(event.worker, event.session)
    if record is None or record.role != "ring":
        return
    balance.measured(ctx, record, event)
    memory = record.memory_bytes
    unit_seconds.measured(ctx, record, event)
    if record.memory_bytes != memory:
        pipelines.memory_known(ctx)
        ring.form_if_due(ctx)
    link_speeds.measured(ctx, record, event)
    stragglers.judged(ctx, record, event)
    member = state.ring.stage is Stage.RUNNING and state.ring.member(event.worker) is not None
    if event.between_steps != (record.between_since is not None):
        ctx.touch()
        record.between_since = ctx.now if event.between_steps else None
        record.trainer_at = ctx.now if record.trainer_at is not None else None
        state.ring.unblocked_at = ctx.now
        if member and event.between_steps:
            ctx.queues.training.pause(event.worker)
        elif member:
            ctx.queues.training.resume(event.worker, ctx.now)
    if not member or event.generation != state.ring.generation:
        return
    # A member that receives the state proves that it has it by applying its first step.
    known = record.applied_step if record.holds_state else state.ring.resume_step
    if known < event.applied_step <= state.steps.prepared + 1:
        ctx.touch()
        held_state.proven(state, record, event.applied_step)
        record.trainer_at = ctx.now
        if record.between_since is None:
            ctx.queues.training.resume(event.worker, ctx.now)
        ring.commit_applied(ctx)


def saved(ctx: DecisionContext, event: SavedReported) -> None:
    """Handle the result of a member's write of a shard or the manifest."""
    state = ctx.state
    record = ctx.attending(event.worker, event.session)
    if record is None:
        return
    flight = state.checkpoints.in_flight
    if checkpoints.report(ctx, event) == "failed" and state.suspending:
        state.suspending = state.scaling.suspends = False
        ctx.note(history.SuspensionGivenUp())
    if flight is not None and flight.checkpoint == event.checkpoint and record.applied_step < flight.step:
        # A shard contains the weights after the step, so its writer has applied the step.
        held_state.proven(state, record, flight.step)
        ring.commit_applied(ctx)


def release(ctx: DecisionContext) -> None:
    """Continue once the checkpoint that held back Prepared is saved or given up."""
    state, book = ctx.state, ctx.state.steps
    if not book.hold or state.checkpoints.in_flight is not None or state.awaited():
        return
    ctx.touch()
    book.hold = False
    if state.suspending and state.checkpoints.saved_step == book.current:
        life.suspend(ctx, _why_suspended(state))
        ring.dismiss(ctx)
        return
    choice = _wanted(ctx)
    if choice is not None and _loses_state(state, choice) and state.checkpoints.saved_step == book.current:
        ring.announce(ctx, choice, choice.change, planned=True)
        ring.dismiss(ctx)
    else:
        prepare_if_complete(ctx)


def _change_planned(ctx: DecisionContext, *, goes_ahead: bool, last_seconds: float) -> bool:
    """Decide what is sent with the Prepared of the step just prepared; True if the ring changes.

    goes_ahead: some member may have begun the next step. last_seconds: that the step took.
    """
    state, book = ctx.state, ctx.state.steps
    if state.awaited() or state.ring.put_off:
        return False
    is_last = 0 < state.total_steps <= book.current  # the members only have to end
    # The draws of the code between two epochs are known only once every member has reported them
    # (intervals.py); a member that left earlier would take its part with it. So the ring changes after the
    # first step of the next epoch.
    stays = is_last or state.begins_epoch(book.current)
    balance.judge(state)
    stragglers.judge(state)
    choice = None if stays else _wanted(ctx)
    if choice is None or following.postpones(ctx, choice):
        # Before the first step of an epoch, members that have been told of a change wait on.
        book.change_waits = book.change_waits and stays
        if reason := checkpoints.due_reason(state, book.current):
            checkpoints.begin(ctx, book.current, reason)
        return False
    unsaved = state.settings.checkpoint_url and state.checkpoints.saved_step != book.current
    if unsaved and _loses_state(state, choice):
        _close_with_checkpoint(ctx, choice)
        return False
    if state.suspending:
        return False
    change = choice.change
    if goes_ahead:
        step_seconds = max(last_seconds, balance.ring_step_seconds(state) or 0.0)
        hurry = going_ahead.hurry(state, choice, ctx.now, step_seconds)
        if going_ahead.postpones(state, hurry):
            return False
        change += hurry
    ring.announce(ctx, choice, change, planned=True, notified=state.ring.names())
    return True


def _close_with_checkpoint(ctx: DecisionContext, choice: Choice) -> None:
    state, book = ctx.state, ctx.state.steps
    if ctx.now < state.checkpoints.not_before:
        return
    checkpoints.give_up(ctx, "a checkpoint before the ring ends takes its place", again=True)
    checkpoints.begin(ctx, book.current, f"before the ring ends: {choice.change}", closing=True)
    book.hold = True


def _wanted(ctx: DecisionContext) -> Choice | None:
    """Choose the ring to change to, an empty one to suspend the job; None for no change."""
    if ctx.state.suspending:
        why = _why_suspended(ctx.state)
        return Choice((), why, why)
    return membership.planned_members(ctx)


def _why_suspended(state: JobState) -> str:
    return autoscaling.why_suspended(state) or SUSPENDED


def _loses_state(state: JobState, choice: Choice) -> bool:
    """True if the next ring would lose the state: no current member, or no holder of some unit."""
    workers = {member.worker for member in choice.members}
    return not set(state.ring.names()) & workers or bool(unit_holders.lost_without(state, workers))


def _reporting_member(ctx: DecisionContext, event: StepReported) -> Member | None:
    """Return the reporting member; None for a message that is late or from an old stream."""
    state, ring_state = ctx.state, ctx.state.ring
    if ctx.attending(event.worker, event.session) is None or state.phase != "running":
        return None
    if event.generation > ring_state.generation:
        raise Rejection(
            "stale",
            f"a step of generation {event.generation}, the ring is at {ring_state.generation}",
            hint="this master has not formed that ring; join again",
            generation=ring_state.generation,
        )
    if event.generation < ring_state.generation or ring_state.stage is not Stage.RUNNING:
        again = event.generation == ring_state.generation - 1 and event.step == state.steps.prepared
        if again and event.worker in ring_state.planned_from:
            ctx.send(event.worker, messages.prepared(state, event.worker))
        return None
    return ring_state.member(event.worker)


def _reports_forgotten_ring(ctx: DecisionContext, event: StepReported) -> bool:
    """True if a member trains in a ring that has not formed by the store's data: the store lost its Go."""
    ring_state = ctx.state.ring
    return (
        ring_state.changing
        and event.generation == ring_state.generation
        and not ring_state.put_off
        and not ctx.state.steps.catching_up
        and ctx.attending(event.worker, event.session) is not None
        and ring_state.member(event.worker) is not None
    )


def _check_report(ctx: DecisionContext, event: StepReported, member: Member) -> None:
    current, total = ctx.state.steps.current, ctx.state.total_steps
    if event.step != current or (total and event.step >= total):
        # If the store lost acknowledged writes, the worker is not at fault and must be able to join again.
        raise Rejection(
            "stale",
            f"{event.worker} reports step {event.step}, the ring is at step {current}",
            hint="a step starts only after the previous one was prepared; join again",
            step=event.step,
            expected=current,
        )
    require_ranks(event.contexts, member.start, member.end, worker=event.worker)
    ranks = [task.virtual_rank for task in event.tasks]
    if ranks != list(range(member.start, member.end)):
        raise Rejection(
            "invalid_argument",
            f"tasks of virtual ranks {ranks} instead of {member.start}..{member.end - 1}",
            hint="report the task of each hosted EST once, in ascending order",
            worker=event.worker,
        )
