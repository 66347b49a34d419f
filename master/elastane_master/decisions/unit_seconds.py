"""Measurements of pipeline workers: times of units, and from these the speed of devices.

A worker measures only the units that it runs, on its own device. The first known time of a unit, from the
script's profile or from the first worker to run it, defines speed 1; a worker's speed follows from all its
units with known times:

    speed = sum of their known times / sum of the times that it measures

So a device that becomes slow is detected at once, and one that has always been slow as soon as it runs a unit
that another has run. Measurements are stored when they change by more than a tenth.

The overhead of a stage per micro-batch comes from the profile, or from the first worker that reports it.
"""

from __future__ import annotations

import math
import statistics

from elastane_master.decisions.decision_context import DecisionContext
from elastane_master.decisions.events import AppliedReported
from elastane_master.decisions.state import JobState, UnitSeconds, WorkerRecord

CHANGE_FRACTION_MIN = 0.1
"""A smaller change of a speed is ignored."""
UPDATE_SECONDS = 10.0
"""Minimum time between two changes from one worker: each one is stored."""
SECONDS_MAX = 1e6
"""Longer times of a unit are not believed."""
SPEED_MIN, SPEED_MAX = 1e-3, 1e3
MEMORY_BYTES_MAX = 2**60


def measured(ctx: DecisionContext, record: WorkerRecord, event: AppliedReported) -> None:
    """Record a worker's measurements of its units if they have changed, at limited frequency."""
    state, book = ctx.state, ctx.state.pipeline
    if not state.unit_count or (record.units_at and ctx.now < record.units_at + UPDATE_SECONDS):
        return
    seconds = _believed(state, event)
    known = _known(state)
    speed = _speed(state, record, known, seconds) if seconds else record.speed
    new = {unit: one for unit, one in seconds.items() if not known[unit].forward + known[unit].backward}
    memory = memory_believed(event.memory_bytes) or record.memory_bytes
    is_other_speed = abs(speed - record.speed) > CHANGE_FRACTION_MIN * record.speed
    is_other_memory = abs(memory - record.memory_bytes) > CHANGE_FRACTION_MIN * record.memory_bytes
    overhead = _overhead(state, event) if seconds else None
    if not (new or overhead or is_other_speed or is_other_memory):
        return
    ctx.touch()
    record.units_at, record.speed, record.memory_bytes = ctx.now, speed, memory
    book.measurements += 1
    if new:
        times = list(book.measured) or [UnitSeconds()] * state.unit_count
        for unit, one in new.items():
            times[unit] = UnitSeconds(one.forward * speed, one.backward * speed)
        book.measured = tuple(times)
    if overhead:
        book.overhead = UnitSeconds(overhead.forward * speed, overhead.backward * speed)


def memory_believed(memory_bytes: int) -> int:
    """Return a worker's reported memory limit; 0 if it reports none or an impossible one."""
    return memory_bytes if 0 < memory_bytes <= MEMORY_BYTES_MAX else 0


def _believed(state: JobState, event: AppliedReported) -> dict[int, UnitSeconds]:
    """Return the times of the units that a worker runs; empty if they are impossible."""
    forward, backward, first = event.unit_forward_seconds, event.unit_backward_seconds, event.first_unit
    if len(forward) != len(backward) or first + len(forward) > state.unit_count:
        return {}
    if not all(math.isfinite(one) and 0 <= one <= SECONDS_MAX for one in (*forward, *backward)):
        return {}
    pairs = zip(forward, backward, strict=True)
    return {first + place: UnitSeconds(*pair) for place, pair in enumerate(pairs) if sum(pair) > 0}


def _overhead(state: JobState, event: AppliedReported) -> UnitSeconds | None:
    """Return a worker's reported overhead per micro-batch if none is known yet; None otherwise."""
    model, found = state.signature.pipeline if state.signature else None, state.pipeline.overhead
    assert model is not None
    pair = event.forward_overhead_seconds, event.backward_overhead_seconds
    if found.forward + found.backward or model.forward_overhead_seconds + model.backward_overhead_seconds:
        return None
    is_true = all(math.isfinite(one) and 0 <= one <= SECONDS_MAX for one in pair) and sum(pair) > 0
    return UnitSeconds(*pair) if is_true else None


def _known(state: JobState) -> list[UnitSeconds]:
    """Return the times of all units on a device of speed 1; zero if unknown."""
    model = state.signature.pipeline if state.signature else None
    assert model is not None
    told = [UnitSeconds(unit.forward_seconds, unit.backward_seconds) for unit in model.units]
    found = state.pipeline.measured or (UnitSeconds(),) * len(told)
    return [one if one.forward + one.backward else given for one, given in zip(found, told, strict=True)]


def _speed(
    state: JobState, record: WorkerRecord, known: list[UnitSeconds], seconds: dict[int, UnitSeconds]
) -> float:
    """Return a worker's speed; if no time of its units is known, that of others on its device type."""
    common = [unit for unit in seconds if known[unit].forward + known[unit].backward]
    if common:
        usual = sum(known[unit].forward + known[unit].backward for unit in common)
        own = sum(seconds[unit].forward + seconds[unit].backward for unit in common)
        return min(max(usual / own, SPEED_MIN), SPEED_MAX)
    if record.speed:
        return record.speed
    alike = [
        other.speed
        for other in state.ring_workers()
        if other.speed and other.device_type == record.device_type
    ]
    return statistics.median_low(alike) if alike else 1.0
