"""Quarantine: workers that die repeatedly may rejoin the ring only after a growing delay.

Every death costs the others a replay, and every return a ring change: a worker that lives for seconds would
keep all of them from training. So the deaths of each worker id are remembered for a while. The first ones are
free, since spot machines do that; from then on each doubles the time for which the worker stands by when it
comes back.

A worker whose host had two stragglers replaced within an hour stands by until an hour after that.

A worker is held back only from a ring that can do without it: if there are too few others, or it alone holds
the job's state, it is admitted at once (assignment.choose_members). A worker that the sentinel has
found to compute wrongly is never admitted again.
"""

from __future__ import annotations

import math

from elastane_master.decisions import stragglers
from elastane_master.decisions.decision_context import DecisionContext
from elastane_master.decisions.state import JobState, WorkerRecord
from elastane_proto.history import events as history
from elastane_proto.history.describe import stands_by

WINDOW_SECONDS = 600.0
"""Time for which deaths count."""
DEATHS_FREE = 2
FIRST_SECONDS = 2.0
"""Delay after the first death that is not free; each further death doubles it."""
SECONDS_MAX = 120.0
FOR_GOOD = math.inf
"""`held_until` of a worker that stands by permanently."""
WORKERS_MAX = 1000
"""Limit of remembered worker ids; those whose last death is oldest are forgotten."""


def died(state: JobState, worker: str, now: float) -> None:
    """Record a death of a ring worker."""
    deaths = [at for at in state.deaths.pop(worker, ()) if now - at < WINDOW_SECONDS]
    kept = int(DEATHS_FREE + 1 + SECONDS_MAX // FIRST_SECONDS)
    state.deaths[worker] = (*deaths, now)[-kept:]
    while len(state.deaths) > WORKERS_MAX:
        del state.deaths[next(iter(state.deaths))]


def delay_seconds(deaths: int) -> float:
    """Delay for a worker that died this often within the window."""
    if deaths <= DEATHS_FREE:
        return 0.0
    return float(min(FIRST_SECONDS * 2.0 ** min(deaths - DEATHS_FREE - 1, 32), SECONDS_MAX))


def receive(ctx: DecisionContext, record: WorkerRecord) -> None:
    """Hold a joining ring worker back.

    Reasons: it computed wrongly, it died too often, or its host is barred (stragglers.py).
    """
    wrong_in = ctx.state.sentinel.faulty.get(record.worker)
    if wrong_in is not None:
        exclude(ctx, record, wrong_in)
        return
    until = stragglers.barred_until(ctx.state, record.host, ctx.now)
    if until is not None:
        ctx.touch()
        record.held_until = until
        barred = history.HostBarred(record.worker, record.host, until - ctx.now)
        record.reason = stands_by(barred)
        ctx.note(barred)
        return
    deaths = [at for at in ctx.state.deaths.get(record.worker, ()) if ctx.now - at < WINDOW_SECONDS]
    delay = delay_seconds(len(deaths))
    if not delay:
        return
    ctx.touch()
    record.held_until = ctx.now + delay
    held_back = history.WorkerQuarantined(record.worker, len(deaths), delay, WINDOW_SECONDS)
    record.reason = stands_by(held_back)
    ctx.note(held_back)


def exclude(ctx: DecisionContext, record: WorkerRecord, step: int) -> None:
    """Hold back a worker that computes wrongly, permanently; a repaired machine returns under another id."""
    ctx.touch()
    record.held_until = FOR_GOOD
    barred = history.WorkerBarred(record.worker, step)
    record.reason = stands_by(barred)
    ctx.note(barred)


def for_good(record: WorkerRecord) -> bool:
    """True if a worker stands by permanently: a ring that would need it is not formed."""
    return record.held_until == FOR_GOOD


def held(state: JobState) -> frozenset[str]:
    """Workers that stand by because they died too often, compute wrongly, or are on a barred host."""
    return frozenset(record.worker for record in state.workers.values() if record.held_until is not None)


def lift(state: JobState, members: tuple[str, ...]) -> None:
    """Release these from quarantine: they are in the ring because it needs them."""
    for worker in members:
        if worker in state.workers:
            state.workers[worker].held_until = None


def next_deadline(state: JobState) -> float | None:
    """Time at which the first delay ends."""
    return min(
        (
            record.held_until
            for record in state.workers.values()
            if record.held_until is not None and not for_good(record)
        ),
        default=None,
    )


def release(ctx: DecisionContext) -> bool:
    """Release workers whose delay has ended; True if there were any."""
    due = [
        record
        for record in ctx.state.workers.values()
        if record.held_until is not None and ctx.now >= record.held_until
    ]
    for record in due:
        ctx.touch()
        record.held_until = None
        record.reason = "joins at the next change of the ring"
        ctx.note(history.WorkerReleased(record.worker))
    return bool(due)
