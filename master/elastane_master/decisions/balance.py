"""Balance of ESTs over workers of unlike speed: when unequal ranges pay, and whether they did.

Workers measure how long an EST's part of a step takes on their device (`WorkerFigures`). Workers of one
device type count as equally fast, so that noise moves no EST, unless one of them is far from the others.
Where all are alike, or the speed of one is unknown, ranges are even. A ring that changes anyway gets the best
ranges; ranges alone are changed when

    steps left x (T_old - T_new) > 2 x the time that a change takes,

the step becomes shorter by 5 % or more, and the last such change is 30 s old. What was measured may be wrong:
if the step is longer afterwards, the ranges before come back, and no others are tried for ten minutes, then
twenty.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

from elastane_master.decisions.decision_context import DecisionContext
from elastane_master.decisions.effects import Member
from elastane_master.decisions.events import AppliedReported
from elastane_master.decisions.state import JobState, WorkerRecord

UNLIKE_FACTOR = 1.5
"""A worker that differs from the others of its device type by more than this counts by itself."""
NEWS_FRACTION = 0.1
"""A measured time that differs less from the known one is no news."""
NEWS_SECONDS = 10.0
"""Time between two news of one worker."""
EST_STEPS_MIN = 3
"""Steps that the time of an EST must rest on."""
RING_STEPS_MIN = 20
"""Steps of a ring that the time of its steps must rest on."""
GAIN_FRACTION_MIN = 0.05
COST_FACTOR = 2.0
PAUSE_SECONDS = 30.0
BARRED_SECONDS = 600.0
SECONDS_MAX = 1e6
"""A longer time of a step is not believed."""


def measured(ctx: DecisionContext, record: WorkerRecord, event: AppliedReported) -> None:
    """Note what a worker has measured, if it is news, and not too often: every news is stored."""
    if event.device_type and not record.device_type:
        ctx.touch()
        record.device_type = event.device_type
    heard_lately = record.est_seconds and ctx.now < record.measured_at + NEWS_SECONDS
    if not heard_lately and _is_time(event.est_seconds) and event.est_steps >= EST_STEPS_MIN:
        known = record.est_seconds
        if abs(event.est_seconds - known) > NEWS_FRACTION * known:
            ctx.touch()
            record.est_seconds, record.measured_at = event.est_seconds, ctx.now
    if (
        _is_time(event.ring_step_seconds)
        and event.ring_steps >= RING_STEPS_MIN
        and event.generation == ctx.state.ring.generation != record.step_generation
    ):
        ctx.touch()
        record.step_seconds, record.step_generation = event.ring_step_seconds, event.generation


def speeds(records: Sequence[WorkerRecord]) -> dict[str, float]:
    """Return the seconds of an EST by worker; empty if ranges should be even."""
    by_type: dict[str, list[float]] = {}
    for record in records:
        if record.est_seconds:
            by_type.setdefault(record.device_type, []).append(record.est_seconds)
    usual = {name: statistics.median_low(found) for name, found in by_type.items()}
    found = {record.worker: _speed(record, usual.get(record.device_type, 0.0)) for record in records}
    known = [seconds for seconds in found.values() if seconds]
    if len(known) < len(found) or not known or max(known) <= (1 + GAIN_FRACTION_MIN) * min(known):
        return {}
    return found


def pays(state: JobState, members: Sequence[Member], now: float) -> bool:
    """True if these ranges should replace those of the running ring, whose workers are the same."""
    book, before = state.balance, state.ring.members
    if now < book.barred_until or (book.changed_at is not None and now < book.changed_at + PAUSE_SECONDS):
        return False
    found = speeds(state.active_members())
    step_seconds = _ring_step_seconds(state)
    if not found or step_seconds is None or not state.total_steps:
        return False
    gain = step_time(before, found) - step_time(members, found)
    steps_left = state.total_steps - state.steps.current
    return gain >= GAIN_FRACTION_MIN * step_seconds and steps_left * gain > COST_FACTOR * book.change_seconds


def step_time(members: Sequence[Member], est_seconds: Mapping[str, float]) -> float:
    """Return the seconds until the last of the members has run its ESTs."""
    return max(est_seconds[member.worker] * (member.end - member.start) for member in members)


def announced(state: JobState, members: Sequence[Member], now: float, *, planned: bool) -> None:
    """Note that the next ring is decided, while `state.ring` is still the one before.

    planned: at a step boundary. If it has the same workers, ranges are all that changes.
    """
    book, ring = state.balance, state.ring
    reverts, book.reverts = book.reverts, False
    book.tried, book.tried_generation = (), 0
    if not planned or not same_workers(ring.members, members):
        return
    book.changed_at = now
    if reverts:
        book.barred_seconds = min(2 * book.barred_seconds, SECONDS_MAX) or BARRED_SECONDS
        book.barred_until = now + book.barred_seconds
    else:
        book.tried, book.tried_generation = ring.members, ring.generation + 1
        book.tried_seconds = _ring_step_seconds(state) or 0.0


def same_workers(one: Sequence[Member], other: Sequence[Member]) -> bool:
    """True if two rings differ at most in the ranges of their members."""
    return [(m.worker, m.store_address) for m in one] == [(m.worker, m.store_address) for m in other]


def formed(state: JobState, seconds: float) -> None:
    """Note how long a change of the ring has taken that was decided at a step boundary."""
    state.balance.change_seconds = seconds


def judge(state: JobState) -> None:
    """Compare the steps before and after the last change of ranges alone, once both are known.

    Called at a step boundary, whose event is stored in any case.
    """
    book = state.balance
    if not book.tried or book.reverts or book.tried_generation != state.ring.generation:
        return
    after = _ring_step_seconds(state)
    if after is None or not book.tried_seconds:
        return
    if after > book.tried_seconds:
        book.reverts = True
    else:
        book.tried, book.barred_seconds = (), 0.0


def _ring_step_seconds(state: JobState) -> float | None:
    """Return the seconds of a step in the present ring; None until enough of it was measured."""
    ring = state.ring.generation
    found = [record.step_seconds for record in state.workers.values() if record.step_generation == ring > 0]
    return statistics.median(found) if found else None


def _speed(record: WorkerRecord, usual: float) -> float:
    own = record.est_seconds
    if own and usual and max(own, usual) > UNLIKE_FACTOR * min(own, usual):
        return own
    return usual


def _is_time(seconds: float) -> bool:
    return math.isfinite(seconds) and 0 < seconds < SECONDS_MAX
