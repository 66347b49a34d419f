"""Simulation of an allocation: when would each job end if no other arrived? Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from elastane_scheduler.execution import change
from elastane_scheduler.jobs import JobState
from elastane_scheduler.view import Allocation, Rule, View

_SAME_TIME = 1e-9
#: What a job that never ends counts as: far beyond all that end, and still a number to compare.
NEVER_SECONDS = 1e9


@dataclass(frozen=True)
class Limits:
    """Times by which jobs should end, in the order of the view, and the cost of each second of delay."""

    seconds: Sequence[float]
    weight: float

    def score(self, index: int, finish: float) -> float:
        """Return the cost of a job that ends at `finish`."""
        return finish + self.weight * max(0.0, finish - self.seconds[index])


def play(
    view: View, first: Allocation, rule: Rule, limits: Limits | None = None, cutoff: float = math.inf
) -> tuple[float, list[float]]:
    """Apply `first`, then `rule` at each end, until all have ended. Returns the score and when each job ends.

    The score is the sum of finishing times, with the charges of `limits`. It is infinite where the play was
    cut off, as the score was certain to exceed `cutoff`. A job that never gets devices counts NEVER_SECONDS.
    """
    finishes = [math.inf] * len(view.jobs)
    places = list(range(len(view.jobs)))
    states = [replace(state) for state in view.jobs]
    allocation, now, score = first, view.now, 0.0
    while states:
        for state, devices in zip(states, allocation, strict=True):
            if devices != state.devices:
                change(state, devices, now, view.costs)
        if all(state.shape.level(state.devices) == state.shape.level(view.offered) for state in states):
            # All are as fast as they can be: nothing changes any more.
            for place, state in zip(places, states, strict=True):
                finishes[place] = state.finish_seconds
                score += limits.score(place, state.finish_seconds) if limits else state.finish_seconds
            return score, finishes
        now = min(state.finish_seconds for state in states)
        if now == math.inf:
            return score + len(states) * (view.now + NEVER_SECONDS), finishes
        left: list[JobState] = []
        left_places: list[int] = []
        for place, state in zip(places, states, strict=True):
            if state.finish_seconds <= now + _SAME_TIME:
                finishes[place] = state.finish_seconds
                score += limits.score(place, state.finish_seconds) if limits else state.finish_seconds
            else:
                left.append(state)
                left_places.append(place)
        states, places = left, left_places
        if score + now * len(states) > cutoff:
            return math.inf, finishes  # those left end after now
        if states:
            allocation = rule(replace(view, now=now, jobs=states))
    return score, finishes
