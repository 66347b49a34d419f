"""Histogram of the staleness of pushes: buckets of 0, 1, 2, 3-4, 5-8, ... tasks (doubling). Pure.

Parameter servers count; commands, metrics and pages show it. The last bucket is unbounded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

COUNTS: Final = 16
BOUNDS: Final = (0, *(2**power for power in range(COUNTS - 2)))
"""Highest staleness of each count but the last."""
HOT_TIMES: Final = 2.0
"""A slot is hot if it has more than so many times the bytes of the mean of all slots."""


def place_of(staleness: int) -> int:
    """Return the bucket of a push."""
    place = staleness if staleness < 2 else (staleness - 1).bit_length() + 1
    return min(place, COUNTS - 1)


def quantiles(counts: Sequence[int]) -> tuple[str, str, str]:
    """Return median, 99th percentile and maximum; "-" without a push.

    A bucket with several values is shown as their range.
    """
    total = sum(counts)
    if not total:
        return "-", "-", "-"
    last = max(place for place, count in enumerate(counts) if count)
    return _at(counts, 0.5 * total), _at(counts, 0.99 * total), _named(last)


def hot(sizes: Sequence[int], some: Sequence[int]) -> int:
    """Return how many of `some` slots are hot. sizes: of all slots, in bytes."""
    return sum(size * len(sizes) > HOT_TIMES * sum(sizes) for size in some)


def _at(counts: Sequence[int], rank: float) -> str:
    seen = 0
    for place, count in enumerate(counts):
        seen += count
        if seen >= rank:
            return _named(place)
    raise AssertionError("all are seen")


def _named(place: int) -> str:
    """Return the values of one bucket as text."""
    if place <= 2:
        return str(place)
    low = BOUNDS[place - 1] + 1
    return f"{low}+" if place >= len(BOUNDS) else f"{low}-{BOUNDS[place]}"
