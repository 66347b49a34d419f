"""Initial rows: the same bits wherever they are made, one by one or as arrays."""

from __future__ import annotations

import struct
from statistics import fmean, pstdev

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastane_shards.errors import InvalidRequest, InvalidSettings
from elastane_slots.initial_rows import WIDTH_MAX, Distribution, InitialRows
from elastane_slots.mixing import GOLDEN
from elastane_slots.placement import ID_MAX


def test_the_values_are_those_of_all_releases_so_far() -> None:
    uniform = InitialRows("users", "uniform", 0.05, seed=9).row(12345, 3)
    normal = InitialRows("users", "normal", 0.05, seed=9).row(12345, 3)
    assert [value.hex() for value in uniform] == [
        "0x1.1b36160000000p-5",
        "-0x1.57d5be0000000p-5",
        "0x1.172c0a0000000p-6",
    ]
    assert [value.hex() for value in normal] == [
        "0x1.1e8c000000000p-4",
        "0x1.b593340000000p-7",
        "-0x1.466b340000000p-5",
    ]


def mixed(value: np.ndarray) -> np.ndarray:
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


def drawn(key: np.ndarray, number: np.ndarray) -> np.ndarray:
    return mixed(key + (number + np.uint64(1)) * np.uint64(GOLDEN))


def array(initial: InitialRows, ids: list[int], width: int) -> np.ndarray:
    """The rows at once, with products of float32."""
    keys = drawn(np.array([initial.key], np.uint64), np.array(ids, np.uint64))[:, None]
    elements = np.arange(width, dtype=np.uint64)[None, :]
    if initial.distribution == "uniform":
        integers = 2 * (drawn(keys, elements) >> np.uint64(40)).astype(np.int64) + 1 - 2**24
    else:
        words = [drawn(keys, np.uint64(3) * elements + np.uint64(word)) for word in range(3)]
        parts = [(w >> np.uint64(shift)) & np.uint64(0xFFFF) for w in words for shift in (0, 16, 32, 48)]
        integers = 2 * sum(part.astype(np.int64) for part in parts) - 12 * 65535
    return integers.astype(np.float32) * np.float32(initial.unit)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(-(2**63), 2**64),
    ids=st.lists(st.integers(0, ID_MAX), min_size=1, max_size=5),
    scale=st.floats(2.0**-30, 2.0**30),
    distribution=st.sampled_from(["uniform", "normal"]),
)
def test_arrays_have_the_same_bits(
    seed: int, ids: list[int], scale: float, distribution: Distribution
) -> None:
    initial = InitialRows("items", distribution, scale, seed)
    one_by_one = [initial.row(row, 7) for row in ids]
    assert array(initial, ids, 7).tobytes() == np.array(one_by_one, np.float32).tobytes()


@pytest.mark.parametrize(
    ("distribution", "deviation", "bound"), [("uniform", 1 / 3**0.5, 1.0), ("normal", 1.0, 6.0)]
)
def test_values_have_their_distribution(distribution: Distribution, deviation: float, bound: float) -> None:
    initial = InitialRows("t", distribution, 1.0, seed=1)
    values = [value for row in range(2000) for value in initial.row(row, 8)]
    assert abs(fmean(values)) < 4 * deviation / len(values) ** 0.5
    assert abs(pstdev(values) / deviation - 1) < 0.03
    assert max(map(abs, values)) < bound
    columns = np.array(values).reshape(-1, 8)
    assert np.abs(np.corrcoef(columns.T) - np.eye(8)).max() < 0.1  # neighbours within a row
    assert abs(np.corrcoef(columns[:-1, 0], columns[1:, 0])[0, 1]) < 0.1  # and from row to row


def test_values_are_float32_and_never_zero_in_a_uniform_row() -> None:
    values = InitialRows("t", "uniform", 0.1).row(1, 500)
    assert all(struct.unpack("<f", struct.pack("<f", value))[0] == value != 0 for value in values)


def test_seed_table_id_and_column_all_count() -> None:
    rows = {
        tuple(InitialRows(table, "normal", 1.0, seed).row(row, 2))
        for table in ("a", "b")
        for seed in (0, 1, 2**63)
        for row in (0, 1, ID_MAX)
    }
    assert len(rows) == 18
    assert InitialRows("a", seed=-1).key == InitialRows("a", seed=2**64 - 1).key
    assert len(set(InitialRows("a").row(0, 100))) == 100


def test_a_wider_row_begins_like_a_narrow_one_and_zeros_are_zeros() -> None:
    assert InitialRows("a").row(5, 9)[:4] == InitialRows("a").row(5, 4)
    assert InitialRows("a", "zeros").row(5, 3) == [0.0, 0.0, 0.0]
    assert InitialRows("a").row(5, 0) == []


@pytest.mark.parametrize(("row", "width"), [(-1, 2), (2**63, 2), (0, -1), (0, WIDTH_MAX + 1)])
def test_rows_that_no_table_has_are_refused(row: int, width: int) -> None:
    with pytest.raises(InvalidRequest):
        InitialRows("a").row(row, width)


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan"), float("inf"), 1e300, 1e-300])
def test_impossible_scales_are_refused(scale: float) -> None:
    with pytest.raises(InvalidSettings):
        InitialRows("a", "normal", scale).check()


def test_an_unknown_distribution_is_refused() -> None:
    with pytest.raises(InvalidSettings):
        InitialRows("a", "cauchy").check()  # type: ignore[arg-type]
    InitialRows("a", "zeros").check()
