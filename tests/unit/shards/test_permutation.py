"""The Feistel permutation: a bijection, the same for ever, and well mixed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from elastane_shards.errors import InvalidRequest, InvalidSource
from elastane_shards.permutation import feistel_key, permuted

FIXED_10 = [4, 1, 6, 3, 5, 9, 7, 2, 0, 8]
FIXED_BILLION = [868648365, 314128489, 447897307]
SEEDS = st.integers(-(2**63), 2**64)


def images(positions: range, size: int, seed: int, epoch: int) -> list[int]:
    key = feistel_key(size, seed, epoch)
    return [permuted(position, key) for position in positions]


@settings(max_examples=150)
@given(st.integers(1, 3000), SEEDS, st.integers(0, 2**40))
@example(1, 0, 0)
@example(2, 0, 0)
@example(2**11, 0, 0)
@example(2**11 + 1, 0, 0)
def test_is_a_bijection(size: int, seed: int, epoch: int) -> None:
    assert sorted(images(range(size), size, seed, epoch)) == list(range(size))


@given(st.integers(1, 2**62), SEEDS, st.integers(0, 9), st.data())
def test_images_of_a_large_domain_are_in_it_and_differ(
    size: int, seed: int, epoch: int, data: st.DataObject
) -> None:
    positions = data.draw(st.lists(st.integers(0, size - 1), max_size=8, unique=True))
    key = feistel_key(size, seed, epoch)
    there = {permuted(position, key) for position in positions}
    assert len(there) == len(positions)
    assert all(0 <= place < size for place in there)


def test_the_permutation_of_a_key_never_changes() -> None:
    """Jobs resume with what they stored: a change of these numbers breaks every shuffled dataset."""
    assert images(range(10), 10, 0, 0) == FIXED_10
    assert images(range(3), 10**9, 42, 5) == FIXED_BILLION


def test_seed_and_epoch_both_count_and_do_not_cancel() -> None:
    orders = {tuple(images(range(50), 50, seed, epoch)) for seed in range(8) for epoch in range(8)}
    assert len(orders) == 64


@pytest.mark.parametrize("size", [1000, 4096, 20_011])
def test_neighbours_are_spread_evenly(size: int) -> None:
    """Chi-square over 16 x 16 cells of (position, place), averaged over epochs; 225 degrees of freedom."""
    statistics = []
    for epoch in range(20):
        there = images(range(size), size, 11, epoch)
        cells, _, _ = np.histogram2d(np.arange(size), there, bins=16)
        expected = size / 256
        statistics.append(((cells - expected) ** 2 / expected).sum())
    assert 190 < np.mean(statistics) < 265


def test_what_is_outside_is_refused() -> None:
    for position in (-1, 10):
        with pytest.raises(InvalidRequest):
            permuted(position, feistel_key(10, 0, 0))
    with pytest.raises(InvalidSource):
        feistel_key(0, 0, 0)
