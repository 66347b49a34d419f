"""Progress of a job whose devices change, with every cost charged. Pure.

Growth is make-before-break: the devices that a job keeps train on while newcomers start, for `start_seconds`;
then all stall for `stall_seconds`. Devices that are taken leave at once, and the others stall. A job that
keeps no device has saved, and trains again after `start_seconds + restore_seconds`; a first start takes
`start_seconds`. A newcomer that is still starting at a further change does not start anew.
"""

from __future__ import annotations

import math

from elastane_scheduler.costs import Costs
from elastane_scheduler.jobs import JobState, Segment, Stage, finish_of
from elastane_scheduler.pool import Counts, common


def change(state: JobState, devices: Counts, now: float, costs: Costs) -> None:
    """Give a job these devices from `now` on. `devices` may be none."""
    if devices == state.devices:
        return
    remaining, started = state.remaining_at(now), state.trained_by(now)
    service = state.service_at(now)
    stages, stalled_until = _stages(state, devices, now, started, costs)
    _bind(state, devices)
    state.segments = _segments(state, stages, stalled_until, costs)
    state.stages, state.stalled_until = stages, stalled_until
    state.at_seconds, state.remaining, state.devices = now, remaining, devices
    state.started, state.service_seconds = started, service
    state.finish_seconds = finish_of(state.segments, remaining)


def finish_with(state: JobState, devices: Counts, now: float, costs: Costs) -> float:
    """Return the end of the job if it had these devices from `now` on; infinite if they cannot train."""
    if devices == state.devices:
        return state.finish_seconds
    stages, stalled_until = _stages(state, devices, now, state.trained_by(now), costs)
    return finish_of(_segments(state, stages, stalled_until, costs), state.remaining_at(now))


def _bind(state: JobState, devices: Counts) -> None:
    """Bind the job to the type that it began with, and those that may train with it."""
    if len(state.shape.groups) > 1:
        state.shape = state.shape.bound_to(max(range(len(devices)), key=lambda i: devices[i]))


def _stages(
    state: JobState, devices: Counts, now: float, started: bool, costs: Costs
) -> tuple[tuple[Stage, ...], float]:
    present: Counts = (0,) * len(devices)
    stalled_until = state.stalled_until
    later: list[Stage] = []
    for start, training in state.stages:
        if start <= now:
            if any(present) and training != present:
                stalled_until = max(stalled_until, start + costs.stall_seconds)
            present = training
        else:
            later.append((start, common(training, devices)))
    kept = common(present, devices)
    if kept != present and any(kept):
        stalled_until = max(stalled_until, now + costs.stall_seconds)
    stages = [(now, kept)]
    for stage in later:
        if stage[1] != stages[-1][1]:
            stages.append(stage)
    if stages[-1][1] != devices:
        restore = costs.restore_seconds if started and not any(stages[-1][1]) else 0.0
        stages.append((max(stages[-1][0], now + costs.start_seconds + restore), devices))
    return tuple(stages), stalled_until


def _segments(
    state: JobState, stages: tuple[Stage, ...], stalled_until: float, costs: Costs
) -> tuple[Segment, ...]:
    """The speeds of the stages, with the stalls between them."""
    found: list[Segment] = []
    rate = 0.0
    for start, devices in stages:
        begin = start
        if not found:
            begin = max(start, stalled_until)
        elif rate:
            begin = start + costs.stall_seconds
        step = state.shape.step_seconds(devices)
        rate = 0.0 if step == math.inf else 1.0 / step
        while found and found[-1][0] >= start:
            found.pop()  # a stage that ends while it stalls
        if begin > start:
            found.append((start, 0.0))
        found.append((begin, rate))
    return tuple(found)
