"""Ranges of ESTs: sum, contiguity, capacities, and the fewest ESTs that move, against brute force."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

import pytest

from elastane_scheduler.errors import InvalidSettings
from elastane_scheduler.plan import Shape
from elastane_scheduler.shares import Range, ranges, shares


def moved(before: Sequence[Range | None], after: Sequence[Range]) -> int:
    """How many ESTs have another seat than before."""
    total = sum(end - first for first, end in after)
    held = [*before, *[None] * (len(after) - len(before))]
    return total - sum(
        max(0, min(end, old[1]) - max(first, old[0]))
        for (first, end), old in zip(after, held, strict=True)
        if old
    )


def random_ranges(rng: random.Random, ests: int, seats: int) -> list[Range | None]:
    cuts = sorted(rng.randint(0, ests) for _ in range(seats - 1))
    bounds = [0, *cuts, ests]
    return [(a, b) if rng.random() < 0.8 else None for a, b in itertools.pairwise(bounds)]


def test_the_fewest_ests_move() -> None:
    rng = random.Random(3)
    for _ in range(400):
        ests, seats = rng.randint(1, 7), rng.randint(1, 4)
        capacities = [rng.randint(0, ests) for _ in range(seats)]
        before = random_ranges(rng, ests, rng.randint(1, seats))
        ways = [ways for ways in itertools.product(*(range(c + 1) for c in capacities)) if sum(ways) == ests]
        if not ways:
            with pytest.raises(InvalidSettings):
                shares(ests, capacities, before)
            continue
        found = shares(ests, capacities, before)
        assert tuple(found) in ways
        assert moved(before, ranges(found)) == min(moved(before, ranges(list(way))) for way in ways)


def test_shares_reach_the_step_time_of_the_plan() -> None:
    rng = random.Random(4)
    for _ in range(500):
        ests = rng.randint(1, 40)
        seconds = tuple(rng.uniform(0.1, 1) for _ in range(3))
        shape = Shape(ests, seconds)
        devices = tuple(rng.randint(0, 5) for _ in range(3))
        level = shape.level(devices)
        if level is None:
            continue
        step, capacities = shape.levels[level]
        seats = [i for i, n in enumerate(devices) for _ in range(n)]
        found = shares(ests, [capacities[i] for i in seats])
        assert sum(found) == ests
        assert max(a * seconds[i] for a, i in zip(found, seats, strict=True)) <= step * (1 + 1e-9)
        made = ranges(found)
        assert made[0][0] == 0 and made[-1][1] == ests
        assert all(one[1] == other[0] for one, other in itertools.pairwise(made))


def test_a_slow_neighbour_gets_fewer() -> None:
    # Four workers, 16 ESTs, one of them twice as slow: 5 5 4 2 in some order of the equal ones.
    shape = Shape(16, (1.0, 2.0))
    level = shape.level((3, 1))
    assert level is not None and shape.levels[level][0] == 5.0
    before: list[Range | None] = [(0, 4), (4, 8), (8, 12), (12, 16)]
    found = shares(16, [5, 5, 5, 2], before)
    assert found[3] <= 2 and sum(found) == 16


def test_shares_without_history_are_even() -> None:
    assert shares(16, [16, 16, 16]) == [6, 5, 5]
    assert shares(7, [1, 9, 9]) == [1, 3, 3]
