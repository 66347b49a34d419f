"""Consequences of a sentinel check (sentinel.py): the step proceeds, is repeated, or history goes back.

It is unknown when a worker began to compute wrongly, only when it was last found right. Its gradients are in
every sum since then, and so in all workers' weights. No state can be trusted: all processes are restarted,
and the next ring starts from a checkpoint taken before that, or from the initial state. Running processes are
not rolled back, because a script's own variables and its position in its epochs cannot be.
"""

from __future__ import annotations

from elastane_master.decisions import (
    cost,
    held_state,
    life,
    membership,
    ring,
    sentinel,
    sessions,
    step_boundary,
)
from elastane_master.decisions.decision_context import DecisionContext
from elastane_master.decisions.effects import Done
from elastane_master.decisions.events import CheckReported, Rejection
from elastane_master.decisions.ring_state import Stage
from elastane_master.decisions.state import Check
from elastane_proto.history import events as history
from elastane_proto.history.describe import computed_wrongly


def reported(ctx: DecisionContext, event: CheckReported) -> None:
    """Handle a worker's digest for the checked EST."""
    state = ctx.state
    check = state.sentinel.check
    if ctx.attending(event.worker, event.session) is None or event.generation != state.ring.generation:
        return
    if state.ring.stage is not Stage.RUNNING or check is None or event.step != check.step:
        return
    if event.worker not in check.workers or event.rank != check.rank:
        raise Rejection(
            "invalid_argument",
            f"{event.worker} reports a check of EST {event.rank} in step {event.step}: it was not asked for",
            worker=event.worker,
            virtual_rank=event.rank,
        )
    if event.worker in check.votes:
        return
    ctx.touch()
    check.votes[event.worker] = event.digest
    if not check.open:
        _decide(ctx, check)


def _decide(ctx: DecisionContext, check: Check) -> None:
    """Decide after all requested digests have arrived."""
    state = ctx.state
    found = sentinel.faulty(check.votes)
    if found is not None and not found:
        sentinel.agreed(state, check)
        step_boundary.prepare_if_complete(ctx)
        return
    if found:
        _go_back(ctx, check, found)
        return
    if not check.disputed:
        check.disputed = True
        votes = tuple(history.Vote(worker, digest) for worker, digest in check.votes.items())
        ctx.note(history.SentinelDifference(tuple(check.workers), check.rank, check.step, votes))
    if sentinel.undecidable(state):
        ring.pause_undecided(ctx)
    else:
        names = " and ".join(sorted(check.votes))
        ring.reform(ctx, f"step {check.step} is done again: {names} differ in it")


def _go_back(ctx: DecisionContext, check: Check, faulty: tuple[str, ...]) -> None:
    """Evict the faulty workers, and restart all processes from before the fault."""
    state = ctx.state
    ctx.touch()
    right = tuple(worker for worker in check.votes if worker not in faulty)
    step = sentinel.doubt(state, faulty)
    found = history.SentinelFaulty(faulty, right, check.rank, check.step, step)
    ctx.note(found)
    life.dissolve(ctx, computed_wrongly(found))
    for worker in faulty:
        sentinel.condemn(state, worker, check.step)
        if worker in state.workers:
            sessions.evict(ctx, state.workers[worker], f"it computed wrongly in step {check.step}")
    held_state.void(state)
    for record in list(state.workers.values()):
        if record.awaited:
            del state.workers[record.worker]
            cost.left(state, record, ctx.now)
        elif record.role == "ring" and not record.drain_sent:
            record.draining, record.drain_reason, record.drain_sent = True, sessions.ANEW, True
            record.reason = f"is started anew: {sessions.ANEW}"
            ctx.send(record.worker, Done(sessions.RESTART, sessions.ANEW))
    life.set_phase(ctx, "waiting", membership.next_members(state).reason)
