"""The two-phase change of the ring.

    announce: g+1, members decided --> Prepare to all --> Ready from every member
    --> somebody holds usable state?  yes: Go from the highest applied step
                                      no:  Load by the leader --> Loaded --> Go

Ready fences the old generation: a worker that has answered never applies a step in it again. A planned change
is sent with Prepared, so its members apply that step first and nothing is replayed. Any other change drops
the step in flight; it is replayed from its contexts. A disturbed change is decided anew, with the next
generation.
"""

from __future__ import annotations

from elastane_master.decisions import (
    absent_holders,
    balance,
    checkpoints,
    cost,
    fingerprints,
    following,
    forgotten,
    held_state,
    life,
    membership,
    messages,
    pipelines,
    quarantine,
    sentinel,
    stragglers,
    unit_holders,
)
from elastane_master.decisions.assignment import Choice
from elastane_master.decisions.contexts import require_ranks, require_whole
from elastane_master.decisions.decision_context import DecisionContext
from elastane_master.decisions.effects import Drain
from elastane_master.decisions.events import LoadedReported, ReadyReported, Rejection, RingBrokenReported
from elastane_master.decisions.ring_state import Stage
from elastane_master.decisions.state import HALTED, OVER, JobState, WorkerRecord
from elastane_proto.history import events as history
from elastane_proto.history.describe import describe

BREAK_SECONDS = 0.1
"""A broken collective is mostly the shadow of a lost stream, which says more: wait for it so long."""
BREAK_DOUBLINGS_MAX = 6


def announce(
    ctx: DecisionContext,
    choice: Choice,
    reason: str,
    *,
    planned: bool = False,
    notified: tuple[str, ...] = (),
) -> None:
    """Decide the next ring and notify all workers; an empty one dissolves the ring.

    planned: decided at a step boundary, so that nothing is dropped. notified: members of the previous ring,
    which learn of it from the Prepared that the caller sends.
    """
    state, ring, members = ctx.state, ctx.state.ring, choice.members
    ctx.touch()
    checkpoints.give_up(ctx, f"the ring changes: {reason}", again=True)
    cost.dropped(state, ctx.now)
    state.steps.drop_reports()
    state.early_ends = {}
    ctx.queues.ring_stopped()
    held_state.load_given_up(state)
    balance.announced(state, members, ctx.now, planned=planned)
    stragglers.announced(ctx, choice, planned=planned)
    ring.generation += 1
    if members:
        ring.prepare(members, ctx.now, choice.leaving)
    else:
        ring.dissolve(ctx.now)
    ring.reason, ring.planned, ring.planned_from = reason, planned, notified
    ring.order = ring.names() or tuple(worker for worker in ring.order if worker in state.workers)
    quarantine.lift(state, ring.order if members else ())
    ring.donors = ring.receivers = ()
    state.join_due = None
    places = tuple(history.Place(member.worker, member.start, member.end) for member in members)
    ctx.note(history.RingAnnounced(places, planned, reason))
    membership.explain_places(state, choice)
    for record in state.ring_workers():
        if not record.drain_sent:
            record.asked_generation = ring.generation
        if record.worker not in notified and not record.drain_sent:
            record.asked(ctx.now)
            ctx.send(record.worker, messages.prepare(state, record.worker))
    if members:
        life.set_phase(ctx, "running", f"a ring of {len(members)} trains")
    else:
        life.set_phase(ctx, "waiting", choice.reason)


def reform(ctx: DecisionContext, reason: str) -> None:
    """Change the ring at once: the step in flight is dropped and done again."""
    state = ctx.state
    if state.phase in OVER or state.phase in HALTED or life.conclude_if_finished(ctx):
        return
    if fingerprints.conclude(ctx):
        return
    if state.awaited():
        # The next ring depends on workers that are still away: wait until the grace is over.
        ctx.touch()
        state.ring.put_off = state.ring.put_off or reason
        return
    choice = membership.next_members(state)
    if state.suspending and not choice.members:
        life.suspend(ctx, f"suspended on request; {reason}")
        dismiss(ctx)
        return
    announce(ctx, choice, reason)


def form_if_due(ctx: DecisionContext) -> None:
    """Form a ring if there is none, enough workers are present and the join window is over."""
    state = ctx.state
    if state.ring.stage is not Stage.NONE or state.phase in OVER or state.phase in HALTED or state.awaited():
        return
    gathering = state.join_due is not None and ctx.now < state.join_due
    if gathering and membership.may_grow(state):
        return
    choice = membership.next_members(state)
    if not choice.members:
        life.set_phase(ctx, "waiting", choice.reason)
    elif membership.is_full(state, choice) or state.join_due is None or ctx.now >= state.join_due:
        announce(ctx, choice, choice.reason)


def ready(ctx: DecisionContext, event: ReadyReported) -> None:
    """Handle Ready: a worker has stopped. With the last member's Ready the ring can resume."""
    state, ring = ctx.state, ctx.state.ring
    record = ctx.attending(event.worker, event.session)
    if record is None or record.ready_generation == event.generation:
        return
    if event.generation < ring.generation:
        if record.unanswered_since is not None:  # it is alive, and receives the newer Prepare only now
            ctx.touch()
            record.unanswered_since = ctx.now
        return
    if event.generation > ring.generation:
        raise Rejection(
            "stale",
            f"Ready of generation {event.generation}, the ring is at {ring.generation}",
            hint="this master has not formed that ring; join again",
            generation=ring.generation,
        )
    unit_holders.require_units(state, event.units, event.worker)
    ctx.touch()
    record.ready_generation, record.unanswered_since = event.generation, None
    if ring.stage is Stage.PREPARING or ring.member(event.worker) is None:
        holds_state = event.holds_state and following.is_believed(state, record)
        held_state.believe_ready(state, record, event.applied_step, holds_state, event.units)
    proceed(ctx)
    dismiss(ctx)


def unready(state: JobState) -> list[WorkerRecord]:
    """Workers whose Ready is missing: members, and, before history is abandoned, all that were asked."""
    generation = state.ring.generation
    members = [record for record in state.active_members() if record.ready_generation != generation]
    has_state = not _lacks(state, _best(state))
    if members or (has_state and not state.steps.catching_up):
        return members
    return [
        record
        for record in state.ring_workers()
        if record.asked_generation == generation != record.ready_generation and not record.drain_sent
    ]


def all_ready(state: JobState) -> bool:
    """True if every member has sent Ready."""
    generation = state.ring.generation
    return not state.lagging(lambda record: record.ready_generation != generation) and not unready(state)


def proceed(ctx: DecisionContext) -> None:
    """Continue a change once every member is ready."""
    state, ring = ctx.state, ctx.state.ring
    if ring.stage is not Stage.PREPARING or state.awaited() or ring.put_off:
        return
    if not all_ready(state):
        return
    forgotten.restore(ctx)
    if forgotten.waits(ctx):
        return
    best = _best(state)
    if not _lacks(state, best):
        forgotten.give_up(ctx)
        _go(ctx, best)
    elif unit_holders.unasked(state) or not balance.same_workers(
        membership.next_members(state, planned=ring.planned, by_speed=False).members, ring.members
    ):
        reform(ctx, "no member holds the state, but a worker outside the ring does")
    elif not absent_holders.waits(ctx):
        forgotten.give_up(ctx)
        ctx.touch()
        if best >= 0:
            units = unit_holders.missing(state, best)
            ctx.note(history.UnitsLost(unit_holders.units_text(units), best))
        ring.load(ctx.now)
        ctx.send(ring.members[0].worker, messages.load(state))


def _best(state: JobState) -> int:
    """Return the highest step whose state a member holds, -1 if none does.

    For a pipeline, the highest at which they hold all units; if there is none, as for other jobs. Members
    differ only if one could not apply a step, or was evicted in the middle of it.
    """
    steps = {held_state.usable_step(state, record) for record in state.active_members()}
    whole = [step for step in steps if not _lacks(state, step)]
    return max(whole or steps, default=-1)


def _lacks(state: JobState, step: int) -> bool:
    """True if the members cannot resume at a step: none is at it, or some unit has no holder."""
    return step < 0 or (state.unit_count > 0 and bool(unit_holders.missing(state, step)))


def loaded(ctx: DecisionContext, event: LoadedReported) -> None:
    """Handle Loaded: the leader holds a state, from which training resumes."""
    state, ring, steps = ctx.state, ctx.state.ring, ctx.state.steps
    record = ctx.attending(event.worker, event.session)
    if record is None or event.generation != ring.generation or ring.stage is not Stage.LOADING:
        return
    if ring.members[0].worker != event.worker:
        raise Rejection("invalid_argument", f"{event.worker} is not the leader and was not asked to load")
    require_ranks(event.contexts, 0, state.settings.ests, worker=event.worker)
    require_whole(event.contexts)
    if event.step < 0 or event.step > (state.total_steps or event.step):
        raise Rejection(
            "invalid_argument",
            f"loaded step {event.step} of a training of {state.total_steps} steps",
            hint="checkpoint_url may be the folder of another job",
            step=event.step,
        )
    step_max = forgotten.loadable_until(state)
    if step_max is not None and event.step > step_max:
        raise Rejection(
            "invalid_argument",
            f"loaded step {event.step}, and the history knows the steps before {step_max} only",
            hint="load a checkpoint of an earlier step: a newer one would leave a gap in the history",
            step=event.step,
            step_max=step_max,
        )
    ctx.touch()
    checkpoints.loaded(ctx, event.checkpoint, event.step, event.rejected)
    if event.checkpoint:
        # Steps whose commit was not known yet, but which the checkpoint proves to be applied by all.
        commit_below(ctx, event.step)
        ctx.note(history.CheckpointLoaded(event.worker, event.checkpoint, event.step, step_max is None))
    if event.step < steps.committed:
        ctx.note(history.HistoryRewound(event.worker, event.checkpoint, steps.committed, event.step))
    steps.rewind(event.step)
    if event.checkpoint and state.signature and event.step % (state.signature.steps_per_epoch or 1) == 0:
        # It includes the draws of the code before this step; workers that ran that code are not needed any
        # more.
        steps.interval(event.step).changes = {}
    state.contexts.reset(event.step, [context.parts for context in event.contexts])
    if event.ready_order or event.step == 0:
        steps.ready_order = event.ready_order
    state.finished, state.final_digests, state.ended_step = {}, {}, None
    held_state.rewind(state, event.worker)
    held_state.proven(state, record, event.step)
    if not ring.put_off:
        _go(ctx, event.step, event.checkpoint)


def commit_below(ctx: DecisionContext, step: int) -> None:
    """Commit the prepared steps below `step` and drop contexts that are no longer needed."""
    steps = ctx.state.steps
    commits = steps.commit(step)
    for commit in commits:
        ctx.emit(commit)
        ctx.queues.step_committed(commit.step, ctx.now)
    if commits:
        ctx.touch()
        ctx.state.contexts.drop_below(steps.committed)


def commit_applied(ctx: DecisionContext) -> None:
    """Commit the steps that every member of the running ring has applied."""
    state, ring = ctx.state, ctx.state.ring
    if ring.stage is not Stage.RUNNING or _held_up(state):
        return
    applied = [record.applied_step if record.holds_state else -1 for record in state.active_members()]
    applied += [state.finished[worker] for worker in ring.gone if worker in state.finished]
    everywhere = min(applied, default=-1)
    if not everywhere >= state.total_steps > 0:
        # Steps that a lost member had not applied are committed by the next ring, once its members hold them.
        # After the last step there is no next ring.
        everywhere = min([everywhere, *ring.gone_applied.values()])
    commit_below(ctx, everywhere)


def _held_up(state: JobState) -> bool:
    """True if a member has not yet applied the next step to commit."""
    committed = state.steps.committed
    return state.lagging(lambda record: not record.holds_state or record.applied_step <= committed)


def broken(ctx: DecisionContext, event: RingBrokenReported) -> None:
    """Handle a failed collective: the ring is formed anew unless a lost stream explains it first."""
    state, ring = ctx.state, ctx.state.ring
    record = ctx.attending(event.worker, event.session)
    if record is None or state.phase != "running":
        return
    planned = event.generation == ring.generation - 1 and event.worker in ring.planned_from
    if not planned and (event.generation != ring.generation or ring.stage is not Stage.RUNNING):
        return
    if ring.member(event.worker) is None and not planned:
        return
    ctx.touch()
    record.trainer_at = ctx.now
    if ring.rebuild_due is None:
        ring.rebuild_due = ctx.now + BREAK_SECONDS * 2 ** min(ring.breaks, BREAK_DOUBLINGS_MAX)
        ring.rebuild_reason = f"the collective broke at {event.worker} in step {event.step}: {event.error}"
        ring.breaks += 1


def dismiss(ctx: DecisionContext) -> None:
    """Release draining workers that host no ESTs and are not needed for the change in flight."""
    state, ring = ctx.state, ctx.state.ring
    if ring.changing:
        return
    for record in state.ring_workers():
        if not record.draining or record.drain_sent or ring.member(record.worker) is not None:
            continue
        if record.trainer_at is not None and record.ready_generation != ring.generation:
            continue  # it was a member and has not confirmed that it stopped
        ctx.touch()
        record.drain_sent = True
        ctx.send(record.worker, Drain(record.drain_reason))


def _go(ctx: DecisionContext, resume_step: int, loaded: str | None = None) -> None:
    """Start the ring. loaded: the checkpoint that its leader has loaded; empty: the initial state."""
    state, ring = ctx.state, ctx.state.ring
    ctx.touch()
    records = state.active_members()
    cost.resumed(state, resume_step, ctx.now)
    if ring.planned and ring.stage is Stage.PREPARING:
        balance.formed(state, ctx.now - ring.since)
    for record in records:
        if record.applied_step > resume_step:  # in a pipeline: nobody else has its complete step
            record.holds_state, record.units = False, ()
    at_step = [held_state.usable_step(state, record) == resume_step for record in records]
    ring.run(resume_step, at_step, ctx.now)
    following.ring_goes(state)
    pipelines.ring_goes(ctx, resume_step, loaded)
    for record in records:
        if record.trainer_at is None:
            record.trainer_at = ctx.now
    state.steps.start(resume_step, ctx.now)
    sentinel.ring_goes(state)
    if sentinel.undecidable(state):
        pause_undecided(ctx)
        return
    ctx.queues.ring_started(ring.members, resume_step, ctx.now)
    for record in records:
        if record.between_since is not None:
            ctx.queues.training.pause(record.worker)
    ctx.note(history.RingFormed(len(ring.members), len(ring.receivers), resume_step, len(ring.donors)))
    stragglers.formed(ctx)
    for member in ring.members:
        ctx.send(member.worker, messages.go(state, member))
    commit_applied(ctx)
    dismiss(ctx)


def pause_undecided(ctx: DecisionContext) -> None:
    """Suspend the job: two workers computed different results, and no third one can decide between them."""
    state = ctx.state
    check = state.sentinel.check
    assert check is not None
    suspects = tuple(sorted(check.votes))
    step = sentinel.doubt(state, suspects)
    third_missing = len(suspects) < sentinel.VOTERS_MAX
    undecided = history.SentinelUndecided(suspects, third_missing, check.step, check.rank, step)
    ctx.note(undecided)
    life.halt(ctx, "suspended", describe(undecided))
    held_state.void(state)
    dismiss(ctx)
