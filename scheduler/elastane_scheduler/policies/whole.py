"""Policies that give jobs all requested devices or none: one at a time, packing, backfill, shortest first.

Pure.
"""

from __future__ import annotations

import math

from elastane_scheduler.jobs import JobState
from elastane_scheduler.policies.giving import fits, kept, less, nothing, total
from elastane_scheduler.pool import Counts, common
from elastane_scheduler.view import Allocation, View


def request_of(state: JobState, view: View) -> Counts:
    """Return the job's request, limited to the pool."""
    wanted = common(state.job.request, view.offered)
    return wanted if state.shape.step_seconds(wanted) < math.inf else state.job.request


def requests(view: View) -> Allocation:
    """Return the requests of all jobs, limited to the pool."""
    asked = [state.job.request for state in view.jobs]
    largest = tuple(max([each[i] for each in asked], default=0) for i in range(len(view.offered)))
    return asked if fits(largest, view.offered) else [request_of(state, view) for state in view.jobs]


def seconds_left(state: JobState, view: View) -> float:
    """Return the seconds that the job needs with the requested devices."""
    return state.remaining_at(view.now) * state.shape.step_seconds(request_of(state, view))


def fifo(view: View) -> Allocation:
    """Run one job at a time, the oldest that fits."""
    allocation = nothing(view)
    for index, state in enumerate(view.jobs):
        request = request_of(state, view)
        if fits(request, view.offered):
            allocation[index] = request
            break
    return allocation


def _waiting(view: View, allocation: Allocation) -> list[int]:
    none = (0,) * len(view.offered)
    return [index for index, devices in enumerate(allocation) if devices == none]


def packing(view: View) -> Allocation:
    """Start jobs in the order of their arrival while they fit; none overtakes, none is stopped."""
    allocation, free = kept(view)
    for index in _waiting(view, allocation):
        request = request_of(view.jobs[index], view)
        if not fits(request, view.offered):
            continue  # it waits for devices that are not there at all
        if not fits(request, free):
            break
        allocation[index] = request
        free = less(free, request)
    return allocation


def backfill(view: View) -> Allocation:
    """Like packing, but jobs may overtake the first waiting job if they do not delay its start (EASY)."""
    allocation, free = kept(view)
    head: int | None = None
    spare: Counts = free
    start = math.inf
    for index in _waiting(view, allocation):
        state = view.jobs[index]
        request = request_of(state, view)
        if not fits(request, view.offered):
            continue
        if head is None and not fits(request, free):
            head = index
            start, spare = _reservation(view, allocation, request, free)
        elif head is not None:
            if not fits(request, free):
                continue
            end = view.now + view.costs.start_seconds + seconds_left(state, view)
            if end > start and not fits(request, spare):
                continue
            if end > start:
                spare = less(spare, request)
            allocation[index], free = request, less(free, request)
        else:
            allocation[index], free = request, less(free, request)
        if not any(free):
            break
    return allocation


def _reservation(view: View, allocation: Allocation, request: Counts, free: Counts) -> tuple[float, Counts]:
    """Return when the first waiting job can start, and the devices that are free then beside its own."""
    ends = []
    for state, devices in zip(view.jobs, allocation, strict=True):
        if any(devices):
            end = state.finish_seconds if devices == state.devices else None
            if end is None:
                end = view.now + view.costs.start_seconds + seconds_left(state, view)
            ends.append((end, devices))
    for end, devices in sorted(ends):
        free = tuple(a + b for a, b in zip(free, devices, strict=True))
        if fits(request, free):
            return end, less(free, request)
    return math.inf, free


def whole_in_order(view: View, order: list[int]) -> Allocation:
    """Give each job in order its request if that fits; jobs that do not fit are stopped."""
    allocation, free = nothing(view), view.offered
    asked = requests(view)
    for index in order:
        request = asked[index]
        if fits(request, free):
            allocation[index] = request
            free = less(free, request)
            if not any(free):
                break
    return allocation


def all_requests(view: View) -> Allocation | None:
    """Return the requests of all jobs, or None if they exceed the pool."""
    allocation = requests(view)
    return allocation if fits(total(allocation, len(view.offered)), view.offered) else None


def srtf(view: View) -> Allocation:
    """Run the jobs with the least time left, with all requested devices."""
    everything = all_requests(view)
    if everything is not None:
        return everything
    keys = [seconds_left(state, view) for state in view.jobs]
    return whole_in_order(view, sorted(range(len(keys)), key=lambda i: (keys[i], i)))
