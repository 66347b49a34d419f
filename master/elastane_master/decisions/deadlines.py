"""Deadlines of the training: steps, Ready, Load, user code between steps.

A stuck trainer is detected by the lease of its tasks, but blamed only if no other can be the cause:

  it has applied the step before and does not report this one: it hangs, and is evicted
  a prepared step is not applied by all: the collective hangs, any member may be the cause, and
  the ring is formed anew
  the first step of a ring is not reported: forming the group needs all of them, so the one that was
  silent for longest is evicted, and the others get a new lease

A member in user code between two steps holds no lease; idle_max_seconds bounds that. A member that waits for
others to leave such code is not to blame, however long it takes.
"""

from __future__ import annotations

from collections.abc import Iterator

from elastane_master.decisions import (
    absent_holders,
    budget,
    checkpoints,
    datasets,
    deadline_on_spot,
    fingerprints,
    forgotten,
    intervals,
    notices,
    quarantine,
    ring,
    sentinel,
    sessions,
    waiting,
)
from elastane_master.decisions.decision_context import DecisionContext
from elastane_master.decisions.ring_state import Stage
from elastane_master.decisions.slots import settling
from elastane_master.decisions.state import JobState, WorkerRecord

READY_SECONDS_MIN = 10.0
FIRST_STEP_FACTOR = 4.0
"""The first step of a ring includes forming the group and transferring the state."""
FIRST_STEP_UNTIMED_FACTOR = 20.0
"""The job's first step may also include compiling the model: multiple of the minimum lease."""


def tick(ctx: DecisionContext) -> None:
    """Decide on everything that is due."""
    state, ring_state = ctx.state, ctx.state.ring
    if state.grace_until is not None and ctx.now >= state.grace_until:
        sessions.grace_over(ctx)
    if quarantine.release(ctx):
        ring.form_if_due(ctx)
    if not state.awaited():
        fingerprints.expire(ctx)
        if ring_state.rebuild_due is not None and ctx.now >= ring_state.rebuild_due:
            _rebuild(ctx)
        elif ring_state.stage is Stage.NONE:
            if state.join_due is not None and ctx.now >= state.join_due:
                ctx.touch()
                state.join_due = None
                ring.form_if_due(ctx)
        elif ring_state.stage is Stage.RUNNING:
            _running(ctx)
        elif forgotten.expire(ctx) or absent_holders.expire(ctx):
            ring.proceed(ctx)
        else:
            _changing(ctx)
        _leavers(ctx)
        notices.expire(ctx)
        waiting.expire(ctx)
    flight = state.checkpoints.in_flight
    if flight is not None and ctx.now >= flight.since + state.settings.idle_max_seconds:
        checkpoints.give_up(ctx, f"not written within {state.settings.idle_max_seconds:g} s", again=False)
    datasets.expire(ctx)
    settling.expire(ctx)


def next_deadline(ctx: DecisionContext) -> float | None:
    """Time at which the next Tick is needed, None if there is no deadline."""
    state, ring_state = ctx.state, ctx.state.ring
    deadlines: list[float | None] = [
        state.grace_until,
        datasets.next_deadline(ctx.queues.dynamic),
        quarantine.next_deadline(state),
        settling.next_deadline(ctx),
    ]
    if state.checkpoints.in_flight is not None:
        deadlines.append(state.checkpoints.in_flight.since + state.settings.idle_max_seconds)
    if not state.awaited():
        deadlines.append(ring_state.rebuild_due)
        deadlines.append(fingerprints.next_deadline(state))
        deadlines.append(state.wait_until)
        deadlines.append(notices.next_deadline(state))
        deadlines.append(deadline_on_spot.next_look(state))
        deadlines.append(budget.spent_at(state))
        deadlines += [deadline for deadline, _, _ in _member_deadlines(ctx)]
        deadlines += [_ready_due(ctx, record) for record in _unready_leavers(state)]
        if ring_state.stage is Stage.NONE and state.phase == "waiting":
            deadlines.append(state.join_due)
        elif ring_state.stage is Stage.PREPARING:
            due = [_ready_due(ctx, record) for record in ring.unready(state)]
            awaited = [state.steps.catch_up_until, absent_holders.deadline(state)]
            # With all answers in, nothing but those who may still come can keep the ring from going.
            deadlines += due or [max(ring_state.since + ready_seconds(ctx), *(at or 0.0 for at in awaited))]
            deadlines += awaited
        elif ring_state.stage is Stage.LOADING:
            deadlines.append(ring_state.since + state.settings.idle_max_seconds)
    return min((deadline for deadline in deadlines if deadline is not None), default=None)


def ready_seconds(ctx: DecisionContext) -> float:
    """Time a worker has to answer Prepare, in seconds."""
    lockstep = ctx.queues.lockstep
    return max(READY_SECONDS_MIN, _lease_seconds(ctx) if lockstep else 0.0)


def _ready_due(ctx: DecisionContext, record: WorkerRecord) -> float:
    """Deadline for a worker's answer; further changes of the ring do not extend it."""
    since, ring_state = record.unanswered_since, ctx.state.ring
    if since is None or ring_state.planned_from:  # a planned change waits for the step in flight
        since = ring_state.since
    return since + ready_seconds(ctx)


def _rebuild(ctx: DecisionContext) -> None:
    ring_state = ctx.state.ring
    reason, ring_state.rebuild_due, ring_state.rebuild_reason = ring_state.rebuild_reason, None, ""
    ctx.touch()
    # A ring that was formed after the last step only hands over the state: whoever waits for it cannot end.
    hands_over = ring_state.resume_step >= ctx.state.total_steps
    done = ctx.state.all_committed and ring_state.stage is Stage.RUNNING and not hands_over
    if ring_state.stage is not Stage.NONE and not done:
        ring.reform(ctx, reason)


def _changing(ctx: DecisionContext) -> None:
    """Handle a ring change that does not complete in time."""
    state, ring_state = ctx.state, ctx.state.ring
    if ring_state.stage is Stage.LOADING:
        leader = state.workers.get(ring_state.members[0].worker)
        limit_seconds = state.settings.idle_max_seconds
        if leader is not None and ctx.now >= ring_state.since + limit_seconds:
            was_needed = sessions.evict(ctx, leader, f"did not load a checkpoint within {limit_seconds:g} s")
            sessions.after_loss(ctx, was_needed, f"{leader.worker} did not load a checkpoint")
        return
    limit_seconds = ready_seconds(ctx)
    unready = ring.unready(state)
    late = [record for record in unready if ctx.now >= _ready_due(ctx, record)]
    if not late and ctx.now < ring_state.since + limit_seconds:
        return
    names = ", ".join(record.worker for record in late)
    if any(record.worker in ring_state.planned_from for record in late):
        # They wait for the all-reduce of the previous step, in which any member may be the cause.
        ring.reform(ctx, f"{names} did not apply step {state.steps.prepared} within {limit_seconds:g} s")
        return
    evicted = [
        sessions.evict(ctx, record, f"did not answer Prepare within {limit_seconds:g} s") for record in late
    ]
    if evicted:
        sessions.after_loss(ctx, any(evicted), f"{names} did not answer Prepare")
    ring.proceed(ctx)


def _running(ctx: DecisionContext) -> None:
    """Evict members that hang."""
    state, ring_state = ctx.state, ctx.state.ring
    overdue = [(record, reason) for due, record, reason in _member_deadlines(ctx) if due <= ctx.now]
    blamed = [(record, reason) for record, reason in overdue if record is not None]
    if overdue and not blamed:
        ring.reform(ctx, overdue[0][1])
        return
    if not blamed:
        return
    if state.steps.current == ring_state.resume_step and not state.steps.reports:
        blamed = [min(blamed, key=lambda item: item[0].trainer_at or 0.0)]
        # The others could not proceed without it, so their time starts anew.
        ring_state.stalled_since = None
        for record in state.active_members():
            record.trainer_at = ctx.now if record.trainer_at is not None else None
    members = [ring_state.member(record.worker) for record, _ in blamed]
    ctx.queues.ring_stopped(timed_out=sum(member.end - member.start for member in members if member))
    for record, reason in blamed:
        sessions.evict(ctx, record, reason)
    sessions.after_loss(ctx, True, f"{blamed[0][0].worker} was evicted: {blamed[0][1]}")


def _member_deadlines(ctx: DecisionContext) -> Iterator[tuple[float, WorkerRecord | None, str]]:
    """Yield (deadline, worker to blame or None if unknown, reason) of everything a running ring waits for."""
    state, ring_state, steps = ctx.state, ctx.state.ring, ctx.state.steps
    if ring_state.stage is not Stage.RUNNING:
        return
    records = [record for record in state.active_members() if not intervals.waits(state, record.worker)]
    idle_seconds = state.settings.idle_max_seconds
    between = [record for record in records if record.between_since is not None]
    # One text for all of them: with thousands of members, building texts would cost more than the deadlines.
    reason = f"was between two steps for more than {idle_seconds:g} s"
    for record in between:
        yield (record.between_since or 0.0) + idle_seconds, record, reason
    if state.all_committed:
        return
    step = steps.current
    inside = [
        record
        for record in records
        if record.between_since is None
        and (record.worker not in steps.reports or sentinel.owes(state, record.worker))
    ]
    if step == ring_state.resume_step:
        if not between:
            lease_seconds = _first_step_seconds(ctx)
            reason = f"did not do step {step} within {lease_seconds:g} s"
            earliest = max(ring_state.stalled_since or 0.0, ring_state.unblocked_at)
            for record in inside:
                yield max(record.trainer_at or 0.0, earliest) + lease_seconds, record, reason
        return
    late = [record for record in inside if record.applied_step < step]
    lease_seconds = _lease_seconds(ctx)
    if late:
        names = ", ".join(record.worker for record in late)
        reason = f"{names} did not apply step {steps.prepared} within {lease_seconds:g} s"
        yield steps.prepared_at + lease_seconds, None, reason
    reason = f"did not do step {step} within {lease_seconds:g} s"
    for record in inside:
        if record.applied_step >= step:
            yield max(record.trainer_at or 0.0, steps.prepared_at) + lease_seconds, record, reason


def _lease_seconds(ctx: DecisionContext) -> float:
    """Time limit for a step; never longer than the limit for user code between two steps."""
    return min(ctx.queues.training.lease_seconds, ctx.state.settings.idle_max_seconds)


def _first_step_seconds(ctx: DecisionContext) -> float:
    settings = ctx.state.settings
    seconds = ctx.queues.training.lease_seconds * FIRST_STEP_FACTOR
    if ctx.state.steps.prepared_count <= 1:
        seconds = max(seconds, settings.lease_min_seconds * FIRST_STEP_UNTIMED_FACTOR)
    return min(seconds, settings.idle_max_seconds)


def _leavers(ctx: DecisionContext) -> None:
    """Evict workers that left the ring but do not stop."""
    for record in list(_unready_leavers(ctx.state)):
        if ctx.now >= _ready_due(ctx, record):
            sessions.evict(ctx, record, "left the ring but did not answer Prepare")


def _unready_leavers(state: JobState) -> Iterator[WorkerRecord]:
    ring_state = state.ring
    if ring_state.stage in (Stage.NONE, Stage.RUNNING):
        for record in state.ring_workers():
            stopped = record.trainer_at is None or record.ready_generation == ring_state.generation
            leaves = record.draining and ring_state.member(record.worker) is None
            if leaves and not record.drain_sent and not stopped:
                yield record
