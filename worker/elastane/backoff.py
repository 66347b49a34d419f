"""How long to wait before the next attempt, without touching the script's random numbers."""

from __future__ import annotations

import random
from typing import Final

import tenacity

SECONDS_MAX: Final = 2.0
_SECONDS_MIN: Final = 0.05
#: The wait before an attempt in proportion to the absence so far: whoever comes back is found at most so
#: much later. Doubling waits would add up to the whole absence again.
_SHARE: Final = 0.1
#: Not the module's generator: that one belongs to the EST that runs now and decides its bits. The
#: jitter of tenacity's own waits draws from it.
_generator = random.Random()


def backoff_seconds(away_seconds: float) -> float:
    """Before the next attempt to reach whoever has been away so long; with jitter, at most `SECONDS_MAX`."""
    seconds = min(SECONDS_MAX, max(_SECONDS_MIN, away_seconds * _SHARE))
    return seconds * _generator.uniform(0.5, 1.0)


def wait_backoff(state: tenacity.RetryCallState) -> float:
    """The same as a `wait` of tenacity: since the first attempt began."""
    return backoff_seconds(state.seconds_since_start or 0.0)
