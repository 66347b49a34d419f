"""Waiting times between attempts, computed without touching the script's random numbers."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

import tenacity

SECONDS_MAX: Final = 2.0
_SECONDS_MIN: Final = 0.05
#: Wait before an attempt in proportion to the outage so far, which bounds the additional delay. Doubling
#: waits would add up to the length of the outage again.
_SHARE: Final = 0.1
#: Not the module's generator: that one belongs to the running EST and decides its bits. The jitter of
#: tenacity's own waits draws from it.
_generator = random.Random()


def backoff_seconds(
    away_seconds: float, uniform: Callable[[float, float], float] = _generator.uniform
) -> float:
    """Return the wait before the next attempt after an outage of `away_seconds`.

    The wait has jitter, drawn by `uniform`, and is at most `SECONDS_MAX`.
    """
    seconds = min(SECONDS_MAX, max(_SECONDS_MIN, away_seconds * _SHARE))
    return seconds * uniform(0.5, 1.0)


def wait_backoff(state: tenacity.RetryCallState) -> float:
    """Return the wait since the first attempt began, as a `wait` function of tenacity."""
    return backoff_seconds(state.seconds_since_start or 0.0)
