"""Slots of blocks and rows: fixed for ever, evenly filled, the same for arrays."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from elastane_shards.errors import InvalidRequest, InvalidSettings
from elastane_slots.mixing import GOLDEN, below, drawn, mixed, text_key
from elastane_slots.placement import BLOCK_BYTES, ID_MAX, SLOTS, RowPlacement, blocks, slot_of_block


def test_the_hash_is_that_of_all_jobs_so_far() -> None:
    """Another one would put the rows of a stored model into other slots."""
    assert mixed(0) == 0
    assert drawn(0, 0) == 0xE220A8397B1DCDAF  # SplitMix64's first output for seed 0
    assert drawn(0, 1) == 0x6E789E6AA1B965F4
    assert text_key("row", "users") == 0x3EBFF76D03F5EEF1
    assert [RowPlacement("users", SLOTS).slot(row) for row in (0, 1, 2, 10**6, ID_MAX)] == [
        19,
        38,
        59,
        58,
        23,
    ]
    assert [slot_of_block("head.weight", number, SLOTS) for number in range(5)] == [32, 12, 57, 30, 36]


def test_keys_of_other_words_differ() -> None:
    keys = {
        text_key(*words) for words in (("a", "bc"), ("ab", "c"), ("a", "b", "c"), ("abc",), ("a", "bc", ""))
    }
    assert len(keys) == 5


def test_arrays_of_ids_have_the_same_slots() -> None:
    placement = RowPlacement("items", SLOTS)
    ids = np.random.default_rng(3).integers(0, 2**63, 2000, dtype=np.uint64)
    with np.errstate(over="ignore"):
        value = np.uint64(placement.key) + (ids + np.uint64(1)) * np.uint64(GOLDEN)
        value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        value ^= value >> np.uint64(31)
        slots = (value >> np.uint64(32)) * np.uint64(SLOTS) >> np.uint64(32)
    assert slots.tolist() == [placement.slot(int(row)) for row in ids]


@pytest.mark.parametrize("table", ["users", "items"])
@pytest.mark.parametrize("step", [1, 64, 2**20], ids=str)
def test_rows_fill_all_slots_alike_whatever_their_ids(table: str, step: int) -> None:
    placement = RowPlacement(table, SLOTS)
    counts = Counter(placement.slot(number * step) for number in range(64_000))
    chi_squared = sum((counts[slot] - 1000) ** 2 / 1000 for slot in range(SLOTS))
    assert chi_squared < 120  # 63 degrees of freedom: one in a hundred thousand is above


def test_two_tables_do_not_share_their_order() -> None:
    users, items = RowPlacement("users", SLOTS), RowPlacement("items", SLOTS)
    assert 5 < sum(users.slot(row) == items.slot(row) for row in range(1000)) < 40


@pytest.mark.parametrize(
    ("elements", "element_bytes"), [(1, 4), (262_144, 4), (262_145, 4), (1_000_003, 2), (10**7, 8)], ids=str
)
def test_blocks_cover_a_tensor_and_begin_at_whole_registers(elements: int, element_bytes: int) -> None:
    cut = list(blocks("w", elements, element_bytes, SLOTS))
    assert [block.start for block in cut[1:]] == [block.end for block in cut[:-1]]
    assert cut[0].start == 0 and cut[-1].end == elements
    assert max(block.end - block.start for block in cut) * element_bytes <= BLOCK_BYTES
    assert all(block.start % 64 == 0 for block in cut)
    assert [block.slot for block in cut] == [slot_of_block("w", number, SLOTS) for number in range(len(cut))]


def test_a_tensor_without_elements_has_no_blocks() -> None:
    assert list(blocks("w", 0, 4, SLOTS)) == []


def test_one_slot_and_the_most_slots() -> None:
    assert RowPlacement("t", 1).slot(5) == 0
    assert {RowPlacement("t", 4096).slot(row) for row in range(60_000)} == set(range(4096))
    assert below(2**64 - 1, 4096) == 4095


@pytest.mark.parametrize("row", [-1, 2**63, 2**70])
def test_ids_outside_of_every_table_are_refused(row: int) -> None:
    with pytest.raises(InvalidRequest):
        RowPlacement("t", SLOTS).slot(row)


@pytest.mark.parametrize("slots", [0, -1, 4097])
def test_impossible_numbers_of_slots_are_refused(slots: int) -> None:
    with pytest.raises(InvalidSettings):
        RowPlacement("t", slots)
    with pytest.raises(InvalidSettings):
        list(blocks("w", 1, 4, slots))


@pytest.mark.parametrize(("elements", "element_bytes"), [(-1, 4), (1, 0), (1, 3), (1, -4)])
def test_impossible_tensors_are_refused(elements: int, element_bytes: int) -> None:
    with pytest.raises(InvalidSettings):
        list(blocks("w", elements, element_bytes, SLOTS))
