"""Decisions at a step boundary: the step is prepared, and everything planned takes effect.

A boundary is the only point at which the ring can change without losing work, so joins, drains, scaling,
suspension and checkpoints all wait for it and are sent with its Prepared. If the ring would end, or lose
every holder of the state, a checkpoint is saved first: meanwhile the next step's Prepared is held back, so
that nothing is applied that is not in the checkpoint.
"""

from __future__ import annotations

from elastane_master.decisions import (
    checkpoints,
    claims,
    cost,
    endings,
    fingerprints,
    forgotten,
    life,
    membership,
    messages,
    ring,
    sentinel,
)
from elastane_master.decisions.assignment import Choice
from elastane_master.decisions.contexts import require_ranks
from elastane_master.decisions.effects import Member
from elastane_master.decisions.events import (
    AppliedReported,
    Rejection,
    SavedReported,
    StepReported,
)
from elastane_master.decisions.ring_state import Stage
from elastane_master.decisions.state import JobState
from elastane_master.decisions.turn import Turn
from elastane_proto.history import events as history

SUSPENDED = "suspended on request"


def report_step(turn: Turn, event: StepReported) -> None:
    """Handle a member's report of a step; the last member's report prepares the step."""
    state, steps = turn.state, turn.state.steps
    if _reports_forgotten_ring(turn, event):
        forgotten.require_bringable(state, event)
        why = f"{event.worker} trains in a ring whose Go the store has forgotten"
        forgotten.begin(turn, why, event.worker)
        forgotten.bring(turn, event)
        ring.reform(turn, why)
        return
    if steps.catching_up:
        if turn.attending(event.worker, event.session) is not None:
            forgotten.require_bringable(state, event)
            forgotten.bring(turn, event)
            ring.proceed(turn)
        return
    member = _reporting_member(turn, event)
    if member is None:
        return
    if event.step <= steps.prepared:
        # The Prepared may have been lost with an old stream: send it again.
        if event.step == steps.prepared and steps.prepared >= state.ring.resume_step:
            turn.send(event.worker, messages.prepared(state, event.worker))
        return
    if event.worker in steps.reports:
        return
    _check_report(turn, event, member)
    if endings.goes_on(turn, event.worker):
        return
    turn.touch()
    record = state.workers[event.worker]
    claims.proven(state, record, event.step)
    record.trainer_at, record.between_since = turn.now, None
    if member.start == 0 and not steps.ready_order:
        steps.ready_order = event.ready_order
    digests = (event.settings_digest, event.state_digest)
    contexts = state.contexts.after(event.step, event.contexts)
    steps.report(event.worker, contexts, event.tasks, event.epoch, digests)
    turn.queues.step_reported(event.worker, range(member.start, member.end))
    ring.commit_applied(turn)
    # A member whose script ended cannot take part in this step's all-reduce.
    ended = [worker for worker in state.ring.gone if state.finished.get(worker, event.step + 1) <= event.step]
    if ended:
        ring.reform(turn, f"the script of {ended[0]} ended before step {event.step}, the others go on")
    else:
        prepare_if_complete(turn)


def prepare_if_complete(turn: Turn) -> None:
    """Prepare the step if all N contexts are in and nothing holds it back; members may then apply it."""
    state, book = turn.state, turn.state.steps
    if (
        book.hold
        or sentinel.holds(state)
        or state.ring.stage is not Stage.RUNNING
        or book.reported_ranks() < state.settings.ests
    ):
        return
    if fingerprints.hold_back(turn):
        return
    turn.touch()
    contexts = book.prepare(state.ring.generation, turn.now)
    cost.prepared(state, turn.now)
    state.contexts.put(book.prepared + 1, contexts)
    state.ring.stalled_since, state.ring.breaks = None, 0
    before = state.ring.names()
    if not _change_planned(turn):
        sentinel.step_begins(state, book.current)
        turn.queues.step_begins(state.ring.members, book.prepared + 1, turn.now)
    for worker in before:
        if worker in state.workers:
            turn.send(worker, messages.prepared(state, worker))


def applied(turn: Turn, event: AppliedReported) -> None:
    """Handle a heartbeat: a member applied a step, or entered or left user code between steps."""
    state = turn.state
    record = turn.attending(event.worker, event.session)
    if record is None or record.role != "ring":
        return
    member = state.ring.stage is Stage.RUNNING and state.ring.member(event.worker) is not None
    if event.between_steps != (record.between_since is not None):
        turn.touch()
        record.between_since = turn.now if event.between_steps else None
        record.trainer_at = turn.now if record.trainer_at is not None else None
        state.ring.unblocked_at = turn.now
        if member and event.between_steps:
            turn.queues.training.pause(event.worker)
        elif member:
            turn.queues.training.resume(event.worker, turn.now)
    if not member or event.generation != state.ring.generation:
        return
    # A member that receives the state proves that it has it by applying its first step.
    known = record.applied_step if record.holds_state else state.ring.resume_step
    if known < event.applied_step <= state.steps.prepared + 1:
        turn.touch()
        claims.proven(state, record, event.applied_step)
        record.trainer_at = turn.now
        if record.between_since is None:
            turn.queues.training.resume(event.worker, turn.now)
        ring.commit_applied(turn)


def saved(turn: Turn, event: SavedReported) -> None:
    """Handle the result of a member's write of a shard or the manifest."""
    state = turn.state
    record = turn.attending(event.worker, event.session)
    if record is None:
        return
    flight = state.checkpoints.in_flight
    if checkpoints.report(turn, event) == "failed" and state.suspending:
        state.suspending = False
        turn.note(history.SuspensionGivenUp())
    if flight is not None and flight.checkpoint == event.checkpoint and record.applied_step < flight.step:
        # A shard contains the weights after the step, so its writer has applied the step.
        claims.proven(state, record, flight.step)
        ring.commit_applied(turn)


def release(turn: Turn) -> None:
    """Continue once the checkpoint that held back Prepared is saved or given up."""
    state, book = turn.state, turn.state.steps
    if not book.hold or state.checkpoints.in_flight is not None or state.awaited():
        return
    turn.touch()
    book.hold = False
    if state.suspending and state.checkpoints.saved_step == book.current:
        life.suspend(turn, SUSPENDED)
        ring.dismiss(turn)
        return
    choice = _wanted(turn)
    if choice is not None and _loses_state(state, choice) and state.checkpoints.saved_step == book.current:
        ring.announce(turn, choice, choice.change, planned=True)
        ring.dismiss(turn)
    else:
        prepare_if_complete(turn)


def _change_planned(turn: Turn) -> bool:
    """Decide what is sent with the Prepared of the step just prepared; True if the ring changes."""
    state, book = turn.state, turn.state.steps
    if state.awaited() or state.ring.put_off:
        return False
    is_last = 0 < state.total_steps <= book.current  # the members only have to end
    # The draws of the code between two epochs are known only once every member has reported them
    # (intervals.py); a member that left earlier would take its part with it. So the ring changes after the
    # first step of the next epoch.
    stays = is_last or state.begins_epoch(book.current)
    choice = None if stays else _wanted(turn)
    if choice is None:
        if reason := checkpoints.due_reason(state, book.current):
            checkpoints.begin(turn, book.current, reason)
        return False
    unsaved = state.settings.checkpoint_url and state.checkpoints.saved_step != book.current
    if unsaved and _loses_state(state, choice):
        _close_with_checkpoint(turn, choice)
        return False
    if state.suspending:
        return False
    ring.announce(turn, choice, choice.change, planned=True, told=state.ring.names())
    return True


def _close_with_checkpoint(turn: Turn, choice: Choice) -> None:
    state, book = turn.state, turn.state.steps
    if turn.now < state.checkpoints.not_before:
        return
    checkpoints.give_up(turn, "a checkpoint before the ring ends takes its place", again=True)
    checkpoints.begin(turn, book.current, f"before the ring ends: {choice.change}", closing=True)
    book.hold = True


def _wanted(turn: Turn) -> Choice | None:
    """Choose the ring to change to, none if the job is to be suspended; None if it stays as it is."""
    if turn.state.suspending:
        return Choice((), SUSPENDED, SUSPENDED)
    return membership.planned_members(turn)


def _loses_state(state: JobState, choice: Choice) -> bool:
    """True if the next ring would contain no member of the current one."""
    return not set(state.ring.names()) & {member.worker for member in choice.members}


def _reporting_member(turn: Turn, event: StepReported) -> Member | None:
    """Return the reporting member; None for a message that is late or from an old stream."""
    state, ring_state = turn.state, turn.state.ring
    if turn.attending(event.worker, event.session) is None or state.phase != "running":
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
            turn.send(event.worker, messages.prepared(state, event.worker))
        return None
    return ring_state.member(event.worker)


def _reports_forgotten_ring(turn: Turn, event: StepReported) -> bool:
    """True if a member trains in a ring that has not formed by the store's data: the store lost its Go."""
    ring_state = turn.state.ring
    return (
        ring_state.changing
        and event.generation == ring_state.generation
        and not ring_state.put_off
        and not turn.state.steps.catching_up
        and turn.attending(event.worker, event.session) is not None
        and ring_state.member(event.worker) is not None
    )


def _check_report(turn: Turn, event: StepReported, member: Member) -> None:
    current, total = turn.state.steps.current, turn.state.total_steps
    if event.step != current or (total and event.step >= total):
        # Not the worker's fault if the store lost what the previous master had acknowledged: the worker must
        # be able to join anew.
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
