"""Restart budget: whether a dead worker is restarted, and after which delay. Pure.

A worker that dies once costs the job little; one that dies at every start wastes the machine and
hides the cause. So restarts are limited over a sliding window for the whole agent, and repeated restarts
of one worker are delayed exponentially.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class BudgetDecision:
    """Decision after a worker's end: restart or not, the delay, and the reason in words."""

    allowed: bool
    delay_seconds: float
    reason: str


@dataclass(frozen=True)
class RestartBudget:
    """At most `restarts_max` restarts in any `window_seconds`; a streak doubles the delay.

    A streak is a series of restarts of one worker, each less than `calm_seconds` after the one before.
    """

    restarts_max: int = 10
    window_seconds: float = 3600.0
    delay_min_seconds: float = 0.25
    delay_max_seconds: float = 30.0
    calm_seconds: float = 60.0

    def decide(self, now: float, restarts: Sequence[float], own_restarts: Sequence[float]) -> BudgetDecision:
        """Decide whether a worker that died at `now` is restarted, and after which delay.

        restarts: times of all restarts of this agent; own_restarts: those of this worker. Both ascending, in
        seconds of the same clock as `now`.
        """
        used = sum(1 for time in restarts if now - time < self.window_seconds)
        if used >= self.restarts_max:
            return BudgetDecision(
                False,
                0.0,
                f"restart budget used up: {used} restarts within {_span(self.window_seconds)}, "
                f"{self.restarts_max} allowed",
            )
        streak = self._streak(now, own_restarts)
        delay = min(self.delay_min_seconds * 2.0**streak, self.delay_max_seconds)
        return BudgetDecision(
            True,
            delay,
            f"restart {used + 1} of {self.restarts_max} within {_span(self.window_seconds)}, "
            f"in {delay:.3g} s",
        )

    def _streak(self, now: float, own_restarts: Sequence[float]) -> int:
        streak = 0
        for time in reversed(own_restarts):
            if now - time >= self.calm_seconds:
                break
            streak += 1
            now = time
        return streak


def _span(seconds: float) -> str:
    """Format a duration, such as "1 h", "10 min" or "30 s"."""
    if seconds >= 3600 and seconds % 3600 == 0:
        return f"{seconds / 3600:.0f} h"
    if seconds >= 60 and seconds % 60 == 0:
        return f"{seconds / 60:.0f} min"
    return f"{seconds:g} s"
