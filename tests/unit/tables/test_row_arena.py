"""Rows of all slots of a process in one arena: the same bits as slot by slot, whatever slots come and go."""

from __future__ import annotations

import gc
import mmap
from pathlib import Path

import numpy as np
import pytest
import torch

from elastane.tables import growing, place_cache, row_arena
from elastane.tables.by_slot import TableGradients, TaskGradients, bounds_of
from elastane.tables.growing import GrowingArray
from elastane.tables.layout import Ids, slots_of
from elastane.tables.place_cache import PlaceCache
from elastane.tables.row_arena import RowArena, RowArenas
from elastane.tables.slot_weights import (
    SlotWeights,
    apply_all,
    empty_rows,
    load_all,
    prepare_all,
    read_rows,
)
from elastane.tables.spec import ModelSpec, RowTable
from elastane.tables.table_rows import fill_absent
from unit.tables.models import rates

SLOTS = 5


def model(rule: str, rows: int = 3000) -> ModelSpec:
    tables = tuple(RowTable(name, rows, width, rule=rule) for name, width in (("users", 4), ("items", 3)))
    return ModelSpec((), tables, slots=SLOTS, seed=3)


def by_slot(spec: ModelSpec, table: int, ids: Ids) -> tuple[Ids, list[int]]:
    """Sort ids by slot; return them with the slots' bounds."""
    slots = slots_of(spec.layout(0).tables[table].placement, ids)
    return ids[np.argsort(slots, kind="stable")], bounds_of(np.bincount(slots, minlength=SLOTS).tolist())


def task(spec: ModelSpec, generator: np.random.Generator) -> TaskGradients:
    found = []
    for table, told in enumerate(spec.tables):
        ids = np.unique(generator.integers(0, told.rows, generator.integers(0, 400)))
        ids, bounds = by_slot(spec, table, ids)
        values = torch.from_numpy(generator.standard_normal((len(ids), told.width), np.float32))
        found.append(TableGradients(table, ids, bounds, values))
    return TaskGradients({}, tuple(found))


def read(spec: ModelSpec, weights: dict[int, SlotWeights], table: int, ids: Ids, bounds: list[int]) -> Ids:
    told = spec.layout(0).tables[table]
    rows, absent = empty_rows(told, len(ids))
    read_rows(weights.items(), table, bounds, ids, rows, absent)
    fill_absent(told, spec.initial_rows(table), ids, rows, absent)
    return rows


@pytest.mark.parametrize("entries", [64, place_cache.ENTRIES_MAX])
@pytest.mark.parametrize("rule", ["row_sgd", "rowwise_adagrad", "lazy_adam"])
def test_slots_that_come_and_go_have_the_bits_of_slots_on_their_own(
    rule: str, entries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(place_cache, "ENTRIES_MAX", entries)
    monkeypatch.setattr(place_cache, "_ENTRIES_MIN", 64)
    spec, generator = model(rule), np.random.default_rng(1)
    arenas = RowArenas(spec)
    alone = {slot: SlotWeights(spec, slot) for slot in range(SLOTS)}
    together = {slot: SlotWeights(spec, slot, arenas) for slot in range(SLOTS)}
    numbers = rates(spec)
    for turn in range(120):
        pushed = task(spec, generator)
        for one in pushed.rows:
            mine = read(spec, together, one.table, one.ids, list(one.bounds))
            assert (mine == read(spec, alone, one.table, one.ids, list(one.bounds))).all()
        apply_all(prepare_all(together, pushed, numbers), numbers)
        for slot, weights in alone.items():
            weights.apply(weights.prepare(pushed.part(slot), numbers), numbers)
        slot = int(generator.integers(SLOTS))
        if turn % 3 == 0:
            # The slot leaves, and comes back as it was: what it had is used by others meanwhile.
            copy = [*together.pop(slot).sections()]
            apply_all(prepare_all(together, pushed.only(together), numbers), numbers)
            for other, weights in alone.items():
                if other != slot:
                    weights.apply(weights.prepare(pushed.part(other), numbers), numbers)
            together = {one: together[one] for one in range(SLOTS) if one != slot}
            back = SlotWeights(spec, slot, arenas)
            load_all(back, copy)
            together = {one: back if one == slot else together[one] for one in range(SLOTS)}
    assert [together[slot].digest() for slot in range(SLOTS)] == [
        alone[slot].digest() for slot in range(SLOTS)
    ]
    rows = sum(len(weights._rows[0]) for weights in together.values())
    assert arenas.tables[0]._end < 2 * rows  # places of slots that have left are used again


def test_a_push_marks_the_rows_of_each_slot_with_its_own_mark() -> None:
    spec, generator = model("row_sgd"), np.random.default_rng(2)
    arenas, numbers = RowArenas(spec), rates(spec)
    weights = {slot: SlotWeights(spec, slot, arenas) for slot in range(SLOTS)}
    first, second = task(spec, generator), task(spec, generator)
    apply_all(prepare_all(weights, first, numbers), numbers)
    for _ in range(300):  # beyond what a stamp can tell
        weights[1].mark()
    since = {slot: own.mark() for slot, own in weights.items()}
    apply_all(prepare_all(weights, second, numbers), numbers)
    for slot, own in weights.items():
        changed = {table: ids.tolist() for table, ids, _ in own.changed_since(since[slot]).rows}
        assert changed == {one.table: one.ids.tolist() for one in second.part(slot).rows}


def test_what_is_given_back_is_zero_and_used_first() -> None:
    spec = model("lazy_adam")
    arena = RowArena(spec.layout(0).tables[0], "lazy_adam", shared=True)
    with arena.lock:
        taken = arena.take(10_000)
        for column in (*arena.columns, arena.stamps):
            column.array[:] = 7
        arena.give_back((taken[2000:6000:2], taken[6000:9000]))
        again = arena.take(5500)
    assert sorted(again.tolist()) == [*range(2000, 6000, 2), *range(6000, 9000), *range(10_000, 10_500)]
    for column in (*arena.columns, arena.stamps):
        assert not column.array[again].any()
        kept = np.setdiff1d(np.arange(10_000), again)
        assert (column.array[kept] == 7).all()


def test_without_memory_nothing_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    arena = RowArena(model("row_sgd").layout(0).tables[0], "row_sgd", shared=True)
    with arena.lock:
        arena.give_back((arena.take(100)[:50],))
        monkeypatch.setattr(row_arena, "ROWS_MAX", 120)
        with pytest.raises(MemoryError):
            arena.take(71)
        assert sorted(arena.take(70).tolist()) == [*range(50), *range(100, 120)]


def test_slots_that_are_deleted_give_their_memory_back() -> None:
    spec, generator = model("row_sgd"), np.random.default_rng(3)
    arenas, numbers = RowArenas(spec), rates(spec)
    weights = {slot: SlotWeights(spec, slot, arenas) for slot in range(SLOTS)}
    apply_all(prepare_all(weights, task(spec, generator), numbers), numbers)
    used = arenas.tables[0]._end
    weights.clear()
    gc.collect()
    arenas.collect()
    assert sum(map(len, arenas.tables[0]._free)) == used
    assert not arenas.tables[0].columns[0].array.any()


def test_whole_pages_that_are_cleared_take_no_memory() -> None:
    array = GrowingArray(np.float32, 4)
    array.extend(4 * growing.MAPPED_BYTES)
    array.array[:] = 3

    def resident_bytes() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE

    cleared = np.arange(100, 3 * growing.MAPPED_BYTES)
    before = resident_bytes()
    array.clear(cleared)
    assert before - resident_bytes() > growing.MAPPED_BYTES * array.entry_bytes
    assert (array.array[:100] == 3).all() and not array.array[cleared].any()
    assert (array.array[3 * growing.MAPPED_BYTES :] == 3).all()


def test_a_cache_finds_what_was_added_or_nothing() -> None:
    cache, generator, known = PlaceCache(), np.random.default_rng(4), dict[int, int]()
    found = asked = 0
    for turn in range(300):
        ids = np.unique(generator.integers(0, 10_000, 500))
        places = cache.find(ids)
        there = places >= 0
        assert [known[row] for row in ids[there].tolist()] == places[there].tolist()
        new = ids[~there]
        if turn >= 250:
            found += len(ids) - len(new)
            asked += sum(row in known for row in ids.tolist())
        for row in new.tolist():
            known.setdefault(row, int(generator.integers(2**31)))
        cache.add(new, np.array([known[row] for row in new.tolist()], np.int64))
    assert found > 0.99 * asked
