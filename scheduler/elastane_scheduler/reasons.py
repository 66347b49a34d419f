"""Reasons for each job's allocation, as text that names jobs, devices and seconds. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

from elastane_scheduler.execution import finish_with
from elastane_scheduler.jobs import JobState
from elastane_scheduler.pool import Counts
from elastane_scheduler.view import Decision, Reason, View

_NAMED = 3


def reasons(view: View, decision: Decision) -> list[Reason]:
    """Return a reason for each job of `view`, in its order; none is empty.

    A job that waits is told who holds the devices it may use, and when the first of them ends if nothing
    changes.
    """
    ends = [
        finish_with(state, devices, view.now, view.costs)
        for state, devices in zip(view.jobs, decision.allocation, strict=True)
    ]
    found = []
    for index, (state, devices) in enumerate(zip(view.jobs, decision.allocation, strict=True)):
        if any(devices):
            text = _has(state, devices, ends[index], view)
        elif state.shape.level(view.offered) is None:
            text = _too_large(state, view)
        else:
            text = _waits(index, ends, view, decision)
        found.append(Reason(f"{text}; {decision.choice}", decision.rejected))
    return found


def _has(state: JobState, devices: Counts, end: float, view: View) -> str:
    now = view.pool.describe(devices)
    left = "never ends on them" if end == math.inf else f"ends in {_seconds(end - view.now)} s"
    if devices == state.devices:
        return f"{state.name} keeps {now}, {left}"
    if not state.running:
        return f"{state.name} gets {now}, {left}"
    return f"{state.name} has {now} instead of {view.pool.describe(state.devices)}, {left}"


def _seconds(left: float) -> str:
    """Format how long something still takes; what should have ended already may end at any time."""
    return f"{max(0.0, left):.0f}"


def _too_large(state: JobState, view: View) -> str:
    least = f", and at least {state.shape.workers_min} devices" if state.shape.workers_min > 1 else ""
    return (
        f"{state.name} has waited {view.now - state.job.arrival_seconds:.0f} s: it needs devices for "
        f"{state.shape.ests} ESTs{least}, and {view.pool.describe(view.offered)} are offered"
    )


def _waits(index: int, ends: Sequence[float], view: View, decision: Decision) -> str:
    state = view.jobs[index]
    holders = [
        i
        for i, devices in enumerate(decision.allocation)
        if any(devices[kind] for kind in state.shape.usable)
    ]
    wanted = view.pool.describe(state.job.request)
    waited = f"has waited {view.now - state.job.arrival_seconds:.0f} s"
    if not holders:
        return f"{state.name} {waited} for {wanted}, of which too few are free now"
    first = min(holders, key=lambda i: (ends[i], i))
    named = ", ".join(
        f"{view.jobs[i].name} ({view.pool.describe(decision.allocation[i])})" for i in holders[:_NAMED]
    )
    more = f" and {len(holders) - _NAMED} more" if len(holders) > _NAMED else ""
    when = "never" if ends[first] == math.inf else f"in {_seconds(ends[first] - view.now)} s"
    return (
        f"{state.name} {waited} behind {named}{more}; the first of them, {view.jobs[first].name}, ends {when}"
    )
