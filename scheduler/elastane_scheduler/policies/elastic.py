"""Policies for elastic jobs: in some order, each job gets the devices with which it is fastest. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from elastane_scheduler.execution import finish_with
from elastane_scheduler.jobs import JobState
from elastane_scheduler.policies.giving import (
    alone_seconds,
    fits,
    kept,
    less,
    plus,
    total,
    uncontended,
    widest_in_order,
    worth,
)
from elastane_scheduler.view import Allocation, Rule, View

Key = Callable[[JobState, View], float]
_SAME_TIME = 1e-9


def shortest(state: JobState, view: View) -> float:
    """Return the seconds left with all devices to itself."""
    return state.remaining_at(view.now) * alone_seconds(state, view.offered)


def least_area(state: JobState, view: View) -> float:
    """Return the device-seconds left, on the device type that is fastest for the job."""
    if state.shape.level(view.offered) is None:
        return math.inf
    return state.remaining_at(view.now) * state.shape.ests * min(state.shape.est_seconds)


def in_order(key: Key, view: View, running_factor: float = 1.0) -> list[int]:
    """Return indices of jobs by key, ties by arrival; keys of running jobs times a factor.

    Jobs that fit on no offered devices are left out.
    """
    keys = [key(state, view) * (running_factor if state.running else 1.0) for state in view.jobs]
    return sorted((i for i, value in enumerate(keys) if value < math.inf), key=lambda i: (keys[i], i))


def by_key(key: Key, running_factor: float = 1.0) -> Rule:
    """Return the rule that gives devices to the job with the least key first."""

    def rule(view: View) -> Allocation:
        everything = uncontended(view)
        if everything is not None:
            return everything
        return widest_in_order(view, in_order(key, view, running_factor))

    return rule


elastic_srtf = by_key(shortest)


def keep(view: View) -> Allocation:
    """Leave running jobs unchanged; waiting jobs get free devices, the shortest first."""
    return _keep(view, grow=False)


def keep_and_grow(view: View) -> Allocation:
    """Take nothing from running jobs; waiting jobs come first, then running ones grow if they gain by it."""
    return _keep(view, grow=True)


def _keep(view: View, *, grow: bool) -> Allocation:
    allocation, free = kept(view)
    if not any(free):
        return allocation
    order: Sequence[int] = in_order(shortest, view)
    prices = worth(view.jobs, view.offered)
    for index in order:
        if not any(allocation[index]):
            devices = view.jobs[index].shape.widest(free, prices)
            if devices is not None:
                allocation[index], free = devices, less(free, devices)
    for index in order if grow else ():
        state, now = view.jobs[index], allocation[index]
        if not any(free):
            break
        if not any(now) or state.shape.level(now) == 0:
            continue
        reachable = plus(free, now)
        wider = state.shape.widest(reachable, prices)
        if wider is None or state.shape.step_seconds(wider) >= state.shape.step_seconds(now):
            continue
        gains = not state.running or finish_with(state, wider, view.now, view.costs) < state.finish_seconds
        if gains:
            allocation[index], free = wider, less(reachable, wider)
    return allocation


def settle(view: View, allocation: Allocation) -> Allocation:
    """Return an allocation without changes that are not worthwhile.

    A running job keeps what it has where that is still free, unless its own end, all costs charged, gets
    earlier.
    """
    settled = list(allocation)
    free = less(view.offered, total(settled, len(view.offered)))
    for index, state in enumerate(view.jobs):
        if settled[index] == state.devices or not state.running:
            continue
        reachable = plus(free, settled[index])
        if not fits(state.devices, reachable):
            continue
        if finish_with(state, settled[index], view.now, view.costs) >= state.finish_seconds - _SAME_TIME:
            settled[index], free = state.devices, less(reachable, state.devices)
    return settled


def settled(rule: Rule) -> Rule:
    """Return the rule without changes that are not worthwhile."""
    return lambda view: settle(view, rule(view))
