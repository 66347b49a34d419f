"""Holders of a pipeline's units whose streams have broken, and whose processes may live.

A broken stream means a death, and the ring goes on without the worker. But if it alone held some units, all
others would go back to a checkpoint, while a process that was only cut off returns within moments and still
has them. So history is not given up until

  it has returned, and its Ready says what it holds, or another process has come in its place, or
  its agent has reported its end, or
  the return grace is over, or it has been awaited for as long as the steps took that would be run again.

A process that returns may have reported a step that was prepared while it was away. It is told so in Welcome,
and applies the step: its units would else be a step behind those of members that got Prepared.
"""

from __future__ import annotations

from elastane_master.decisions import held_state, unit_holders
from elastane_master.decisions.decision_context import DecisionContext
from elastane_master.decisions.events import WorkerJoined
from elastane_master.decisions.state import AbsentHolder, JobState, WorkerRecord
from elastane_proto.history import events as history

GRACE_SECONDS_MIN = 2.0
"""Time in which a process returns whose stream has broken, also on a busy machine."""


def lost(ctx: DecisionContext, record: WorkerRecord) -> None:
    """Remember what a worker holds whose stream has broken. Called before it is removed."""
    state, absent = ctx.state, ctx.state.pipeline.absent
    known = absent.pop(record.worker, None)
    if not state.unit_count or not record.holds_state or record.exited:
        return
    step, units = unit_holders.step_soon(state, record), record.units
    if not units and known is not None:  # it had returned, and was lost again before its Ready
        step, units = known.step, known.units
    if units and step >= 0:
        absent[record.worker] = AbsentHolder(step, units, ctx.now + _grace_seconds(ctx))


def exited(ctx: DecisionContext, worker: str) -> bool:
    """Note that a worker's process has ended; True if it was awaited."""
    record = ctx.state.workers.get(worker)
    if record is not None and ctx.state.unit_count:
        ctx.touch()
        record.exited = True
    if worker not in ctx.state.pipeline.absent:
        return False
    ctx.touch()
    del ctx.state.pipeline.absent[worker]
    return True


def came(state: JobState, event: WorkerJoined, *, is_other: bool) -> None:
    """Note a Hello. is_other: of another process than the last one with this worker id."""
    if is_other:
        state.pipeline.absent.pop(event.worker, None)


def master_started(ctx: DecisionContext) -> None:
    """Give absent holders the grace anew: nobody could return while there was no master."""
    for holder in ctx.state.pipeline.absent.values():
        holder.until = ctx.now + _grace_seconds(ctx)


def applies_until(state: JobState, event: WorkerJoined) -> int | None:
    """Return the step before which a worker that returns applies what it has reported; None: nothing.

    It has reported the newest prepared step in the ring in which that was prepared, and has not applied it.
    """
    prepared = state.steps.prepared_steps.get(event.applied_step)
    if (
        not state.unit_count
        or prepared is None
        or event.applied_step != state.steps.prepared
        or prepared.generation != event.generation
        or all(worker != event.worker for worker, _ in prepared.tasks)
        or not held_state.is_claim_valid(state, event)
    ):
        return None
    return state.steps.current


def waits(ctx: DecisionContext) -> bool:
    """True if connected and absent workers together hold all units of a step that is in no checkpoint.

    Asked once no connected worker has anything more to say.
    """
    state = ctx.state
    workers = _awaited(ctx)
    if not workers:
        return False
    holders = [state.pipeline.absent[worker] for worker in workers]
    if not all(holder.announced for holder in holders):
        ctx.touch()
        for holder in holders:
            holder.announced = True
        step = holders[0].step
        missing = unit_holders.units_text(unit_holders.missing(state, step))
        seconds = max(holder.until for holder in holders) - ctx.now
        ctx.note(history.UnitsAwaited(missing, step, workers, seconds))
    return True


def deadline(state: JobState) -> float | None:
    """Time at which the first absent holder is no longer awaited; None if there is none."""
    return min((holder.until for holder in state.pipeline.absent.values()), default=None)


def expire(ctx: DecisionContext) -> bool:
    """Await no longer those whose grace is over; True if there were some."""
    absent = ctx.state.pipeline.absent
    late = [worker for worker, holder in absent.items() if ctx.now >= holder.until]
    for worker in late:
        ctx.touch()
        del absent[worker]
    return bool(late)


def _grace_seconds(ctx: DecisionContext) -> float:
    """Return the time to wait for a holder: at most as long as has passed since the newest checkpoint."""
    state = ctx.state
    saved = state.checkpoints.saved
    since = saved[-1].saved_at if saved else state.created_at
    return min(state.settings.return_grace_seconds, max(GRACE_SECONDS_MIN, ctx.now - since))


def _awaited(ctx: DecisionContext) -> tuple[str, ...]:
    """Return the absent workers without which history would go back, of the newest step they complete."""
    state = ctx.state
    absent = {
        worker: holder
        for worker, holder in state.pipeline.absent.items()
        if ctx.now < holder.until and state.contexts.has(holder.step)
    }
    saved = max(state.checkpoints.saved_step, 0)
    for step in sorted({holder.step for holder in absent.values() if holder.step > saved}, reverse=True):
        held = {
            unit
            for record in state.ring_workers()
            if held_state.usable_step(state, record) == step
            for unit in unit_holders.units_in(record.units)
        }
        there = {worker: holder for worker, holder in absent.items() if holder.step == step}
        held.update(unit for one in there.values() for unit in unit_holders.units_in(one.units))
        if len(held) == state.unit_count:
            return tuple(there)
    return ()
