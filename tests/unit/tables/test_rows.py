"""Rows of tables: their index, their initial values, their memory."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastane.tables import growing, row_index
from elastane.tables.growing import GrowingArray
from elastane.tables.initial import initial_rows
from elastane.tables.layout import slots_of
from elastane.tables.row_index import RowIndex
from elastane.tables.slot_weights import SlotWeights
from elastane_slots.initial_rows import Distribution, InitialRows
from elastane_slots.placement import ID_MAX, RowPlacement
from unit.tables.models import ids_of, small


@settings(max_examples=60, deadline=None)
@given(
    ids=st.lists(st.integers(0, ID_MAX), min_size=1, max_size=6),
    width=st.integers(1, 40),
    distribution=st.sampled_from(["uniform", "normal", "zeros"]),
    seed=st.integers(0, 2**64 - 1),
)
def test_initial_rows_are_those_made_one_by_one(
    ids: list[int], width: int, distribution: Distribution, seed: int
) -> None:
    initial = InitialRows("users", distribution, 0.05, seed)
    rows = initial_rows(initial, np.array(ids), width)
    assert rows.tolist() == [initial.row(row, width) for row in ids]


def test_initial_rows_are_made_in_parts_that_do_not_show() -> None:
    initial = InitialRows("users", "normal", 0.05, 1)
    ids = np.arange(5000)
    together = initial_rows(initial, ids, 16)
    assert together[4321].tolist() == initial.row(4321, 16)
    assert (initial_rows(initial, ids[::-1].copy(), 16) == together[::-1]).all()


@settings(max_examples=60, deadline=None)
@given(ids=st.lists(st.integers(0, ID_MAX), min_size=1, max_size=20), slots=st.integers(1, 4096))
def test_slots_of_arrays_are_those_of_rows(ids: list[int], slots: int) -> None:
    placement = RowPlacement("users", slots)
    assert slots_of(placement, np.array(ids)).tolist() == [placement.slot(row) for row in ids]


@pytest.mark.parametrize("part", [7, 1000, 65_536])
def test_an_index_finds_what_a_dictionary_finds(part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_index, "_PART", part)
    generator = np.random.default_rng(3)
    index, known = RowIndex(), dict[int, int]()
    for _ in range(200):
        ids = np.unique(generator.integers(0, 40_000, generator.integers(1, 900)))
        if generator.random() < 0.02:
            ids = np.unique(np.append(ids, [ID_MAX, 0]))
        assert index.find(ids).tolist() == [known.get(row, -1) for row in ids.tolist()]
        new = ids[index.find(ids) < 0]
        places = generator.integers(0, 2**31, len(new))
        index.add(new, places)
        known.update(zip(new.tolist(), places.tolist(), strict=True))
        shuffled = generator.permutation(ids)
        assert index.find(shuffled).tolist() == [known[row] for row in shuffled.tolist()]
    ids, places = index.entries()
    assert dict(zip(ids.tolist(), places.tolist(), strict=True)) == known and ids.tolist() == sorted(known)
    assert index.bytes == 12 * len(known) == 12 * len(index)


def test_an_index_grows_without_a_copy_of_itself() -> None:
    index, generator = RowIndex(), np.random.default_rng(4)
    tracemalloc.start()
    try:
        while len(index) < 600_000:
            ids = np.unique(generator.integers(0, ID_MAX, 20_000))
            new = ids[index.find(ids) < 0]
            index.add(new, np.arange(len(index), len(index) + len(new)))
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 3 * 2**20 < index.bytes / 2  # numpy's arrays: mappings do not count


def test_without_memory_an_index_has_the_same_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    index = RowIndex()
    ids = np.arange(0, 100_000, 2)
    index.add(ids, ids // 2)

    def extend(array: GrowingArray, count: int) -> None:
        if array.dtype == np.int32 and count:
            raise MemoryError
        all_of(array, count)

    all_of = GrowingArray.extend
    with monkeypatch.context() as patched:
        patched.setattr(GrowingArray, "extend", extend)
        for _ in range(2):
            with pytest.raises(MemoryError):
                index.add(ids + 1, ids // 2 + len(ids))
            assert len(index) == len(ids) and index.find(ids).tolist() == list(range(len(ids)))
    index.add(ids + 1, ids // 2 + len(ids))
    assert index.find(ids + 1).tolist() == list(range(len(ids), 2 * len(ids)))
    assert (index.find(ids) == np.arange(len(ids))).all()


def test_of_many_arrays_only_larger_ones_are_mappings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growing, "_mapped", growing.WeakSet())
    monkeypatch.setattr(growing, "MAPPINGS_MANY", 2)
    arrays = [GrowingArray(np.uint8) for _ in range(3)]
    for array in arrays:
        array.extend(growing.MAPPED_BYTES)
        array.array[:] = 7
    assert len(growing._mapped) == 2
    for array in arrays:
        array.extend(10)
        assert array.array.tolist() == [7] * growing.MAPPED_BYTES + [0] * 10
    del arrays[0], array
    assert len(growing._mapped) == 1
    arrays[1].extend(growing.MAPPED_BYTES)
    assert len(growing._mapped) == 2


@pytest.mark.parametrize("width", [0, 3])
def test_an_array_keeps_its_entries_as_it_grows(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growing, "MAPPED_BYTES", 10_000)
    array = GrowingArray(np.float32, width)
    expected = np.zeros((0, width) if width else 0, np.float32)
    for count in (1, 5, 1000, 3, 2500, 10_000, 1):
        array.extend(count)
        assert not array.array[-count:].any()
        more = np.random.default_rng(count).random((count, width) if width else count, np.float32)
        array.array[-count:] = more
        expected = np.concatenate([expected, more])
        assert (array.array == expected).all() and array.bytes == expected.nbytes


def test_an_array_that_is_looked_at_does_not_move() -> None:
    array = GrowingArray(np.int64)
    array.extend(growing.MAPPED_BYTES // 8)
    kept = array.array
    with pytest.raises(BufferError):
        array.extend(10**6)
    assert array.length == len(kept)
    del kept
    array.extend(10**6)


def test_without_memory_nothing_has_changed() -> None:
    array = GrowingArray(np.int64)
    array.extend(10)
    array.array[:] = 7
    for count in (2**50, 2**58):
        with pytest.raises(MemoryError):
            array.extend(count)
    assert array.array.tolist() == [7] * 10
    array.extend(growing.MAPPED_BYTES)
    with pytest.raises(MemoryError):
        array.extend(2**50)
    assert array.array[:10].tolist() == [7] * 10


def test_pulls_bear_no_rows_and_give_what_they_are_born_with() -> None:
    spec = small()
    weights = SlotWeights(spec, 1)
    ids = ids_of(spec, 0, 1, 5)[::-1].copy()
    out = bytearray(5 * 16 * 4)
    weights.pull_rows(0, np.concatenate([ids[:4], ids[:1]]), memoryview(out))
    assert weights.bytes.rows == 0
    initial = spec.initial_rows(0)
    expected = [initial.row(int(row), 16) for row in [*ids[:4], ids[0]]]
    assert np.frombuffer(out, np.float32).reshape(5, 16).tolist() == expected


def test_the_padding_row_is_zero() -> None:
    spec = small()
    slot = RowPlacement("items", spec.slots).slot(5)
    out = bytearray(b"x" * 12)
    SlotWeights(spec, slot).pull_rows(1, np.array([5]), memoryview(out))
    assert bytes(out) == bytes(12)


@pytest.mark.slow
def test_ten_million_rows_take_at_most_1_3_of_their_values() -> None:
    script = """
        import numpy as np, torch
        from elastane.tables.layout import PushPart, RowGradients, slots_of
        from elastane.tables.slot_weights import SlotWeights
        from elastane.tables.spec import ModelSpec, RowTable

        def resident():
            return int(open("/proc/self/statm").read().split()[1]) * 4096

        count, width = 10_000_000, 16
        users = RowTable("users", 2**40, width, rule="rowwise_adagrad", distribution="uniform")
        spec = ModelSpec(tables=(users,))
        slots = [SlotWeights(spec, slot) for slot in range(spec.slots)]
        generator = np.random.default_rng(0)
        rates = [[0.1, 0.0, 1e-10]]
        before, made = 0, 0
        while made < count:
            ids = np.unique(generator.integers(0, 2**40, min(100_000, count - made)))
            where = slots_of(spec.layout(0).tables[0].placement, ids)
            for slot, weights in enumerate(slots):
                own = ids[where == slot]
                part = PushPart({}, (RowGradients(0, own, torch.ones(len(own), width)),))
                weights.apply(weights.prepare(part, rates), rates)
            made = sum(weights.bytes.rows for weights in slots)
            before = before or resident() - sum(weights.bytes.total for weights in slots)  # what torch needs
        raw = made * width * 4
        del ids, where, own, part
        print((resident() - before) / raw, sum(weights.bytes.total for weights in slots) / raw)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=True
    )
    resident, counted = map(float, done.stdout.split())
    assert counted <= resident <= 1.3, done.stdout
