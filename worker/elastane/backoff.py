"""How long to wait before the next attempt, without touching the script's random numbers."""

from __future__ import annotations

import random
from typing import Final

import tenacity

SECONDS_MAX: Final = 2.0
_FIRST_SECONDS: Final = 0.05
#: Not the module's generator: that one belongs to the EST that runs now and decides its bits. The
#: jitter of tenacity's own waits draws from it.
_generator = random.Random()


def backoff_seconds(attempt: int) -> float:
    """Exponential in the attempt (from 1) with jitter, at most `SECONDS_MAX`."""
    return min(SECONDS_MAX, _FIRST_SECONDS * 2.0 ** min(attempt - 1, 10)) * _generator.uniform(0.5, 1.0)


def wait_backoff(state: tenacity.RetryCallState) -> float:
    """The same as a `wait` of tenacity."""
    return backoff_seconds(state.attempt_number)
