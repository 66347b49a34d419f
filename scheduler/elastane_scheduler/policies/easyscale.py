"""EasyScale's greedy: jobs start on one device and propose to grow; the best proposals are taken. Pure.

A job proposes, for each device type, the growth of that type alone with the best score, `1 + (T_now/T_new -
1)/k` for k more devices, if at most 0.3 of the devices' capability is wasted and the job at most doubles.
Nobody gives devices back. With homogeneous devices a job stays on the type of its request. The published code
finds no mixture for jobs of one type and counts the waste of a single type as none; plans here are exact for
both.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from elastane_scheduler.jobs import JobState
from elastane_scheduler.plan import Shape, waste
from elastane_scheduler.policies.giving import fits, kept, less, plus
from elastane_scheduler.pool import Counts
from elastane_scheduler.view import Allocation, View

WASTE_MAX = 0.3
GROWTH_MAX = 2


def easyscale(view: View, *, mixed: bool) -> Allocation:
    """Start waiting jobs on one device each, then grow each job at most once.

    mixed: on all types it may use.
    """
    allocation, free = kept(view)
    alone = [state.shape.alone(view.offered) for state in view.jobs]
    proposals = [
        (-score, index, added)
        for index, devices in enumerate(allocation)
        if any(devices) and devices != alone[index]  # as fast as can be, with the fewest
        for score, added in _proposals(view.jobs[index], devices, view.offered, mixed)
    ]
    for index, state in enumerate(view.jobs):
        if not any(free):
            break
        if not any(allocation[index]):
            first = _first(state, view.offered, free, mixed)
            if first is not None:
                allocation[index], free = first, less(free, first)
    grown: set[int] = set()
    for _, index, added in sorted(proposals):
        if index not in grown and fits(added, free):
            grown.add(index)
            allocation[index], free = plus(allocation[index], added), less(free, added)
    return allocation


def _types(state: JobState, mixed: bool) -> list[int]:
    preferred = max(state.shape.usable, key=lambda i: (state.job.request[i], -i))
    return next(list(group) for group in state.shape.groups if preferred in group) if mixed else [preferred]


def _first(state: JobState, offered: Counts, free: Counts, mixed: bool) -> Counts | None:
    """One device, or the least number that can train, of the slowest type; else a mixture."""
    present = [i for i in _types(state, mixed) if offered[i]] or [i for i in state.shape.usable if offered[i]]
    for i in sorted(present, key=lambda i: -state.shape.est_seconds[i]):
        for count in range(state.shape.workers_min, min(state.shape.ests, offered[i]) + 1):
            devices = tuple(count if j == i else 0 for j in range(len(free)))
            if state.shape.step_seconds(devices) < math.inf:
                return devices if fits(devices, free) else None
    return state.shape.widest(free, (1.0,) * len(free))


def _proposals(
    state: JobState, devices: Counts, offered: Counts, mixed: bool
) -> Iterator[tuple[float, Counts]]:
    """The best growth on each type.

    In mixtures one that gains nothing counts too, as in the published code.
    """
    shape: Shape = state.shape
    if shape.level(devices) == 0:
        return  # no devices are faster
    now, size = shape.step_seconds(devices), sum(devices)
    for i in _types(state, mixed):
        best: tuple[float, Counts] | None = None
        for more in range(1, min(offered[i] - devices[i], (GROWTH_MAX - 1) * size) + 1):
            added = tuple(more if j == i else 0 for j in range(len(offered)))
            wider = plus(devices, added)
            step = shape.step_seconds(wider)
            useless = step > now * (1 - 1e-9) and not mixed
            if useless or step > now or waste(shape, wider).fraction > WASTE_MAX:
                continue
            score = 1 + (now / step - 1) / more
            if best is None or score > best[0]:
                best = (score, added)
        if best is not None:
            yield best
