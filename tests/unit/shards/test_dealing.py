"""Dealing a script's own batches out to ranks: Hugging Face accelerate's rule, and its edges."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastane_shards.dealing import deal_batches
from elastane_shards.errors import InvalidSettings


def cut(samples: int, size: int) -> list[list[int]]:
    return [list(range(start, min(start + size, samples))) for start in range(0, samples, size)]


# By hand, from the rule of BatchSamplerShard (split_batches=False, even_batches=True).
TABLE: list[tuple[int, int, int, bool, list[list[int]]]] = [
    (8, 2, 2, False, [[0, 1], [2, 3], [4, 5], [6, 7]]),
    (7, 2, 2, False, [[0, 1], [2, 3], [4, 5], [6, 0]]),
    (6, 2, 2, False, [[0, 1], [2, 3], [4, 5], [0, 1]]),
    (5, 2, 2, False, [[0, 1], [2, 3], [4, 0], [1, 2]]),
    (3, 4, 3, False, [[0, 1, 2, 0], [1, 2, 0, 1], [2, 0, 1, 2]]),
    (7, 2, 2, True, [[0, 1], [2, 3]]),
    (8, 2, 3, True, [[0, 1], [2, 3], [4, 5]]),
    (3, 2, 2, True, []),
]


@pytest.mark.parametrize(("samples", "size", "ranks", "drop_last", "expected"), TABLE)
def test_table(samples: int, size: int, ranks: int, drop_last: bool, expected: Any) -> None:
    assert list(deal_batches(cut(samples, size), ranks, batch_size=size, drop_last=drop_last)) == expected


def test_batches_of_different_sizes_stay_whole() -> None:
    given_batches = [[0], [1, 2], [3], [4, 5]]
    dealt = list(deal_batches(given_batches, 3, batch_size=2, drop_last=False))
    assert dealt == [[0], [1, 2], [3], [4, 5], [0], [1, 2]]
    assert list(deal_batches(given_batches, 3, batch_size=None, drop_last=True)) == [[0], [1, 2], [3]]


@given(
    st.integers(0, 60), st.integers(1, 7), st.integers(1, 6), st.booleans(), st.sampled_from(["size", "none"])
)
def test_every_rank_gets_as_many_and_nothing_is_lost(
    samples: int, size: int, ranks: int, drop_last: bool, declared: str
) -> None:
    batches = cut(samples, size)
    batch_size = size if declared == "size" else None
    dealt = list(deal_batches(batches, ranks, batch_size=batch_size, drop_last=drop_last))
    assert len(dealt) % ranks == 0
    flat = [sample for batch in dealt for sample in batch]
    if drop_last:
        assert flat == list(range(len(flat)))
        assert samples - len(flat) < size * ranks
    else:
        assert set(flat) == set(range(samples)) and flat[:samples] == list(range(samples))
        assert len(dealt) - len(batches) < ranks
        if batch_size is not None and samples:
            assert all(len(batch) == size for batch in dealt)
            if samples >= ranks * size:
                assert max(Counter(flat).values()) <= 2
    assert batches == cut(samples, size)


def test_no_replicas() -> None:
    with pytest.raises(InvalidSettings):
        deal_batches([[1]], 0, batch_size=1, drop_last=False)
