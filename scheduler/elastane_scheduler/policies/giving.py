"""Allocation of devices to one job after another, and what a device type is worth meanwhile. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from elastane_scheduler.jobs import JobState
from elastane_scheduler.pool import Counts
from elastane_scheduler.view import Allocation, View


def less(free: Counts, taken: Counts) -> Counts:
    """Return `free` without `taken`."""
    return tuple(a - b for a, b in zip(free, taken, strict=True))


def plus(one: Counts, other: Counts) -> Counts:
    """Return the sum of two counts."""
    return tuple(a + b for a, b in zip(one, other, strict=True))


def total(counts: Sequence[Counts], types: int) -> Counts:
    """Return the sum of counts of `types` device types."""
    return tuple(sum([each[i] for each in counts]) for i in range(types))


def fits(counts: Counts, free: Counts) -> bool:
    """Return whether `free` contains all of `counts`."""
    return all(a <= b for a, b in zip(counts, free, strict=True))


def nothing(view: View) -> Allocation:
    """Return an allocation without any device."""
    return [(0,) * len(view.offered)] * len(view.jobs)


def worth(jobs: Iterable[JobState], offered: Counts) -> tuple[float, ...]:
    """Return what a device of each type is worth: ESTs that may go there for each of its devices.

    Jobs bound to one type count whole there; those that may mix are spread over the devices that they can
    use.
    """
    wanted = [0.0] * len(offered)
    for state in jobs:
        usable = [i for i, limit in enumerate(state.shape.limits) if limit and offered[i]]
        devices = sum(offered[i] for i in usable)
        for i in usable:
            wanted[i] += state.shape.ests * offered[i] / devices
    return tuple(w / n if n else 0.0 for w, n in zip(wanted, offered, strict=True))


def alone_seconds(state: JobState, offered: Counts) -> float:
    """Return the seconds of a step if the job had all devices to itself."""
    level = state.shape.level(offered)
    return math.inf if level is None else state.shape.levels[level][0]


def uncontended(view: View) -> Allocation | None:
    """Return the allocation in which each job is as fast as alone, or None where devices do not suffice."""
    none = (0,) * len(view.offered)
    allocation = [state.shape.alone(view.offered) or none for state in view.jobs]
    return allocation if fits(total(allocation, len(none)), view.offered) else None


def kept(view: View) -> tuple[Allocation, Counts]:
    """Return the devices that running jobs keep, and those left free.

    Where devices were taken away, the newest jobs have to give theirs up.
    """
    had = [state.devices for state in view.jobs]
    used = total(had, len(view.offered))
    if fits(used, view.offered):
        return had, less(view.offered, used)
    allocation, free = nothing(view), view.offered
    for index, state in enumerate(view.jobs):
        if state.running and fits(state.devices, free):
            allocation[index] = state.devices
            free = less(free, state.devices)
    return allocation, free


def widest_in_order(view: View, order: Sequence[int]) -> Allocation:
    """Give each job in order the devices with which it is fastest, out of those that earlier jobs left."""
    allocation = nothing(view)
    prices = worth(view.jobs, view.offered)
    free = view.offered
    for index in order:
        devices = view.jobs[index].shape.widest(free, prices)
        if devices is not None:
            allocation[index] = devices
            free = less(free, devices)
            if not any(free):
                break
    return allocation
