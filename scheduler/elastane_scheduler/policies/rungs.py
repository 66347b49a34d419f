"""Growth of all jobs together, a rung at a time: the job whose next rung is worth most goes first. Pure.

A rung is the next shorter step time that a job can reach with what it has and what is free. Jobs without
devices come first, in the order of their arrival.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable

from elastane_scheduler.jobs import JobState
from elastane_scheduler.plan import Shape
from elastane_scheduler.policies.giving import alone_seconds, less, nothing, plus, uncontended
from elastane_scheduler.pool import Counts
from elastane_scheduler.view import Allocation, View

Gain = Callable[[JobState, Counts, float, Counts, float], float]
"""(job, devices before, step seconds before, devices after, step seconds after) -> what the rung is worth."""


def next_rung(shape: Shape, devices: Counts, free: Counts, prices: tuple[float, ...]) -> Counts | None:
    """Return the devices of the next rung, or None where there is none."""
    reachable = plus(devices, free)
    least = shape.level(reachable)
    if least is None:
        return None
    if any(devices):
        level = shape.level(devices)
        first = len(shape.levels) - 1 if level is None else level - 1
    else:
        first = len(shape.levels) - 1
    for level in range(first, least - 1, -1):
        found = shape.devices_at(level, reachable, prices)
        if found is not None:
            return found
    return None


def grow_together(view: View, gain: Gain) -> Allocation:
    """Allocate devices, a rung at a time, to the job whose next rung has the largest gain.

    Devices count alike, whatever their type, as in the published objectives.
    """
    everything = uncontended(view)
    if everything is not None:
        return everything
    allocation = nothing(view)
    prices = (1.0,) * len(view.offered)
    free = view.offered
    heap: list[tuple[float, int, Counts]] = []

    def offer(index: int) -> None:
        state, before = view.jobs[index], allocation[index]
        after = next_rung(state.shape, before, free, prices)
        if after is None:
            return
        if any(before):
            seconds = state.shape.step_seconds
            worth_it = gain(state, before, seconds(before), after, seconds(after))
            if worth_it > 0:
                heapq.heappush(heap, (-worth_it, index, after))
        else:
            heapq.heappush(heap, (-math.inf, index, after))

    for index in range(len(view.jobs)):
        offer(index)
    while heap and any(free):
        _, index, after = heapq.heappop(heap)
        reachable = plus(allocation[index], free)
        if any(a > b for a, b in zip(after, reachable, strict=True)):
            offer(index)  # what it counted on is gone
            continue
        free = less(reachable, after)
        allocation[index] = after
        offer(index)
    return allocation


def maxmin(view: View) -> Allocation:
    """Raise the job with the fewest devices for its weight."""

    def fewest(state: JobState, before: Counts, _: float, after: Counts, __: float) -> float:
        return state.job.weight / sum(before)

    return grow_together(view, fewest)


def power_mean(view: View, p: float) -> Allocation:
    """Raise the power mean (p < 0) of the speeds of all jobs, each as a part of what it reaches alone."""
    alone = {id(state): alone_seconds(state, view.offered) for state in view.jobs}

    def gain(state: JobState, before: Counts, slow: float, after: Counts, fast: float) -> float:
        best = alone[id(state)]
        added = max(1, sum(after) - sum(before))
        return float((best / slow) ** p - (best / fast) ** p) / added

    return grow_together(view, gain)
