"""Sessions of workers: join, leave, death, and return to a restarted master.

A session is one stream, from Hello to Bye. A stream that ends without Bye while the master lives means a
death: the worker is evicted, and its next Hello counts as a new join. Only a restart of the master ends
streams through no fault of the workers: the ring's members then have the return grace to come back, and if
all of them do, the generation does not change.
"""

from __future__ import annotations

from elastane_master.decisions import (
    absent_holders,
    balance,
    checkpoints,
    cost,
    datasets,
    fingerprints,
    forgotten,
    held_state,
    life,
    membership,
    messages,
    pipelines,
    processes,
    quarantine,
    ring,
    unit_seconds,
    waiting,
)
from elastane_master.decisions.decision_context import DecisionContext
from elastane_master.decisions.effects import Done, Drain, Welcome
from elastane_master.decisions.events import (
    ByeReported,
    ExitReported,
    FilesIncomplete,
    LeavingReported,
    MasterStarted,
    Rejection,
    Signature,
    StreamLost,
    WorkerJoined,
)
from elastane_master.decisions.ring_state import Stage
from elastane_master.decisions.signatures import completed, require_equal, require_level
from elastane_master.decisions.slots import processes as slot_processes
from elastane_master.decisions.state import HALTED, OVER, JobState, WorkerRecord
from elastane_proto.history import events as history
from elastane_proto.history.describe import left_how, lost_how

NOTICE_MARGIN_SECONDS = 1.0
"""Time before the end of its notice, at most a tenth of it, from which a worker is no longer awaited."""
RESTART = "restart"
"""Phase in a Done that tells the process to restart."""
SIGNALLED = "SIGTERM"
"""Reason given by a worker that leaves without a termination notice for its node."""

BY_AGENT = "asked for by its agent"
"""Beginning of the reason if its agent sent the signal and gave a cause (its module `policy`)."""

ANEW = "history went back behind what this process has trained"


def joined(ctx: DecisionContext, event: WorkerJoined) -> None:
    """Handle a Hello: a new worker, or a member that returns after the master's restart."""
    state = ctx.state
    if not event.worker or not event.session:
        raise Rejection("invalid_argument", "Hello without a worker id", hint="set worker_id")
    if state.phase in OVER or state.phase in HALTED:
        ctx.send(event.worker, Welcome(state.ring.generation, False))
        ctx.send(event.worker, Done(state.phase, state.reason))
        return
    record = state.workers.get(event.worker)
    if record is not None and record.session == event.session:
        return
    processes.require_newest(state, event)
    if event.role == "ring" and 0 < event.generation < state.sentinel.anew_generation:
        ctx.send(event.worker, Welcome(state.ring.generation, False))
        ctx.send(event.worker, Done(RESTART, ANEW))
        return
    if event.role == "ring":
        _require_signature(state, event)
        forgotten.require_known(state, event)
    ctx.touch()
    if event.role == "ring":
        _take_signature(ctx, event)
        forgotten.notice(ctx, event)
    is_other = processes.came(state, event)
    absent_holders.came(state, event, is_other=is_other)
    if record is not None and record.awaited and not is_other and _is_same(record, event):
        if not held_state.is_foreign(state, event):
            _returned(ctx, record, event)
            return
        record.holds_state = False
    was_needed = False
    was_awaited = record is not None and record.awaited
    if record is not None:
        lost = _lost_again(record, event, is_other)
        reason = lost_how(lost)
        ctx.note(lost)
        if is_other:
            refusal = processes.replaced(event.worker)
            ctx.close(event.worker, refusal.reason, str(refusal), refusal.hint)
        else:
            ctx.close(event.worker, "evicted", reason)
        was_needed = _remove(ctx, record, reason, counts=True)
    _add(ctx, event)
    pipelines.memory_known(ctx)
    if record is not None:
        after_loss(ctx, was_needed, f"{event.worker} was lost and came back")
    if was_awaited and not state.awaited():
        _settle(ctx)
    if event.role == "ring":
        _admit(ctx, event.worker)
    if state.ring.put_off and state.ring.stage is not Stage.NONE and not state.awaited():
        ring.reform(ctx, state.ring.put_off)
    if event.worker in state.pipeline.absent:
        ring.proceed(ctx)  # it is asked what it holds


def stream_lost(ctx: DecisionContext, event: StreamLost) -> None:
    """Handle a stream's end without Bye, or a heartbeat timeout: the worker is dead."""
    record = ctx.attending(event.worker, event.session)
    if record is None:
        return
    ctx.note(history.WorkerLost(event.worker, "stream", event.reason))
    ctx.close(event.worker, "evicted", event.reason)
    absent_holders.lost(ctx, record)
    was_needed = _remove(ctx, record, event.reason, counts=True)
    after_loss(ctx, was_needed, f"{event.worker} was lost: {event.reason}")


def exit_reported(ctx: DecisionContext, event: ExitReported) -> None:
    """Record how a worker's process ended; its death is decided by the end of its stream."""
    ctx.note(history.WorkerExited(event.worker, event.how, event.out_of_memory, event.last_words))
    if absent_holders.exited(ctx, event.worker):
        ring.proceed(ctx)


def files_incomplete(ctx: DecisionContext, event: FilesIncomplete) -> None:
    """Record that workers' log files are incomplete."""
    ctx.note(history.LogFilesIncomplete(event.host, event.location, event.why))


def evict(ctx: DecisionContext, record: WorkerRecord, reason: str) -> bool:
    """Evict a worker; True if the ring needed it. The caller continues with `after_loss`."""
    ctx.note(history.WorkerEvicted(record.worker, reason))
    ctx.close(record.worker, "evicted", reason)
    return _remove(ctx, record, reason, counts=True)


def bye(ctx: DecisionContext, event: ByeReported) -> None:
    """Handle the regular end of a session: the script finished, was drained, or raised."""
    state = ctx.state
    record = ctx.attending(event.worker, event.session)
    if record is None:
        return
    worker = record.worker
    was_member = state.ring.member(worker) is not None
    if event.reason == "failed":
        lost = history.WorkerLost(worker, "raised", event.message)
        ctx.note(lost)
        if event.out_of_memory:
            balance.out_of_memory(state, record, event.device_type)
        was_needed = _remove(ctx, record, lost_how(lost), counts=True)
        if was_member and life.count_failure(ctx, worker, event.applied_step, event.message):
            return
        after_loss(ctx, was_needed, f"the script of {worker} raised: {event.message}")
        return
    processes.left(state, worker)
    why = event.message or (record.drain_reason if event.reason == "drained" else "")
    left = history.WorkerLeft(worker, event.reason == "finished", why)
    what = left_how(left)
    ctx.note(left)
    was_needed = _remove(ctx, record, what, counts=False)
    if event.reason == "finished" and _ended_in_this_history(ctx, record, event, was_member):
        state.finished[worker] = event.applied_step
        pipelines.ended(state, record)
        state.ring.gone_applied.pop(worker, None)
        if event.state_digest is not None:
            state.final_digests[worker] = event.state_digest
        ring.commit_applied(ctx)
        # Remaining members only have to end. If none remains and units were lost, a new ring computes them.
        only_to_end = state.ring.stage is Stage.RUNNING and bool(state.active_members())
        if not life.conclude_if_finished(ctx) and not only_to_end:
            ring.reform(ctx, f"the script of {worker} came to its end")
        return
    after_loss(ctx, was_needed, f"{worker} {what}")


def _ended_in_this_history(
    ctx: DecisionContext, record: WorkerRecord, event: ByeReported, was_member: bool
) -> bool:
    """True if a script's end counts: an evicted worker may end with steps of an older history."""
    state = ctx.state
    if held_state.is_fenced(state, event.worker, event.applied_step):
        return False
    forgotten.restore(ctx)
    if event.applied_step > state.steps.whole_until:
        return False  # others may still bring what the store lost of its last steps
    if was_member and state.ring.stage is Stage.RUNNING:
        return event.applied_step <= state.steps.prepared + 1
    return record.holds_state and (was_member or event.applied_step >= state.total_steps > 0)


def leaving(ctx: DecisionContext, event: LeavingReported) -> None:
    """Handle a worker's request to be drained: now, or within its node's spot-termination notice."""
    record = ctx.attending(event.worker, event.session)
    if record is None:
        return
    if event.notice_seconds > 0:
        ctx.touch()
        leave_by = ctx.now + event.notice_seconds - min(NOTICE_MARGIN_SECONDS, event.notice_seconds / 10)
        record.leave_by = leave_by if record.leave_by is None else min(record.leave_by, leave_by)
    if not record.draining:
        signalled = event.reason == SIGNALLED or event.reason.startswith(BY_AGENT)
        drain(ctx, record, event.reason or "it asked to leave", by="signal" if signalled else "reclaim")


def drain(ctx: DecisionContext, record: WorkerRecord, reason: str, *, by: str) -> None:
    """Drain a worker: it leaves at the next step boundary, or at once if it hosts no ESTs.

    by: as of `WorkerDraining`.
    """
    ctx.touch()
    record.draining, record.drain_reason = True, reason
    record.reason = f"leaves: {reason}"
    ctx.note(history.WorkerDraining(record.worker, reason, by))
    if record.role == "tasks":
        record.drain_sent = True
        ctx.send(record.worker, Drain(reason))
    else:
        ring.dismiss(ctx)


def after_loss(ctx: DecisionContext, was_needed: bool, reason: str) -> None:
    """Decide how the ring continues without workers that were just removed."""
    state, ring_state = ctx.state, ctx.state.ring
    if state.phase in OVER or state.phase in HALTED or life.conclude_if_finished(ctx):
        return
    if fingerprints.conclude(ctx):
        return
    if ring_state.stage is Stage.NONE:
        ring.form_if_due(ctx)
        return
    if state.all_committed and ring_state.stage is Stage.RUNNING and state.active_members():
        return  # the ring has nothing left to do; the others only have to end
    if was_needed:
        ring.reform(ctx, reason)


def master_started(ctx: DecisionContext, event: MasterStarted) -> None:
    """Handle a master's start: the ring's members have a grace to return, all others join anew."""
    state, ring_state = ctx.state, ctx.state.ring
    ctx.touch()
    cost.recount(state, ctx.now)
    slot_processes.master_started(ctx, event.master)
    waiting.master_started(ctx)
    absent_holders.master_started(ctx)
    if not state.workers:
        ctx.note(history.MasterStarted(event.master))
    else:
        state.join_due = None
        checkpoints.give_up(ctx, "the master was restarted while it was written", again=True)
        awaited = []
        needed = {*ring_state.names(), *ring_state.planned_from}
        for record in list(state.workers.values()):
            if record.worker in needed or record.role == "tasks":
                record.awaited, record.session = True, ""
                awaited.append(record.worker)
            else:
                _remove(ctx, record, "the master was restarted", counts=False)
        state.grace_until = ctx.now + state.settings.return_grace_seconds if awaited else None
        ctx.note(history.MasterRecovered(event.master, len(awaited), state.settings.return_grace_seconds))


def grace_over(ctx: DecisionContext) -> None:
    """End the return grace: evict workers that have not returned."""
    state, ring_state = ctx.state, ctx.state.ring
    ctx.touch()
    unsettled = bool(state.awaited())
    for record in [record for record in state.workers.values() if record.awaited]:
        lost = history.WorkerLost(
            record.worker, "not_returned", grace_seconds=state.settings.return_grace_seconds
        )
        why = lost_how(lost)
        ctx.note(lost)
        if _remove(ctx, record, why, counts=True):
            ring_state.put_off = ring_state.put_off or f"{record.worker} {why}"
    state.grace_until = None
    if unsettled:
        _settle(ctx)


def _settle(ctx: DecisionContext) -> None:
    """Settle after the last awaited member: clocks run again, and postponed decisions are made."""
    state, ring_state = ctx.state, ctx.state.ring
    ctx.touch()
    if life.conclude_if_finished(ctx):
        return
    ring_state.since = ring_state.unblocked_at = state.steps.prepared_at = ctx.now
    for record in state.ring_workers():
        if record.trainer_at is not None:
            record.trainer_at = ctx.now
        if record.unanswered_since is not None:
            record.unanswered_since = ctx.now
        if ring_state.stage is Stage.RUNNING and record.between_since is None:
            ctx.queues.training.resume(record.worker, ctx.now)
    only_to_end = state.all_committed and ring_state.stage is Stage.RUNNING and state.active_members()
    if ring_state.stage is Stage.NONE:
        ring.form_if_due(ctx)
    elif ring_state.put_off and not only_to_end:
        ring.reform(ctx, ring_state.put_off)
    else:
        ring_state.put_off = ""
        ring.proceed(ctx)
    ring.dismiss(ctx)


def _job_signature(state: JobState) -> Signature | None:
    """Return the signature that a worker's must equal; None if it will define the job's."""
    others = any(record.role == "ring" for record in state.workers.values())
    return state.signature if state.ring.generation or others else None


def _require_signature(state: JobState, event: WorkerJoined) -> None:
    """Raise Rejection if a worker of this signature cannot be in the job's ring."""
    level, job = state.settings.determinism, _job_signature(state)
    pipelines.require_model(state.settings, event.signature, event.worker)
    require_level(level, event.signature, event.worker)
    pipelines.require_memory(state, event)
    if job is not None:
        require_equal(job, event.signature, event.worker, level)
    elif min(event.signature.steps_per_epoch, event.signature.epochs, event.signature.dataset_size) < 0:
        raise Rejection(
            "invalid_argument", "a negative number of steps, epochs or samples", worker=event.worker
        )


def _take_signature(ctx: DecisionContext, event: WorkerJoined) -> None:
    """Let the first ring worker's signature define the job's; later ones may complete it."""
    state = ctx.state
    if (job := _job_signature(state)) is not None:
        state.signature = completed(job, event.signature)
        return
    ctx.queues.create_lockstep(state.settings, event.signature)
    state.signature = event.signature
    pipelines.model_known(ctx)


def _reports_from(state: JobState, event: WorkerJoined) -> int | None:
    """Return the first step from which the worker must resend its reports."""
    return state.steps.whole_until if event.role == "ring" else None


def _is_same(record: WorkerRecord, event: WorkerJoined) -> bool:
    """True if an awaited worker's Hello comes from the same process, so that it is still in the ring."""
    return (record.role, record.host, record.pid, record.store_address) == (
        event.role,
        event.host,
        event.pid,
        event.store_address,
    )


def _lost_again(record: WorkerRecord, event: WorkerJoined, is_other: bool) -> history.WorkerLost:
    """Build the loss event of a worker whose id sends Hello again. is_other: from another process."""
    if record.awaited:
        return history.WorkerLost(event.worker, "started_anew")
    if not is_other:
        return history.WorkerLost(event.worker, "new_session")
    where = f"process {event.pid} at {event.host}" if event.host and event.pid else ""
    return history.WorkerLost(event.worker, "replaced", where)


def _returned(ctx: DecisionContext, record: WorkerRecord, event: WorkerJoined) -> None:
    state, ring_state = ctx.state, ctx.state.ring
    record.session, record.awaited = event.session, False
    trains, reports_from = record.role == "ring", _reports_from(state, event)
    if 0 < event.generation < record.joined_generation:
        # The master before lost it and added it again. It knows of neither, and believes in its old ring.
        finishes = absent_holders.applies_until(state, event)
        ctx.send(record.worker, Welcome(record.joined_generation, False, reports_from, finishes))
    else:
        ctx.send(record.worker, Welcome(ring_state.generation, trains, reports_from))
    ctx.note(history.WorkerReturned(record.worker))
    running = ring_state.stage is Stage.RUNNING and event.generation == ring_state.generation
    is_member = ring_state.member(record.worker) is not None and event.holds_state
    if running and is_member and record.applied_step < event.applied_step <= state.steps.prepared + 1:
        held_state.proven(state, record, event.applied_step)
        ring.commit_applied(ctx)
    if trains and not ring_state.put_off:
        messages.resend(ctx, record)
    if trains and not state.awaited():
        _settle(ctx)


def _add(ctx: DecisionContext, event: WorkerJoined) -> None:
    state = ctx.state
    state.joined_count += 1
    finishes = absent_holders.applies_until(state, event)
    state.workers[event.worker] = WorkerRecord(
        worker=event.worker,
        session=event.session,
        role=event.role,
        joined_at=ctx.now,
        joined_order=state.joined_count,
        host=event.host,
        pid=event.pid,
        store_address=event.store_address,
        applied_step=event.applied_step,
        holds_state=held_state.believe_hello(state, event),
        reason="leases dynamic tasks" if event.role == "tasks" else "joins at the next change of the ring",
        capacity=event.capacity,
        rendezvous_key=event.rendezvous_key,
        memory_bytes=unit_seconds.memory_believed(event.memory_bytes),
        follows=event.follows,
        joined_generation=state.ring.generation,
        finishes=finishes is not None,
    )
    cost.joined(state, state.workers[event.worker], ctx.now)
    ctx.send(event.worker, Welcome(state.ring.generation, False, _reports_from(state, event), finishes))
    ctx.note(history.WorkerJoined(event.worker, event.role, event.host))
    if event.role == "ring":
        quarantine.receive(ctx, state.workers[event.worker])


def _admit(ctx: DecisionContext, worker: str) -> None:
    """Let a joining worker wait for the join window, or stand by if the ring is full."""
    state = ctx.state
    if state.join_due is None:
        state.join_due = ctx.now + state.settings.join_window_seconds
    record = state.workers[worker]
    # A newcomer stands by only if there are more workers than the ring takes.
    if len(state.workers) > membership.most_members(state) and record.held_until is None:
        choice = membership.next_members(state)
        if choice.members and worker not in {member.worker for member in choice.members}:
            record.reason = membership.standing_by(choice)
            ctx.note(history.WorkerStandby(worker, len(choice.members)))
    if state.ring.stage is Stage.LOADING and held_state.usable_step(state, record) >= 0:
        ring.reform(ctx, f"{worker} came back with the state: nothing has to be loaded")
    ring.form_if_due(ctx)


def _remove(ctx: DecisionContext, record: WorkerRecord, reason: str, *, counts: bool) -> bool:
    """Remove a worker; True if the ring needed it.

    counts: the worker died: its dynamic tasks failed an attempt, and repeated deaths delay its return.
    """
    state, ring_state, worker = ctx.state, ctx.state.ring, record.worker
    ctx.touch()
    needed = ring_state.member(worker) is not None or _still_needed(ctx, worker)
    del state.workers[worker]
    pipelines.memory_known(ctx)
    if counts and record.role == "ring":
        quarantine.died(state, worker, ctx.now)
    ring_state.order = tuple(name for name in ring_state.order if name != worker)
    ring_state.planned_from = tuple(name for name in ring_state.planned_from if name != worker)
    ring_state.finishing = tuple(name for name in ring_state.finishing if name != worker)
    if worker in ring_state.names():
        ring_state.gone = (*ring_state.gone, worker)
        ring_state.gone_applied[worker] = record.applied_step if record.holds_state else -1
    cost.left(state, record, ctx.now)
    flight = state.checkpoints.in_flight
    if flight is not None and worker in flight.workers:
        checkpoints.give_up(ctx, f"{worker} is gone: {reason}", again=True)
    datasets.abandon(ctx, worker, reason, counts=counts)
    return needed


def _still_needed(ctx: DecisionContext, worker: str) -> bool:
    """True if a planned change waits for members whose all-reduce needs `worker`, which leaves."""
    state, ring_state = ctx.state, ctx.state.ring
    return worker in ring_state.planned_from and any(
        record.ready_generation != ring_state.generation
        for record in state.active_members()
        if record.worker in ring_state.planned_from
    )
