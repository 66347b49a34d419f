"""The rows that one slot has of one table, with their optimizer's state.

A row takes memory from its first gradient on. Until then its values are computed whenever it is pulled, so
pulls change nothing, and there is no difference: they are a function of its id.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from elastane.tables import row_rules
from elastane.tables.growing import GrowingArray
from elastane.tables.initial import initial_rows
from elastane.tables.layout import Ids, SlotTable
from elastane.tables.row_index import Places, RowIndex
from elastane_slots.initial_rows import InitialRows

#: Stamps of rows fit a byte: of the newest 255 marks they tell which touched a row last.
_STAMPS: Final = 255
#: An id and a place.
_INDEX_ENTRY_BYTES: Final = 8 + 4


class TableRows:
    """rule: of `row_rules`. Columns are the values, then the states of the rule."""

    def __init__(self, table: SlotTable, initial: InitialRows, rule: str) -> None:
        self._table, self._initial, self._rule = table, initial, rule
        self._dtype = np.dtype(str(table.dtype).removeprefix("torch."))
        self._index = RowIndex()
        self._columns = [GrowingArray(self._dtype, table.width)]
        for _, width, dtype in row_rules.STATES[rule]:
            self._columns.append(GrowingArray(dtype or self._dtype, table.width if width < 0 else 0))
        #: By place: the mark at which a row was touched last, counted from `_base`.
        self._stamps = GrowingArray(np.uint8)
        self._base = 0

    def __len__(self) -> int:
        return len(self._index)

    @property
    def column_row_bytes(self) -> list[int]:
        """Bytes of one row in each column."""
        return [column.dtype.itemsize * int(np.prod(column.array.shape[1:])) for column in self._columns]

    @property
    def weight_bytes(self) -> int:
        return self._columns[0].bytes

    @property
    def state_bytes(self) -> int:
        return sum(column.bytes for column in self._columns[1:])

    @property
    def index_bytes(self) -> int:
        return self._index.bytes + self._stamps.bytes

    @property
    def row_bytes(self) -> int:
        """Memory that a new row takes: its columns, its stamp, its entry in the index."""
        return sum(self.column_row_bytes) + 1 + _INDEX_ENTRY_BYTES

    def new_count(self, ids: Ids) -> int:
        """Number of ids, all different, that have no row yet."""
        return int(np.count_nonzero(self._index.find(ids) < 0))

    def read(self, ids: Ids, rows: NDArray[Any], absent: NDArray[np.bool_]) -> None:
        """Copy the rows of these ids, in any order, into `rows`; `absent` says which are not there: those are
        filled by `fill_absent`."""
        places = self._index.find(ids)
        np.less(places, 0, out=absent)
        if self._columns[0].length:
            self._columns[0].array.take(places, 0, rows, "clip")  # absent ones: any row

    def touched(self, since: int) -> tuple[Ids, Places]:
        """Return the rows touched at mark `since` or later, by id; all of them where that is not known."""
        ids, places = self._index.entries()
        if since > self._base:
            recent = self._stamps.array[places] >= since - self._base
            ids, places = ids[recent], places[recent]
        return ids, places

    def columns(self, places: Places) -> list[NDArray[Any]]:
        """Return copies of the columns of these rows."""
        return [column.array[places] for column in self._columns]

    def load(self, ids: Ids, parts: Sequence[memoryview], mark: int) -> None:
        """Set the columns of rows, as `columns` gave them; ids ascending. Raises MemoryError."""
        places = self._index.find(ids)
        new = places < 0
        if new.any():
            self._extend(int(new.sum()))
            places[new] = self._index.add(ids[new])
        for column, part in zip(self._columns, parts, strict=True):
            values = np.frombuffer(part, column.dtype)
            column.array[places] = values.reshape(len(ids), *column.array.shape[1:])
        self._stamps.array[places] = self._stamp(mark)

    def _add(self, ids: Ids, values: NDArray[Any], numbers: Sequence[float], mark: int) -> Places:
        self._extend(len(ids))
        places = self._index.add(ids)
        self._columns[0].array[places] = values
        if len(self._columns) > 1 and (first := row_rules.first_state(self._rule, numbers)):
            self._columns[1].array[places] = first
        self._stamps.array[places] = self._stamp(mark)
        return places

    def _extend(self, count: int) -> None:
        """Have entries for `count` further rows. Those that an earlier try has left are used."""
        wanted = len(self._index) + count
        for column in (*self._columns, self._stamps):
            if column.length < wanted:
                column.extend(wanted - column.length)

    def _stamp(self, mark: int) -> int:
        if mark - self._base > _STAMPS:
            # Older marks are forgotten: whoever asks for one gets all rows.
            base = mark - _STAMPS // 2
            stamps = self._stamps.array
            stamps[:] = np.maximum(stamps.astype(np.int64) - (base - self._base), 0)
            self._base = base
        return mark - self._base


def fill_absent(
    table: SlotTable, initial: InitialRows, ids: Ids, rows: NDArray[Any], absent: NDArray[np.bool_]
) -> None:
    """Complete what `TableRows.read` has read, of any slots: rows that are not there, and the padding row."""
    if absent.any():
        rows[absent] = initial_rows(initial, ids[absent], table.width)
    if table.padding_row is not None:
        rows[ids == table.padding_row] = 0


def born(parts: Sequence[tuple[TableRows, Ids, int]], numbers: Sequence[float]) -> list[Places]:
    """Return the places of ids, ascending, in the parts that slots have of one table, given with their marks;
    rows that are not there are born. numbers: the group's rates.

    Raises MemoryError, and changes nothing then that could be seen.
    """
    places = [rows._index.find(ids) for rows, ids, _ in parts]
    new = [found < 0 for found in places]
    if not np.concatenate(new).any():
        return places
    fresh = [(number, ids[new[number]]) for number, (_, ids, _) in enumerate(parts) if new[number].any()]
    first = parts[0][0]
    values = initial_rows(first._initial, np.concatenate([ids for _, ids in fresh]), first._table.width)
    end = 0
    for number, ids in fresh:
        rows, _, mark = parts[number]
        start, end = end, end + len(ids)
        places[number][new[number]] = rows._add(ids, values[start:end], numbers, mark)
    return places


def step(
    parts: Sequence[tuple[TableRows, Places, int]], gradients: NDArray[Any], numbers: Sequence[float]
) -> None:
    """Apply gradients, of all parts one after the other, to rows, each at most once: one step for all."""
    first = parts[0][0]
    columns = [
        np.concatenate([rows._columns[number].array[places] for rows, places, _ in parts])
        for number in range(len(first._columns))
    ]
    updated = row_rules.updated(first._rule, columns, gradients, numbers)
    end = 0
    for rows, places, mark in parts:
        start, end = end, end + len(places)
        for column, values in zip(rows._columns, updated, strict=True):
            column.array[places] = values[start:end]
        rows._stamps.array[places] = rows._stamp(mark)
