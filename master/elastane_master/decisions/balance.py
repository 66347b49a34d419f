"""Balances ESTs over workers of different speed: when unequal ranges pay off, and whether they did.

Workers measure how long an EST's part of a step takes on their device, and the script's code after it
(`WorkerFigures`): each EST that a worker hosts adds both to its step. Workers of one
device type count as equally fast, so that noise moves no EST, unless one of them is far from the others, or a
straggler (stragglers.py). If all are equally fast, or the speed of one is unknown, ranges are even. A ring
that changes anyway gets the best ranges; only ranges are changed when

    steps left x (T_old - T_new) > 2 x the time that a change takes

and the step becomes shorter by 5 % or more, after a pause that doubles with each such change. Measurements
may be wrong: if steps are longer afterwards, the previous ranges come back, and ranges are even, or stay as
they are, for ten minutes, then twenty.

No worker hosts more ESTs than fit into its reported memory, or than its device type has carried after a
worker ran out of memory, as long as all workers together have enough.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

from elastane_master.decisions import cost
from elastane_master.decisions.assignment import Capacity
from elastane_master.decisions.decision_context import DecisionContext
from elastane_master.decisions.effects import Member
from elastane_master.decisions.events import AppliedReported
from elastane_master.decisions.state import JobState, WorkerRecord

UNLIKE_FACTOR = 1.5
"""A worker that differs from the others of its device type by more than this counts by itself."""
ALIKE_FRACTION = 0.05
"""Workers whose speeds differ by no more than this are alike."""
CHANGE_FRACTION_MIN = 0.1
"""A smaller change of a measured time is ignored."""
UPDATE_SECONDS = 10.0
"""Minimum time between two changes from one worker: each one is stored."""
EST_STEPS_MIN = 3
"""Steps that the time of an EST must rest on."""
RING_STEPS_MIN = 20
"""Steps of a ring that the time of its steps must rest on."""
LOOK_STEPS = 5
"""Steps between two looks at the ranges alone: each one visits every worker."""
GAIN_FRACTION_MIN = 0.05
NOISE_FRACTION = 0.02
"""Steps that are longer by less than this are not longer."""
COST_FACTOR = 2.0
PAUSE_SECONDS = 30.0
PAUSE_SECONDS_MAX = 3600.0
BACKOFF_SECONDS = 600.0
SECONDS_MIN, SECONDS_MAX = 1e-6, 1e6
"""Other times of a step are not believed."""


def measured(ctx: DecisionContext, record: WorkerRecord, event: AppliedReported) -> None:
    """Record a worker's measurements if they have changed, at limited frequency."""
    if event.device_type and not record.device_type:
        ctx.touch()
        cost.typed(ctx.state, record, event.device_type, ctx.now)
    after = event.after_est_seconds
    known, seconds = record.added_seconds, event.est_seconds + after
    is_measured = event.est_steps >= EST_STEPS_MIN and _is_time(event.est_seconds)
    is_measured = is_measured and after >= 0 and _is_time(seconds)
    is_soon = known > 0 and ctx.now < record.measured_at + UPDATE_SECONDS
    has_changed = is_measured and not is_soon and abs(seconds - known) > CHANGE_FRACTION_MIN * known
    if has_changed:
        ctx.touch()
        record.est_seconds, record.after_est_seconds = event.est_seconds, after
        record.measured_at = ctx.now
    _measured_memory(ctx, record, min(event.ests_max, ctx.state.settings.ests), is_soon)
    # Step times stay the same until a worker's speed changes, which is recorded anyway.
    if (
        event.ring_generation == ctx.state.ring.generation
        and (has_changed or record.step_generation != event.ring_generation)
        and event.ring_steps >= RING_STEPS_MIN
        and _is_time(event.ring_step_seconds)
    ):
        ctx.touch()
        record.step_seconds, record.step_generation = event.ring_step_seconds, event.ring_generation


def _measured_memory(ctx: DecisionContext, record: WorkerRecord, ests_max: int, is_soon: bool) -> None:
    """Record for how many ESTs a worker has memory, at most the job's number."""
    known = record.ests_max
    if ests_max and (not known or not is_soon) and abs(ests_max - known) > CHANGE_FRACTION_MIN * known:
        ctx.touch()
        record.ests_max, record.measured_at = ests_max, ctx.now


def speeds(records: Sequence[WorkerRecord]) -> dict[str, float]:
    """Return the seconds that an EST adds to a step by worker; empty if one is unknown.

    Equal among similar workers.
    """
    by_type: dict[str, list[float]] = {}
    for record in records:
        if record.added_seconds:
            by_type.setdefault(record.device_type, []).append(record.added_seconds)
    usual = {name: statistics.median_low(found) for name, found in by_type.items()}
    found = {record.worker: _speed(record, usual.get(record.device_type, 0.0)) for record in records}
    slowest, fastest = max(found.values(), default=0.0), min(found.values(), default=0.0)
    if not fastest:
        return {}
    return found if slowest > (1 + ALIKE_FRACTION) * fastest else dict.fromkeys(found, slowest)


def next_capacities(state: JobState, workers: Sequence[str]) -> dict[str, Capacity]:
    """Return workers' capacities for a ring that changes anyway; equal speeds during a backoff."""
    records = [state.workers[worker] for worker in workers]
    is_barred = state.decided_at < state.balance.backoff_until
    known = {} if is_barred else speeds(records)
    return {record.worker: capacity(state, record, known) for record in records}


def capacity(state: JobState, record: WorkerRecord, est_seconds: Mapping[str, float]) -> Capacity:
    """Return a worker's capacity. est_seconds: by worker; empty: all are equally fast."""
    ests = state.settings.ests
    limit = min(record.ests_max or ests, state.balance.ests_max.get(record.device_type, ests))
    return Capacity(est_seconds.get(record.worker, 1.0), limit)


def out_of_memory(state: JobState, record: WorkerRecord, device_type: str) -> None:
    """Record that a worker ran out of memory: its device type hosts fewer ESTs from now on, if that helps.

    device_type: from its Bye, as it may have sent no heartbeat yet.
    """
    member = state.ring.member(record.worker)
    hosted = member.end - member.start if member is not None else 0
    name = record.device_type or device_type
    if name and hosted > 1:
        state.balance.ests_max[name] = min(state.balance.ests_max.get(name, hosted), hosted - 1)


def may_change(state: JobState, now: float) -> bool:
    """True if a change of only the ranges is allowed now, apart from measurements."""
    book = state.balance
    if not is_turn(state):
        return False
    if book.reverts:
        return True
    since = book.changed_at
    return now >= book.backoff_until and (since is None or now >= since + pause_seconds(book.changes))


def is_turn(state: JobState) -> bool:
    """True if the ring is examined after this step, and no other change is in progress."""
    # Not at multiples: those may all begin an epoch, where no ring is changed (`_change_planned`).
    looks = state.steps.current % LOOK_STEPS == 1 % LOOK_STEPS
    return looks and not state.ring.gone and state.checkpoints.in_flight is None


def pause_seconds(changes: int) -> float:
    """Return the pause after this many changes."""
    return min(PAUSE_SECONDS * 2.0 ** max(0, min(changes, 30) - 1), PAUSE_SECONDS_MAX)


def pays(state: JobState, old_seconds: float, new_seconds: float) -> bool:
    """True if new ranges, whose slowest part of a step takes `new_seconds`, pay off."""
    gain, step_seconds = old_seconds - new_seconds, ring_step_seconds(state)
    if step_seconds is None or not state.total_steps:
        return False
    steps_left = state.total_steps - state.steps.current
    worth_it = steps_left * gain > COST_FACTOR * state.balance.change_seconds
    return worth_it and gain >= GAIN_FRACTION_MIN * step_seconds


def step_time(members: Sequence[Member], est_seconds: Mapping[str, float]) -> float:
    """Return the seconds until the last of the members has run its ESTs."""
    return max(est_seconds[member.worker] * (member.end - member.start) for member in members)


def announced(state: JobState, members: Sequence[Member], now: float, *, planned: bool) -> None:
    """Record that the next ring is decided, while `state.ring` is still the previous one.

    planned: at a step boundary. With the same workers, only ranges change.
    """
    book, ring = state.balance, state.ring
    reverts, book.reverts = book.reverts, False
    book.tried, book.tried_generation = (), 0
    if not planned or not same_workers(ring.members, members):
        book.changes = 0
        return
    book.changed_at, book.changes = now, book.changes + 1
    if reverts:
        book.backoff_seconds = min(2 * book.backoff_seconds, SECONDS_MAX) or BACKOFF_SECONDS
        book.backoff_until = now + book.backoff_seconds
    elif ring_step_seconds(state) is not None:
        # The highest report: a straggler's figures show first how slow the ring has become.
        told = [
            record.step_seconds
            for record in state.active_members()
            if record.step_generation == ring.generation
        ]
        book.tried, book.tried_generation, book.tried_seconds = ring.members, ring.generation + 1, max(told)


def same_workers(one: Sequence[Member], other: Sequence[Member]) -> bool:
    """True if two rings differ at most in the ranges of their members."""
    return len(one) == len(other) and all(
        mine.worker == theirs.worker and mine.store_address == theirs.store_address
        for mine, theirs in zip(one, other, strict=True)
    )


def formed(state: JobState, seconds: float) -> None:
    """Record the time from the announcement of a planned ring to its Go."""
    state.balance.change_seconds = seconds


def judge(state: JobState) -> None:
    """Compare step times before and after the last change of only the ranges, once both are known.

    Called at a step boundary, whose event is stored in any case.
    """
    book = state.balance
    if not book.tried or book.reverts or book.tried_generation != state.ring.generation:
        return
    after = ring_step_seconds(state)
    if after is None:
        return
    if after > (1 + NOISE_FRACTION) * book.tried_seconds:
        book.reverts = True
    else:
        book.tried, book.backoff_seconds = (), 0.0


def ring_step_seconds(state: JobState) -> float | None:
    """Return the seconds of a step in the current ring; None until half of its members have measured them."""
    members, ring = state.active_members(), state.ring.generation
    found = [record.step_seconds for record in members if record.step_generation == ring > 0]
    return statistics.median(found) if found and 2 * len(found) >= len(members) else None


def _speed(record: WorkerRecord, usual: float) -> float:
    own = record.added_seconds
    is_slow = record.straggler in ("compute", "data")
    if own and (is_slow or max(own, usual) > UNLIKE_FACTOR * min(own, usual)):
        return own
    return usual


def _is_time(seconds: float) -> bool:
    return math.isfinite(seconds) and SECONDS_MIN <= seconds <= SECONDS_MAX
