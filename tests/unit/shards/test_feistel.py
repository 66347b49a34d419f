"""The Feistel permutation: a bijection, the same in numpy and in pure Python, and well mixed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from elastane_shards import InvalidRequest, InvalidSettings, InvalidSource, feistel_key, permuted, unpermuted
from elastane_shards.feistel import BLOCK_POSITIONS, feistel, feistel_inverse

FIXED_10 = [4, 1, 6, 3, 5, 9, 7, 2, 0, 8]
FIXED_BILLION = [868648365, 314128489, 447897307]
SEEDS = st.integers(-(2**63), 2**64)


@settings(max_examples=150)
@given(st.integers(1, 3000), SEEDS, st.integers(0, 2**40), st.integers(3, 8))
@example(1, 0, 0, 6)
@example(2, 0, 0, 6)
@example(2**11, 0, 0, 6)
@example(2**11 + 1, 0, 0, 6)
def test_is_a_bijection_with_its_inverse(size: int, seed: int, epoch: int, rounds: int) -> None:
    there = feistel(range(size), size, seed, epoch, rounds)
    assert there.dtype == np.int64
    assert sorted(there.tolist()) == list(range(size))
    assert feistel_inverse(there, size, seed, epoch, rounds).tolist() == list(range(size))


@pytest.mark.parametrize("size", [BLOCK_POSITIONS, 3 * BLOCK_POSITIONS + 7])
def test_is_a_bijection_over_several_blocks(size: int) -> None:
    there = feistel(np.arange(size), size, 7, 1)
    assert len(np.unique(there)) == size
    assert (there.min(), there.max()) == (0, size - 1)
    assert (feistel_inverse(there, size, 7, 1) == np.arange(size)).all()


@given(st.integers(1, 2**62), SEEDS, st.integers(0, 9), st.data())
def test_numpy_and_pure_python_agree(size: int, seed: int, epoch: int, data: st.DataObject) -> None:
    positions = data.draw(st.lists(st.integers(0, size - 1), max_size=8))
    key = feistel_key(size, seed, epoch)
    there = [permuted(position, key) for position in positions]
    assert feistel(np.array(positions, dtype=np.int64), size, seed, epoch).tolist() == there
    assert all(0 <= place < size for place in there)
    assert [unpermuted(place, key) for place in there] == positions


def test_pieces_equal_the_whole() -> None:
    whole = feistel(range(1000), 1000, 3, 0)
    pieces = [feistel(range(start, min(start + 128, 1000)), 1000, 3, 0) for start in range(0, 1000, 128)]
    assert np.concatenate(pieces).tolist() == whole.tolist()
    assert feistel(np.arange(0, 1000, 7, dtype=np.uint32), 1000, 3, 0).tolist() == whole[::7].tolist()
    assert feistel(range(0), 1000, 3, 0).tolist() == []


def test_the_permutation_of_a_key_never_changes() -> None:
    """Jobs resume with what they stored: a change of these numbers breaks every shuffled dataset."""
    assert feistel(range(10), 10, 0, 0).tolist() == FIXED_10
    assert feistel(range(3), 10**9, 42, 5).tolist() == FIXED_BILLION


def test_seed_and_epoch_both_count_and_do_not_cancel() -> None:
    orders = {tuple(feistel(range(50), 50, seed, epoch).tolist()) for seed in range(8) for epoch in range(8)}
    assert len(orders) == 64


@pytest.mark.parametrize("size", [1000, 4096, 100_003])
def test_neighbours_are_spread_evenly(size: int) -> None:
    """Chi-square over 16 x 16 cells of (position, place), averaged over epochs; 225 degrees of freedom."""
    statistics = []
    for epoch in range(20):
        there = feistel(range(size), size, 11, epoch)
        cells, _, _ = np.histogram2d(np.arange(size), there, bins=16)
        expected = size / 256
        statistics.append(((cells - expected) ** 2 / expected).sum())
    assert 190 < np.mean(statistics) < 265


def test_what_is_outside_is_refused() -> None:
    for positions in (range(5, 11), np.array([-1]), np.array([10])):
        with pytest.raises(InvalidRequest):
            feistel(positions, 10, 0, 0)
    with pytest.raises(InvalidRequest):
        permuted(10, feistel_key(10, 0, 0))
    with pytest.raises(InvalidSource):
        feistel_key(0, 0, 0)
    with pytest.raises(InvalidSettings):
        feistel_key(5, 0, 0, rounds=2)
