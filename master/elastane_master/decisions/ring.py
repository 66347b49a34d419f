"""Membership, and the two-phase change of the ring.

    announce: g+1, members decided --> Prepare to all --> Ready from every member
    --> somebody holds usable state?  yes: Go from the highest applied step
                                      no:  Load by the leader --> Loaded --> Go

Ready fences the old generation: whoever has answered never applies in it again. A planned change
rides on a Prepared, so its members apply that step first and nothing is replayed. Any other
change drops the step in flight; it is replayed from its contexts. A change that is disturbed is simply
decided anew, with the next generation.
"""

from __future__ import annotations

from itertools import islice

from elastane_master.decisions import (
    checkpoints,
    claims,
    cost,
    fingerprints,
    forgotten,
    life,
    quarantine,
    sentinel,
)
from elastane_master.decisions.assignment import Candidate, choose_members
from elastane_master.decisions.contexts import require_ranks
from elastane_master.decisions.effects import Drain, Go, IntervalDecided, Load, Member, Prepare, Prepared
from elastane_master.decisions.events import LoadedReported, ReadyReported, Rejection, RingBrokenReported
from elastane_master.decisions.ring_state import Stage
from elastane_master.decisions.state import HALTED, OVER, JobState, WorkerRecord
from elastane_master.decisions.turn import Turn
from elastane_proto.history import events as history
from elastane_proto.history.describe import describe

BREAK_SECONDS = 0.1
"""A broken collective is mostly the shadow of a lost stream, which says more: wait for it so long."""
BREAK_DOUBLINGS_MAX = 6


def next_members(
    state: JobState, *, planned: bool = False, without_newcomers: bool = False
) -> tuple[Member, ...]:
    """The ring as it should be now; planned: at a step boundary.

    Workers in quarantine are left out of it, unless there is none without them or they alone hold the state.
    """
    if len(state.workers) < state.workers_needed:
        return ()
    order = {worker: place for place, worker in enumerate(state.ring.order)}
    everybody = [
        Candidate(
            record.worker,
            record.store_address,
            order.get(record.worker),
            record.joined_order,
            claims.usable_step(state, record),
            record.draining,
        )
        for record in state.ring_workers()
        if not record.drain_sent and not (without_newcomers and record.worker not in order)
        if not quarantine.for_good(record)
    ]
    held = quarantine.held(state)
    free = [candidate for candidate in everybody if candidate.worker not in held]
    members = _chosen(state, free, planned=planned)
    chosen = {member.worker for member in members}
    has_state = any(candidate.step >= 0 for candidate in free if candidate.worker in chosen)
    alone = any(candidate.step >= 0 for candidate in everybody) and not has_state
    if held and (not members or alone):
        return _chosen(state, everybody, planned=planned)
    return members


def _chosen(state: JobState, candidates: list[Candidate], *, planned: bool) -> tuple[Member, ...]:
    return choose_members(
        candidates,
        ests=state.settings.ests,
        workers_min=state.workers_needed,
        workers_max=state.settings.workers_max,
        planned=planned,
    )


def most_members(state: JobState) -> int:
    """How many workers may train; further ones stand by."""
    settings = state.settings
    return min(settings.workers_max or settings.ests, settings.ests)


def _enough(state: JobState) -> bool:
    """Whether a ring could be formed, as far as can be said without choosing its members."""
    free = (
        record
        for record in state.workers.values()
        if record.role == "ring" and not (record.awaited or record.draining or record.drain_sent)
        if record.held_until is None
    )
    fewest = state.workers_needed
    return sum(1 for _ in islice(free, fewest)) == fewest


def planned_members(turn: Turn) -> tuple[Member, ...] | None:
    """The ring to change to at a step boundary; None when it is right as it is.

    Newcomers alone are a reason only once they have been gathered for the join window, or fill the ring.
    """
    state = turn.state
    members = next_members(state, planned=True)
    if members == state.ring.members:
        return None
    gathering = state.join_due is not None and turn.now < state.join_due and not _is_full(state, members)
    if gathering and next_members(state, planned=True, without_newcomers=True) == state.ring.members:
        return None
    return members


def announce(
    turn: Turn,
    members: tuple[Member, ...],
    reason: str,
    *,
    planned: bool = False,
    told: tuple[str, ...] = (),
) -> None:
    """Decides the next ring and tells everybody; an empty one dissolves the ring.

    planned: decided at a step boundary, so that nothing is dropped. told: members of the ring before that are
    told by the Prepared which the caller sends.
    """
    state, ring = turn.state, turn.state.ring
    turn.touch()
    checkpoints.give_up(turn, f"the ring changes: {reason}", again=True)
    cost.dropped(state, turn.now)
    state.steps.drop_reports()
    state.early_ends = {}
    turn.queues.ring_stopped()
    claims.load_given_up(state)
    ring.generation += 1
    if members:
        ring.prepare(members, turn.now)
    else:
        ring.dissolve(turn.now)
    ring.reason, ring.planned, ring.planned_from = reason, planned, told
    ring.order = ring.names() or tuple(worker for worker in ring.order if worker in state.workers)
    quarantine.lift(state, ring.order if members else ())
    ring.donors = ring.receivers = ()
    state.join_due = None
    places = tuple(history.Place(member.worker, member.start, member.end) for member in members)
    turn.note(history.RingAnnounced(places, planned, reason))
    _explain_places(turn)
    for record in state.ring_workers():
        if not record.drain_sent:
            record.asked_generation = ring.generation
        if record.worker not in told and not record.drain_sent:
            record.asked(turn.now)
            turn.send(record.worker, prepare_message(state, record.worker))
    if members:
        life.set_phase(turn, "running", f"a ring of {len(members)} trains")
    else:
        wait(turn)


def prepare_message(state: JobState, worker: str) -> Prepare:
    """Prepare of the current generation; without members for a worker that is not in it."""
    members = state.ring.members if state.ring.member(worker) else ()
    return Prepare(state.ring.generation, members, state.ring.reason)


def reform(turn: Turn, reason: str) -> None:
    """The ring must change at once: the step in flight is dropped and done again."""
    state = turn.state
    if state.phase in OVER or state.phase in HALTED or life.conclude_if_finished(turn):
        return
    if fingerprints.conclude(turn):
        return
    if state.awaited():
        # Who is still away decides what the next ring can be: wait until the grace is over.
        turn.touch()
        state.ring.put_off = state.ring.put_off or reason
        return
    if state.suspending and not next_members(state):
        life.suspend(turn, f"suspended on request; {reason}")
        dismiss(turn)
        return
    announce(turn, next_members(state), reason)


def form_if_due(turn: Turn) -> None:
    """Forms a ring where there is none: when enough workers are there and joins have been gathered."""
    state = turn.state
    if state.ring.stage is not Stage.NONE or state.phase in OVER or state.phase in HALTED or state.awaited():
        return
    gathering = state.join_due is not None and turn.now < state.join_due
    if gathering and len(state.workers) < most_members(state) and _enough(state):
        return
    members = next_members(state)
    if not members:
        wait(turn)
        return
    if _is_full(state, members) or state.join_due is None or turn.now >= state.join_due:
        announce(
            turn, members, "1 worker is there" if len(members) == 1 else f"{len(members)} workers are there"
        )


def _is_full(state: JobState, members: tuple[Member, ...]) -> bool:
    """Whether nobody could be added: there is nothing to gather further newcomers for."""
    return len(members) >= most_members(state)


def wait(turn: Turn) -> None:
    """No ring can be formed: says how many workers are missing."""
    state = turn.state
    there = sum(1 for record in state.ring_workers() if not (record.draining or quarantine.for_good(record)))
    wanted, fixed = state.workers_needed, state.settings.recovery == "fixed"
    if there >= wanted:
        reason = f"{there} of {wanted} workers are there; joins are being gathered"
    elif there or not state.ring.generation:
        few = f"{there} of all {wanted}" if fixed else f"{there} of at least {wanted}"
        reason = f"{few} workers are there"
        if fixed and there >= state.settings.workers_min:
            reason += "; with fixed recovery no fewer train"
    else:
        saved = state.checkpoints.saved_step
        source = f"the checkpoint of step {saved}" if saved >= 0 else "the initial state"
        reason = f"all workers are gone; the next one goes on from {source}"
    life.set_phase(turn, "waiting", reason)


def ready(turn: Turn, event: ReadyReported) -> None:
    """A worker has stopped; with the last member's Ready the ring can go."""
    state, ring = turn.state, turn.state.ring
    record = turn.attending(event.worker, event.session)
    if record is None or record.ready_generation == event.generation:
        return
    if event.generation < ring.generation:
        if record.unanswered_since is not None:  # it lives, and the newer Prepare reaches it only now
            turn.touch()
            record.unanswered_since = turn.now
        return
    if event.generation > ring.generation:
        raise Rejection(
            "stale",
            f"Ready of generation {event.generation}, the ring is at {ring.generation}",
            hint="this master has not formed that ring; join again",
            generation=ring.generation,
        )
    turn.touch()
    record.ready_generation, record.unanswered_since = event.generation, None
    if ring.stage is Stage.PREPARING or ring.member(event.worker) is None:
        claims.believe_ready(state, record, event.applied_step, event.holds_state)
    proceed(turn)
    dismiss(turn)


def unready(state: JobState) -> list[WorkerRecord]:
    """Whose Ready is missing: members', and, before history is given up, everybody's who was asked."""
    generation = state.ring.generation
    members = [record for record in state.active_members() if record.ready_generation != generation]
    has_state = any(claims.usable_step(state, record) >= 0 for record in state.active_members())
    if members or (has_state and not state.steps.catching_up):
        return members
    return [
        record
        for record in state.ring_workers()
        if record.asked_generation == generation != record.ready_generation and not record.drain_sent
    ]


def all_ready(state: JobState) -> bool:
    """Whether nobody's Ready is missing."""
    generation = state.ring.generation
    return not state.lagging(lambda record: record.ready_generation != generation) and not unready(state)


def proceed(turn: Turn) -> None:
    """Goes on with a change once every member is ready."""
    state, ring = turn.state, turn.state.ring
    if ring.stage is not Stage.PREPARING or state.awaited() or ring.put_off:
        return
    if not all_ready(state):
        return
    forgotten.restore(turn)
    if forgotten.waits(turn):
        return
    best = max(claims.usable_step(state, record) for record in state.active_members())
    if best >= 0:
        forgotten.give_up(turn)
        _go(turn, best)
    elif next_members(state, planned=ring.planned) != ring.members:
        reform(turn, "no member holds the state, but a worker outside the ring does")
    else:
        forgotten.give_up(turn)
        turn.touch()
        ring.load(turn.now)
        turn.send(ring.members[0].worker, load_message(state))


def load_message(state: JobState) -> Load:
    """Load of the current generation, for the leader."""
    return Load(
        state.ring.generation,
        state.settings.checkpoint_url,
        forgotten.loadable_until(state),
        state.sentinel.doubts,
    )


def loaded(turn: Turn, event: LoadedReported) -> None:
    """The leader holds a state: history goes on from there."""
    state, ring, steps = turn.state, turn.state.ring, turn.state.steps
    record = turn.attending(event.worker, event.session)
    if record is None or event.generation != ring.generation or ring.stage is not Stage.LOADING:
        return
    if ring.members[0].worker != event.worker:
        raise Rejection("invalid_argument", f"{event.worker} is not the leader and was not asked to load")
    require_ranks(event.contexts, 0, state.settings.ests, worker=event.worker)
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
    turn.touch()
    checkpoints.loaded(turn, event.checkpoint, event.step, event.rejected)
    if event.checkpoint:
        # Steps whose commit was not known yet, but which the checkpoint proves applied by all.
        commit_below(turn, event.step)
        turn.note(history.CheckpointLoaded(event.worker, event.checkpoint, event.step, step_max is None))
    if event.step < steps.committed:
        turn.note(history.HistoryRewound(event.worker, event.checkpoint, steps.committed, event.step))
    steps.rewind(event.step)
    if event.checkpoint and state.signature and event.step % (state.signature.steps_per_epoch or 1) == 0:
        # What the code before this step drew is in it; nobody who ran that code is needed any more.
        steps.interval(event.step).changes = {}
    state.contexts.reset(event.step, [context.parts for context in event.contexts])
    if event.ready_order or event.step == 0:
        steps.ready_order = event.ready_order
    state.finished, state.final_digests, state.ended_step = {}, {}, None
    claims.rewind(state, event.worker)
    claims.proven(state, record, event.step)
    if not ring.put_off:
        _go(turn, event.step)


def commit_below(turn: Turn, step: int) -> None:
    """Commits the prepared steps below `step` and drops the contexts nobody will start from again."""
    steps = turn.state.steps
    commits = steps.commit(step)
    for commit in commits:
        turn.emit(commit)
        turn.queues.step_committed(commit.step, turn.now)
    if commits:
        turn.touch()
        turn.state.contexts.drop_below(steps.committed)


def commit_applied(turn: Turn) -> None:
    """Commits what every member of the running ring has applied."""
    state, ring = turn.state, turn.state.ring
    if ring.stage is not Stage.RUNNING or _held_up(state):
        return
    applied = [record.applied_step if record.holds_state else -1 for record in state.active_members()]
    applied += [state.finished[worker] for worker in ring.gone if worker in state.finished]
    everywhere = min(applied, default=-1)
    if not everywhere >= state.total_steps > 0:
        # What a lost member had not applied the next ring commits, once its members hold it. After the last
        # step there is none.
        everywhere = min([everywhere, *ring.gone_applied.values()])
    commit_below(turn, everywhere)


def _held_up(state: JobState) -> bool:
    """Whether a member has not applied the next step to commit."""
    committed = state.steps.committed
    return state.lagging(lambda record: not record.holds_state or record.applied_step <= committed)


def go_message(state: JobState, member: Member) -> Go:
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
    )


def _rendezvous_key(state: JobState) -> bytes:
    """Of the store at which the members meet: the first one's."""
    host = state.workers.get(state.ring.members[0].worker)
    return host.rendezvous_key if host is not None else b""


def _interval(state: JobState) -> IntervalDecided | None:
    """What is decided of the code before the step to resume at; ESTs known whole are so in the contexts."""
    step = state.ring.resume_step
    interval = state.steps.intervals.get(step)
    if interval is None or interval.changes is None:
        return None
    return IntervalDecided(state.ring.generation, step, interval.changes)


def prepared_message(state: JobState, worker: str) -> Prepared:
    """Prepared of the newest prepared step, with what follows it for this member."""
    ring, steps = state.ring, state.steps
    changing = worker in ring.planned_from
    return Prepared(
        ring.generation - 1 if changing else ring.generation,
        steps.prepared,
        # Of step 0, or with a static graph of step 1; from then on it comes with Go.
        steps.ready_order if steps.prepared <= 1 else (),
        prepare_message(state, worker) if changing else None,
        None if changing else checkpoints.message_for(state, worker, steps.prepared + 1),
        None if changing else sentinel.order_for(state, ring.member(worker), steps.prepared + 1),
    )


def broken(turn: Turn, event: RingBrokenReported) -> None:
    """The collective failed at a member: the ring is formed anew unless a lost stream explains it first."""
    state, ring = turn.state, turn.state.ring
    record = turn.attending(event.worker, event.session)
    if record is None or state.phase != "running":
        return
    planned = event.generation == ring.generation - 1 and event.worker in ring.planned_from
    if not planned and (event.generation != ring.generation or ring.stage is not Stage.RUNNING):
        return
    if ring.member(event.worker) is None and not planned:
        return
    turn.touch()
    record.trainer_at = turn.now
    if ring.rebuild_due is None:
        ring.rebuild_due = turn.now + BREAK_SECONDS * 2 ** min(ring.breaks, BREAK_DOUBLINGS_MAX)
        ring.rebuild_reason = f"the collective broke at {event.worker} in step {event.step}: {event.error}"
        ring.breaks += 1


def resend(turn: Turn, record: WorkerRecord) -> None:
    """Repeats the last messages to a member that came back to a restarted master."""
    state, ring = turn.state, turn.state.ring
    member = ring.member(record.worker)
    if ring.stage is Stage.PREPARING and record.ready_generation != ring.generation:
        if record.worker in ring.planned_from:
            turn.send(record.worker, prepared_message(state, record.worker))
        else:
            turn.send(record.worker, prepare_message(state, record.worker))
    elif ring.stage is Stage.LOADING and member is not None and member == ring.members[0]:
        turn.send(record.worker, load_message(state))
    elif ring.stage is Stage.RUNNING and member is not None:
        steps = state.steps
        if steps.prepared < ring.resume_step and record.worker not in steps.reports:
            turn.send(record.worker, go_message(state, member))
        if steps.prepared >= ring.resume_step and record.applied_step <= steps.prepared:
            turn.send(record.worker, prepared_message(state, record.worker))
        if state.drift is not None and record.worker not in state.drift.details:
            turn.send(record.worker, fingerprints.explain_message(state.drift))


def dismiss(turn: Turn) -> None:
    """Sends draining workers away that host no ESTs and that nobody needs for the change in flight."""
    state, ring = turn.state, turn.state.ring
    if ring.changing:
        return
    for record in state.ring_workers():
        if not record.draining or record.drain_sent or ring.member(record.worker) is not None:
            continue
        if record.trainer_at is not None and record.ready_generation != ring.generation:
            continue  # it was a member and has not confirmed that it stopped
        turn.touch()
        record.drain_sent = True
        turn.send(record.worker, Drain(record.drain_reason))


def _go(turn: Turn, resume_step: int) -> None:
    state, ring = turn.state, turn.state.ring
    turn.touch()
    records = state.active_members()
    cost.resumed(state, resume_step, turn.now)
    at_step = [claims.usable_step(state, record) == resume_step for record in records]
    ring.run(resume_step, at_step, turn.now)
    for record in records:
        if record.trainer_at is None:
            record.trainer_at = turn.now
    state.steps.start(resume_step, turn.now)
    sentinel.ring_goes(state)
    if sentinel.undecidable(state):
        pause_undecided(turn)
        return
    turn.queues.ring_started(ring.members, resume_step, turn.now)
    for record in records:
        if record.between_since is not None:
            turn.queues.training.pause(record.worker)
    turn.note(history.RingFormed(len(ring.members), len(ring.receivers), resume_step, len(ring.donors)))
    for member in ring.members:
        turn.send(member.worker, go_message(state, member))
    commit_applied(turn)
    dismiss(turn)


def pause_undecided(turn: Turn) -> None:
    """Workers differ in what they compute, and nobody is there to decide who is right."""
    state = turn.state
    check = state.sentinel.check
    assert check is not None
    suspects = tuple(sorted(check.votes))
    step = sentinel.doubt(state, suspects)
    third_missing = len(suspects) < sentinel.VOTERS_MAX
    undecided = history.SentinelUndecided(suspects, third_missing, check.step, check.rank, step)
    turn.note(undecided)
    life.halt(turn, "suspended", describe(undecided))
    claims.void(state)
    dismiss(turn)


def _explain_places(turn: Turn) -> None:
    """Why each worker is where it is, for people."""
    state = turn.state
    for record in state.ring_workers():
        member = state.ring.member(record.worker)
        if member is not None:
            first, last = member.start, member.end - 1
            record.reason = f"hosts EST {first}" if first == last else f"hosts ESTs {first} to {last}"
        elif record.draining:
            record.reason = f"leaves: {record.drain_reason}"
        elif record.held_until is not None:
            continue  # it says so itself
        elif not state.ring.members:
            record.reason = "waits for more workers"
        else:
            record.reason = f"stands by: the ring has its {len(state.ring.members)} workers"
