"""A newcomer follows the ring's steps before it joins, so that no member waits while the state travels.

    a boundary at which one newcomer would join ──▶ Follow: to it, and with Prepared to the source
        ──▶ both report the digest of their state after the same step
        ──▶ equal: it joins at the next boundary, follows to it, and is Ready with the state in place

Nothing depends on it. Whatever goes wrong, the newcomer joins as without it: its claim to hold the state is
not believed unless the digests were equal, so that it receives the state after Go.
"""

from __future__ import annotations

from elastane_master.decisions.assignment import Choice
from elastane_master.decisions.decision_context import DecisionContext
from elastane_master.decisions.effects import Follow
from elastane_master.decisions.events import FollowReported
from elastane_master.decisions.state import Following, JobState, WorkerRecord

FOLLOW_SECONDS_MAX = 60.0
"""A newcomer that is not level by then joins without having followed."""
STEPS_LEFT_MIN = 5
"""With fewer steps left, a newcomer joins at once: following takes some steps itself."""


def postpones(ctx: DecisionContext, choice: Choice) -> bool:
    """True if the change to `choice` waits until its newcomer is level; begins the following if it is due.

    Called at a step boundary with a change that would be announced now.
    """
    state = ctx.state
    newcomer = _only_newcomer(state, choice)
    if newcomer is None:
        return False
    following = _current(state, newcomer)
    if following is None:
        return _begins(ctx, newcomer)
    if following.proven or not newcomer.follows:
        return False
    if ctx.now - following.since > FOLLOW_SECONDS_MAX or state.ring.member(following.source) is None:
        ctx.touch()
        newcomer.follows = False
        return False
    return True


def reported(ctx: DecisionContext, event: FollowReported) -> None:
    """Handle a report of the newcomer or of its source: a digest, or that it has given up."""
    state, following = ctx.state, ctx.state.following
    if ctx.attending(event.worker, event.session) is None or following is None:
        return
    newcomer = state.workers.get(following.newcomer)
    if newcomer is None or _current(state, newcomer) is None or event.generation != following.generation:
        return
    if event.worker not in (following.newcomer, following.source) or following.proven:
        return
    ctx.touch()
    if event.error:
        newcomer.follows = False
        newcomer.reason = f"joins at the next change of the ring; it could not follow: {event.error}"
        return
    following.digests[event.worker] = (event.step, event.digest)
    if len(following.digests) < 2:
        return
    if len(set(following.digests.values())) == 1:
        following.proven = True
    else:
        newcomer.follows = False
        newcomer.reason = "joins at the next change of the ring; its copy of the state was not the same"


def message(state: JobState) -> Follow | None:
    """Return the Follow of the newcomer that follows the running ring; None if none does."""
    following = state.following
    newcomer = state.workers.get(following.newcomer) if following is not None else None
    if following is None or newcomer is None or _current(state, newcomer) is None or not newcomer.follows:
        return None
    return Follow(
        following.generation,
        following.step,
        following.newcomer,
        following.source,
        newcomer.store_address,
        state.history_generation,
        state.steps.ready_order,
        -(-state.settings.ests // (len(state.ring.members) + 1)),
        newcomer.rendezvous_key,
    )


def for_source(state: JobState, worker: str, step: int) -> Follow | None:
    """Return the Follow that goes with Prepared of the step before `step` to this member, if there is one."""
    follow = message(state)
    return follow if follow is not None and (follow.source, follow.step) == (worker, step) else None


def is_level(state: JobState, worker: str) -> bool:
    """True if this newcomer's state is that of its source: it follows on to the change of the ring."""
    following, record = state.following, state.workers.get(worker)
    return following is not None and record is not None and _is_of(following, record) and following.proven


def is_believed(state: JobState, record: WorkerRecord) -> bool:
    """True unless the worker has followed and its copy was not compared: then it does not hold the state.

    Until a step of its own proves that it does.
    """
    following = state.following
    return following is None or not _is_of(following, record) or following.proven or record.holds_state


def ring_goes(state: JobState) -> None:
    """Forget a newcomer that was level, because its ring has begun; no other's claim is believed yet."""
    if state.following is not None and state.following.proven:
        state.following = None


def _begins(ctx: DecisionContext, newcomer: WorkerRecord) -> bool:
    """Let a newcomer follow from this boundary on; False if it cannot, or if it is not worth it."""
    state, step = ctx.state, ctx.state.steps.current
    left = state.total_steps - step
    if (
        not newcomer.follows
        or newcomer.holds_state
        or state.unit_count
        or (state.total_steps > 0 and left < STEPS_LEFT_MIN)
    ):
        return False
    sources = [record for record in state.active_members() if record.follows and record.holds_state]
    if not sources:
        return False
    ctx.touch()
    # Not the first member: what a leader does beside its steps, evaluation and logging, it does alone.
    source = sources[-1].worker
    state.following = Following(
        newcomer.worker, newcomer.session, source, state.ring.generation, step, ctx.now
    )
    newcomer.reason = f"follows the steps of {source}, to join once it is level"
    follow = message(state)
    assert follow is not None
    ctx.send(newcomer.worker, follow)
    return True


def _only_newcomer(state: JobState, choice: Choice) -> WorkerRecord | None:
    """Return the newcomer if the change adds one worker to the ring and does nothing else."""
    before = state.ring.names()
    after = [member.worker for member in choice.members]
    added = [worker for worker in after if worker not in before]
    stays = len(after) == len(before) + 1 and len(before) == len(state.ring.members)
    if len(added) != 1 or not stays or any(record.draining for record in state.active_members()):
        return None
    return state.workers[added[0]]


def _current(state: JobState, newcomer: WorkerRecord) -> Following | None:
    """Return the following of this newcomer in the running ring."""
    following = state.following
    if following is None or not _is_of(following, newcomer):
        return None
    return following if following.generation == state.ring.generation else None


def _is_of(following: Following, record: WorkerRecord) -> bool:
    return (following.newcomer, following.session) == (record.worker, record.session)
