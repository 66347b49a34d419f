"""Staleness of pushes, counted and told."""

from __future__ import annotations

import pytest

from elastane_slots.staleness_counts import BOUNDS, COUNTS, hot, place_of, quantiles


def test_every_staleness_has_the_count_whose_bounds_it_is_in() -> None:
    assert len(BOUNDS) == COUNTS - 1
    for staleness in range(BOUNDS[-1] + 3):
        place = place_of(staleness)
        assert place == 0 or staleness > BOUNDS[place - 1]
        assert place == COUNTS - 1 or staleness <= BOUNDS[place]


@pytest.mark.parametrize(
    ("counts", "told"),
    [
        ([], ("-", "-", "-")),
        ([0] * 16, ("-", "-", "-")),
        ([5], ("0", "0", "0")),
        ([50, 40, 9, 1], ("0", "2", "3-4")),
        ([0, 0, 0, 0, 100], ("5-8",) * 3),
        ([98, 0, 0, 0, 0, 2], ("0", "9-16", "9-16")),
        ([1] + [0] * 14 + [1], ("0", "8193+", "8193+")),
    ],
)
def test_staleness_is_told_as_what_a_count_stands_for(counts: list[int], told: tuple[str, str, str]) -> None:
    assert quantiles(counts) == told


@pytest.mark.parametrize(
    ("sizes", "count"), [([], 0), ([0, 0], 0), ([7], 0), ([1, 1, 1, 9], 1), ([1, 3], 0), ([0, 0, 8, 8], 0)]
)
def test_a_slot_with_more_than_twice_the_mean_is_hot(sizes: list[int], count: int) -> None:
    assert hot(sizes, sizes) == count
    assert hot(sizes, sizes[:3]) == 0 or count == 0
