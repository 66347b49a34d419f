"""Ids and gradients of a task: one array for each table, sorted by slot.

A task touches most slots, and each with few rows. So pulls and pushes, their messages and the updates of rows
handle the rows of a table in all slots together; `bounds` says which of them are a slot's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import accumulate, chain
from operator import sub
from typing import Any, TypeVar

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray

from elastane.tables.layout import (
    Ids,
    PushPart,
    RowGradients,
    Rows,
    SlotLayout,
    SlotTable,
    Values,
    are_ids,
    is_finite,
)
from elastane_shards.errors import InvalidRequest

Bounds = Sequence[int]
#: (table, number of its rows in each slot of a message), tables ascending.
RowCounts = Sequence[tuple[int, Sequence[int]]]
#: Ranges [start, end) of the rows of slots, ascending; those that follow one another are one.
Ranges = Sequence[tuple[int, int]]
Part = TypeVar("Part", memoryview, NDArray[Any])


class TableIds(msgspec.Struct, frozen=True, dict=True):
    """Ids of one table. bounds: those of slot s are ids[bounds[s]:bounds[s + 1]]; one more than slots."""

    table: int
    ids: Ids
    bounds: Bounds

    @property
    def slots(self) -> list[int]:
        """Slots that have ids, ascending."""
        bounds = self.bounds
        return [slot for slot in range(len(bounds) - 1) if bounds[slot] < bounds[slot + 1]]

    def of_slot(self, slot: int) -> Ids:
        return self.ids[self.bounds[slot] : self.bounds[slot + 1]]

    def counts(self, slots: Iterable[int]) -> list[int]:
        """Return the number of ids of each slot."""
        return [*map(self._counts.__getitem__, slots)]

    @cached_property
    def _counts(self) -> list[int]:
        return [*map(sub, self.bounds[1:], self.bounds)]

    def ranges(self, slots: Iterable[int]) -> Ranges:
        """Return where the ids of slots are. slots: ascending."""
        found, bounds = list[tuple[int, int]](), self.bounds
        for slot in slots:
            start, end = bounds[slot], bounds[slot + 1]
            if start == end:
                continue
            if found and found[-1][1] == start:
                found[-1] = found[-1][0], end
            else:
                found.append((start, end))
        return found


class TableGradients(TableIds, frozen=True, dict=True):
    """Gradients of rows of one table: ids, ascending within each slot; values of shape (ids, width)."""

    values: Values

    def only(self, slots: Iterable[int]) -> TableGradients:
        """Return the gradients of these slots, ascending."""
        kept = list(slots)
        ranges = self.ranges(kept)
        counts = [0] * (len(self.bounds) - 1)
        for slot, count in zip(kept, self.counts(kept), strict=True):
            counts[slot] = count
        values = [self.values[start:end] for start, end in ranges]
        return TableGradients(
            self.table,
            in_ranges(self.ids, ranges),
            bounds_of(counts),
            torch.cat(values) if values else self.values[:0],
        )


class TaskGradients(msgspec.Struct, frozen=True, dict=True):
    """Gradients of a task. blocks: by slot, 1-D tensors by position in it. rows: tables ascending."""

    blocks: Mapping[int, Mapping[int, Values]] = {}
    rows: tuple[TableGradients, ...] = ()

    @cached_property
    def slots(self) -> list[int]:
        """Slots that have gradients, ascending. Others get the task's name alone."""
        with_blocks = (slot for slot, blocks in self.blocks.items() if blocks)
        return sorted({*with_blocks, *chain.from_iterable(one.slots for one in self.rows)})

    def part(self, slot: int) -> PushPart:
        """Return the gradients of one slot."""
        rows = []
        for one in self.rows:
            start, end = one.bounds[slot], one.bounds[slot + 1]
            if start < end:
                rows.append(RowGradients(one.table, one.ids[start:end], one.values[start:end]))
        return PushPart(dict(self.blocks.get(slot, {})), tuple(rows))

    def only(self, slots: Iterable[int]) -> TaskGradients:
        """Return the gradients of these slots, ascending."""
        kept = list(slots)
        blocks = {slot: self.blocks[slot] for slot in kept if slot in self.blocks}
        return TaskGradients(blocks, tuple(one.only(kept) for one in self.rows))


def joined(parts: Mapping[int, PushPart], slots: int) -> TaskGradients:
    """Return the gradients of parts by slot: inverse of `TaskGradients.part`. slots: of the model."""
    tables: dict[int, dict[int, RowGradients]] = {}
    for slot in sorted(parts):
        for one in parts[slot].rows:
            tables.setdefault(one.table, {})[slot] = one
    rows = []
    for table, found in sorted(tables.items()):
        counts = [len(found[slot].ids) if slot in found else 0 for slot in range(slots)]
        ids = np.concatenate([one.ids for one in found.values()])
        values = torch.cat([one.values for one in found.values()])
        rows.append(TableGradients(table, ids, bounds_of(counts), values))
    return TaskGradients({slot: part.blocks for slot, part in parts.items() if part.blocks}, tuple(rows))


def bounds_of(counts: Iterable[int]) -> list[int]:
    """Return the bounds of slots with these numbers of rows."""
    return [0, *accumulate(counts)]


def bounds_among(counts: Iterable[int], own: Iterable[int], slots: int) -> list[int]:
    """`bounds_of` where only `own` slots of all have rows. own: ascending."""
    all_counts = [0] * slots
    for slot, count in zip(own, counts, strict=True):
        all_counts[slot] = count
    return bounds_of(all_counts)


def in_ranges(ids: Ids, ranges: Ranges) -> Ids:
    """Return the ids in ranges; copied only if they are several."""
    parts = [ids[start:end] for start, end in ranges]
    if len(parts) == 1:
        return parts[0]
    return np.concatenate(parts) if parts else ids[:0]


def bytes_in_ranges(content: memoryview, ranges: Ranges, row_bytes: int) -> memoryview:
    """Return the bytes of rows in ranges; copied only if they are several."""
    parts = [content[start * row_bytes : end * row_bytes] for start, end in ranges]
    return parts[0] if len(parts) == 1 else memoryview(b"".join(parts))


def totals(layout: SlotLayout, slots: Sequence[int], rows: RowCounts) -> Rows:
    """Return the rows of each table in all slots of a message.

    Raises InvalidRequest unless there is a number for each slot.
    """
    found = []
    for table, counts in rows:
        if len(counts) != len(slots) or min(counts, default=0) < 0:
            raise InvalidRequest(f"rows of table {table} in {len(counts)} slots of {len(slots)}", table=table)
        found.append((table, sum(counts)))
    return layout.check_tables(found)


def check_gradients(layouts: Sequence[SlotLayout], gradients: TaskGradients) -> None:
    """Raise InvalidRequest unless gradients can be applied, as `SlotLayout.check_part` of each slot."""
    tables = layouts[0].tables
    if not all(_can_be_applied(tables[one.table], one) for one in gradients.rows):
        for slot in gradients.slots:
            layouts[slot].check_part(gradients.part(slot))  # says what is wrong
    for slot, blocks in gradients.blocks.items():
        layouts[slot].check_part(PushPart(dict(blocks)))


def _can_be_applied(table: SlotTable, found: TableGradients) -> bool:
    ids, values = found.ids, found.values
    if values.shape != (len(ids), table.width) or values.dtype != table.dtype:
        return False
    slots = slots_of_bounds(found.bounds)
    return (
        are_ids(table, slots, ids)
        and bool(((ids[1:] > ids[:-1]) | (slots[1:] != slots[:-1])).all())
        and (table.padding_row is None or not bool((ids == table.padding_row).any()))
        and is_finite(values)
    )


def slots_of_bounds(bounds: Bounds) -> NDArray[np.int64]:
    """Return the slot of each row."""
    return np.repeat(np.arange(len(bounds) - 1), np.diff(bounds))
