"""Messages of the current generation, built from the state, so that they can be sent again at any time."""

from __future__ import annotations

from elastane_master.decisions import checkpoints, fingerprints, following, forgotten, sentinel
from elastane_master.decisions.decision_context import DecisionContext
from elastane_master.decisions.effects import Go, IntervalDecided, Load, Member, Prepare, Prepared
from elastane_master.decisions.ring_state import Stage
from elastane_master.decisions.state import JobState, WorkerRecord


def prepare(state: JobState, worker: str) -> Prepare:
    """Prepare of the current generation; without members for a worker that is not in it."""
    ring = state.ring
    members = ring.members if ring.member(worker) else ()
    # In a pipeline no unit may stay a step behind another: prepared steps are applied first.
    applies = state.unit_count and worker in ring.finishing
    return Prepare(
        ring.generation,
        members,
        ring.reason,
        state.steps.current if applies else None,
        # Other changes are often superseded: a death may be the first of several.
        _rendezvous_key(state) if ring.planned and members else b"",
        ring.planned and bool(members) and following.is_level(state, worker),
    )


def load(state: JobState) -> Load:
    """Load of the current generation, for the leader."""
    return Load(
        state.ring.generation,
        state.settings.checkpoint_url,
        forgotten.loadable_until(state),
        state.sentinel.doubts,
    )


def go(state: JobState, member: Member) -> Go:
    """Go of the current generation for one member, with the contexts of its ESTs."""
    ring = state.ring
    return Go(
        ring.generation,
        ring.resume_step,
        ring.members,
        ring.donors,
        ring.receivers,
        state.contexts.ranks(ring.resume_step, member.start, member.end),
        state.steps.ready_order,
        _interval(state),
        state.history_generation,
        sentinel.order_for(state, member, ring.resume_step),
        _rendezvous_key(state),
        ring.plan,
    )


def _rendezvous_key(state: JobState) -> bytes:
    """Return the key of the store at which the members meet: the first member's."""
    host = state.workers.get(state.ring.members[0].worker)
    return host.rendezvous_key if host is not None else b""


def _interval(state: JobState) -> IntervalDecided | None:
    """Decision on the code before the resumed step; complete ESTs are already in the contexts."""
    step = state.ring.resume_step
    interval = state.steps.intervals.get(step)
    if interval is None or interval.changes is None:
        return None
    return IntervalDecided(state.ring.generation, step, interval.changes)


def prepared(state: JobState, worker: str) -> Prepared:
    """Prepared of the newest prepared step, with the changes that follow for this member."""
    ring, steps = state.ring, state.steps
    changing = worker in ring.planned_from
    return Prepared(
        ring.generation - 1 if changing else ring.generation,
        steps.prepared,
        # Of step 0, or with a static graph of step 1; from then on it comes with Go.
        steps.ready_order if steps.prepared <= 1 else (),
        prepare(state, worker) if changing else None,
        None if changing else checkpoints.message_for(state, worker, steps.prepared + 1),
        None if changing else sentinel.order_for(state, ring.member(worker), steps.prepared + 1),
        None if changing else following.for_source(state, worker, steps.prepared + 1),
        not changing and (steps.change_waits or steps.hold or sentinel.will_check(state, steps.prepared + 2)),
    )


def resend(ctx: DecisionContext, record: WorkerRecord) -> None:
    """Repeat the last messages to a member that returned to a restarted master."""
    state, ring = ctx.state, ctx.state.ring
    member = ring.member(record.worker)
    if ring.stage is Stage.PREPARING and record.ready_generation != ring.generation:
        if record.worker in ring.planned_from:
            ctx.send(record.worker, prepared(state, record.worker))
        else:
            ctx.send(record.worker, prepare(state, record.worker))
    elif ring.stage is Stage.LOADING and member is not None and member == ring.members[0]:
        ctx.send(record.worker, load(state))
    elif ring.stage is Stage.RUNNING and member is not None:
        steps = state.steps
        if steps.prepared < ring.resume_step and record.worker not in steps.reports:
            ctx.send(record.worker, go(state, member))
        if steps.prepared >= ring.resume_step and record.applied_step <= steps.prepared:
            ctx.send(record.worker, prepared(state, record.worker))
        if state.drift is not None and record.worker not in state.drift.details:
            ctx.send(record.worker, fingerprints.explain_message(state.drift))
