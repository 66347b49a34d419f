"""Workers that die again and again are let into the ring only after a growing delay.

Every death costs the others a replay, and every return a change of the ring: a worker that lives for seconds
would keep all of them from training. So the deaths of each worker id are remembered for a while. The
first ones are free, they are what spot machines do; from then on each doubles the time for which the worker
stands by when it comes back.

It is held back only from a ring that can do without it: where too few others are there, or where it alone
holds the job's state, it is let in at once (`held`, asked by ring.next_members). One that the sentinel has
found to compute wrongly is never let in again.
"""

from __future__ import annotations

import math

from elastane_master.decisions.state import JobState, WorkerRecord
from elastane_master.decisions.turn import Turn
from elastane_proto.history import events as history
from elastane_proto.history.describe import stands_by

WINDOW_SECONDS = 600.0
"""Deaths count for so long."""
DEATHS_FREE = 2
FIRST_SECONDS = 2.0
"""The delay after the first death that is not free; each further one doubles it."""
SECONDS_MAX = 120.0
WORKERS_MAX = 1000
"""So many worker ids are remembered at most; those whose last death is oldest are forgotten."""


def died(state: JobState, worker: str, now: float) -> None:
    """Remembers a death of a ring worker."""
    deaths = [at for at in state.deaths.pop(worker, ()) if now - at < WINDOW_SECONDS]
    kept = int(DEATHS_FREE + 1 + SECONDS_MAX // FIRST_SECONDS)
    state.deaths[worker] = (*deaths, now)[-kept:]
    while len(state.deaths) > WORKERS_MAX:
        del state.deaths[next(iter(state.deaths))]


def delay_seconds(deaths: int) -> float:
    """How long a worker that died so often within the window stands by."""
    if deaths <= DEATHS_FREE:
        return 0.0
    return float(min(FIRST_SECONDS * 2.0 ** min(deaths - DEATHS_FREE - 1, 32), SECONDS_MAX))


def receive(turn: Turn, record: WorkerRecord) -> None:
    """A ring worker has joined: holds it back if it died too often, or was found to compute wrongly."""
    wrong_in = turn.state.sentinel.faulty.get(record.worker)
    if wrong_in is not None:
        put_out(turn, record, wrong_in)
        return
    deaths = [at for at in turn.state.deaths.get(record.worker, ()) if turn.now - at < WINDOW_SECONDS]
    delay = delay_seconds(len(deaths))
    if not delay:
        return
    turn.touch()
    record.held_until = turn.now + delay
    held_back = history.WorkerQuarantined(record.worker, len(deaths), delay, WINDOW_SECONDS)
    record.reason = stands_by(held_back)
    turn.note(held_back)


def put_out(turn: Turn, record: WorkerRecord, step: int) -> None:
    """A worker that computes wrongly stands by for good; a repaired machine comes back under another id."""
    turn.touch()
    record.held_until = math.inf
    barred = history.WorkerBarred(record.worker, step)
    record.reason = stands_by(barred)
    turn.note(barred)


def for_good(record: WorkerRecord) -> bool:
    """Whether a worker stands by for good: a ring that cannot be without it is not formed."""
    return record.held_until == math.inf


def held(state: JobState) -> frozenset[str]:
    """Workers that stand by because they died too often, or compute wrongly."""
    return frozenset(record.worker for record in state.workers.values() if record.held_until is not None)


def lift(state: JobState, members: tuple[str, ...]) -> None:
    """These are in the ring, because it could not be without them."""
    for worker in members:
        if worker in state.workers:
            state.workers[worker].held_until = None


def next_deadline(state: JobState) -> float | None:
    """When the first of them has waited long enough."""
    return min(
        (
            record.held_until
            for record in state.workers.values()
            if record.held_until is not None and not for_good(record)
        ),
        default=None,
    )


def release(turn: Turn) -> bool:
    """Lets in those who have waited long enough; True if there were any."""
    due = [
        record
        for record in turn.state.workers.values()
        if record.held_until is not None and turn.now >= record.held_until
    ]
    for record in due:
        turn.touch()
        record.held_until = None
        record.reason = "joins at the next change of the ring"
        turn.note(history.WorkerReleased(record.worker))
    return bool(due)
