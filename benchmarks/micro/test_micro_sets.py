"""Times interval sets and permutations, with which a dataset of 10^9 samples takes kilobytes."""

from __future__ import annotations

import random
from typing import Any

import pytest

from elastane_shards.intervals import IntervalSet
from elastane_shards.permutation import feistel_key, permuted

pytest.importorskip("pytest_benchmark", reason="the extra `bench` is not installed")

SIZE = 10**9
NUMBERS = 100_000


def shuffled(seed: int) -> list[int]:
    return random.Random(seed).sample(range(NUMBERS), NUMBERS)


def added(numbers: list[int]) -> IntervalSet:
    done = IntervalSet()
    for number in numbers:
        done.add(number, number + 1)
    return done


def test_intervals_added_in_order(benchmark: Any) -> None:
    done = benchmark.pedantic(added, (list(range(NUMBERS)),), rounds=5)
    assert (done.count, done.runs) == (NUMBERS, 1)


def test_intervals_added_out_of_order_until_they_merge(benchmark: Any) -> None:
    done = benchmark.pedantic(added, (shuffled(1),), rounds=5)
    assert (done.count, done.runs) == (NUMBERS, 1)


def test_intervals_apart(benchmark: Any) -> None:
    """Add every second number in random order, so that each number is a run: the worst case."""
    done = benchmark.pedantic(added, ([2 * number for number in shuffled(2)],), rounds=5)
    assert (done.count, done.runs) == (NUMBERS, NUMBERS)


def test_membership(benchmark: Any) -> None:
    done = added([2 * number for number in range(NUMBERS)])
    asked = shuffled(3)

    def look() -> int:
        return sum(number in done for number in asked)

    assert benchmark.pedantic(look, rounds=5) == NUMBERS // 2


def test_feistel_single_index(benchmark: Any) -> None:
    key = feistel_key(SIZE, 1, 0)
    position = benchmark.pedantic(permuted, (12345, key), rounds=200, iterations=100)
    assert 0 <= position < SIZE
