"""Early stopping: scripts end the training before all epochs are done. All must do so, or the job fails.

  a member's script leaves its loop over epochs --> EndEarly; it waits
  all members have said so, after the same step --> AllEnd: the training has ended with that step
  another one reports a further step, or is     --> the job has failed; both are named
   about to begin the next epoch

A member that waits takes part in ring changes, and sends EndEarly again in the next ring. The state it sends
to a joining worker includes that the training is over, so that nobody trains on in its place. From AllEnd on
the job behaves as if it had no further steps.
"""

from __future__ import annotations

from elastane_master.decisions import held_state, life, majority, ring
from elastane_master.decisions.decision_context import DecisionContext
from elastane_master.decisions.effects import AllEnd
from elastane_master.decisions.events import EndEarlyReported
from elastane_master.decisions.ring_state import Stage
from elastane_master.decisions.state import EarlyEnd
from elastane_proto.history import events as history


def end_early(ctx: DecisionContext, event: EndEarlyReported) -> None:
    """Handle the end of a member's loop over epochs; one sent in an older ring will be sent again."""
    state, ring_state, steps = ctx.state, ctx.state.ring, ctx.state.steps
    record = ctx.attending(event.worker, event.session)
    if record is None or ring_state.stage is not Stage.RUNNING or event.generation != ring_state.generation:
        return
    if ring_state.member(event.worker) is None or event.step != steps.current:
        return
    if state.ended_step is not None:
        ctx.send(event.worker, AllEnd(ring_state.generation, event.step))  # the answer was lost
        return
    ctx.touch()
    state.early_ends[event.worker] = EarlyEnd(event.step, event.epoch, event.place, event.state_digest)
    held_state.proven(state, record, event.step)
    ring.commit_applied(ctx)
    for worker in (*steps.reports, *steps.before_epoch(ring_state.generation)):
        _fail(ctx, worker)
        return
    settle(ctx)


def settle(ctx: DecisionContext) -> None:
    """End the training once every member has ended."""
    state, ends = ctx.state, ctx.state.early_ends
    members = state.ring.names()
    if not members or not set(members) <= ends.keys():
        return
    digests = {worker: ends[worker].state_digest for worker in members}
    known = {worker: digest for worker, digest in digests.items() if digest is not None}
    if odd := majority.odd_ones_out(known):
        words = majority.in_words(odd, list(members))
        life.end(ctx, "failed", f"{words} after step {state.steps.current - 1}. {majority.CURE}")
        return
    end = ends[members[0]]
    state.ended_step = end.step
    ctx.note(history.EndedEarly(end.epoch, end.step, end.place))
    for worker in members:
        ctx.send(worker, AllEnd(state.ring.generation, end.step))


def goes_on(ctx: DecisionContext, worker: str) -> bool:
    """True if a member's report fails the job because another member's script ended before that step."""
    if worker in ctx.state.early_ends or not ctx.state.early_ends:
        return False
    _fail(ctx, worker)
    return True


def _fail(ctx: DecisionContext, worker: str) -> None:
    """Fail the job: `worker` trains on after another worker has ended."""
    other, end = next(iter(ctx.state.early_ends.items()))
    life.end(
        ctx,
        "failed",
        f"the script of {other} left its loop over epochs at {end.place}, at epoch {end.epoch}, step"
        f" {end.step}, and that of {worker} goes on. {majority.CURE}",
    )
