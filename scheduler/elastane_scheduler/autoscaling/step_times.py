"""Step times of a ring: which of them count, and whether they have become longer. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

KEPT_MIN = 3
"""At least this many steps are kept."""
LONGER_FRACTION = 0.2
"""A first step that is longer than those after it by more than this: the ring still settles."""


def settled(times: Sequence[float]) -> Sequence[float]:
    """Return the times without the first ones, which are longer because the ring still settles.

    times: in seconds, of a ring's steps from its beginning on.
    """
    first = 0
    while len(times) - first > KEPT_MIN:
        if times[first] <= (1 + LONGER_FRACTION) * statistics.median(times[first + 1 :]):
            break
        first += 1
    return times[first:]


def growth(times: Sequence[float]) -> float:
    """Return the ratio of the newer half of the times to the older half, by their medians."""
    half = len(times) // 2
    older = statistics.median(times[:half]) if half else 0.0
    return statistics.median(times[half:]) / older if older > 0 else 1.0
