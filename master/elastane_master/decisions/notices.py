"""Limits waits for workers whose nodes will be taken away at a known time.

A draining worker leaves at the next step boundary. If it is the last holder of the state, a checkpoint is
saved first and the ring waits for it. If the notice ends before that, waiting is useless, because the worker
goes with its node: the ring then ends without the checkpoint, and an event tells what is lost.
"""

from __future__ import annotations

from elastane_master.decisions import balance, checkpoints, membership, ring
from elastane_master.decisions.decision_context import DecisionContext
from elastane_master.decisions.state import JobState, WorkerRecord
from elastane_proto.history import events as history
from elastane_proto.history.describe import unsaved_in_time


def next_deadline(state: JobState) -> float | None:
    """Time at which the first notice expires."""
    return min(
        (record.leave_by for record in state.workers.values() if record.leave_by is not None), default=None
    )


def expire(ctx: DecisionContext) -> None:
    """Stop waiting for workers whose notice is over."""
    state = ctx.state
    due = [
        record
        for record in state.workers.values()
        if record.leave_by is not None and ctx.now >= record.leave_by
    ]
    for record in due:
        ctx.touch()
        record.leave_by = None
        if not record.drain_sent and record.role == "ring":
            _overstays(ctx, record)


def _overstays(ctx: DecisionContext, record: WorkerRecord) -> None:
    state, flight = ctx.state, ctx.state.checkpoints.in_flight
    worker = record.worker
    if flight is None or not flight.closing or worker not in flight.workers or state.suspending:
        ctx.note(history.NoticeOver(worker, state.ring.member(worker) is not None))
        return
    lost = max(0, flight.step - max(state.checkpoints.saved_step, 0))
    over = history.NoticeOverUnsaved(worker, flight.checkpoint, flight.step, ctx.now - flight.since, lost)
    why = unsaved_in_time(over)
    ctx.note(over)
    checkpoints.give_up(ctx, why, again=False)
    choice = membership.planned_members(ctx)
    if choice is not None and not balance.same_workers(choice.members, state.ring.members):
        ring.announce(ctx, choice, why, planned=True)
        ring.dismiss(ctx)
