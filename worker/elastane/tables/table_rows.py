"""The rows of one table in one slot, with their optimizer state.

A row is allocated at its first gradient. Until then its values, a function of its id, are computed at every
pull, so pulls change nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from elastane.tables import row_rules
from elastane.tables.growing import GrowingArray
from elastane.tables.initial import initial_rows
from elastane.tables.layout import Ids, SlotTable
from elastane.tables.row_index import Places, RowIndex
from elastane_slots.initial_rows import InitialRows

#: Stamps fit into a byte: they identify the last change of a row among the newest 255 marks.
_STAMPS: Final = 255
#: Bytes of an id and its position.
_INDEX_ENTRY_BYTES: Final = 8 + 4


class TableRows:
    """Rows in columns: the values, then the states of the rule. rule: of `row_rules`."""

    def __init__(self, table: SlotTable, initial: InitialRows, rule: str) -> None:
        self._table, self._initial, self._rule = table, initial, rule
        self._dtype = np.dtype(str(table.dtype).removeprefix("torch."))
        self._index = RowIndex()
        self._columns = [GrowingArray(self._dtype, table.width)]
        for _, width, dtype in row_rules.STATES[rule]:
            self._columns.append(GrowingArray(dtype or self._dtype, table.width if width < 0 else 0))
        #: By position: the mark at which the row was last changed, counted from `_base`.
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
        return len(self) * self.column_row_bytes[0]

    @property
    def state_bytes(self) -> int:
        return len(self) * sum(self.column_row_bytes[1:])

    @property
    def index_bytes(self) -> int:
        return self._index.bytes + len(self)

    @property
    def row_bytes(self) -> int:
        """Memory of a new row in bytes: its columns, stamp and index entry."""
        return sum(self.column_row_bytes) + 1 + _INDEX_ENTRY_BYTES

    def new_count(self, ids: Ids) -> int:
        """Return how many of these distinct ids have no row yet."""
        return int(np.count_nonzero(self._index.find(ids) < 0))

    def read(self, ids: Ids, rows: NDArray[Any], known: Ids) -> None:
        """Copy the rows of ids, in any order, into `rows`, and the ids of the copied rows into `known`.

        An id that differs in `known` has no row here; `fill_absent` completes it.
        """
        places = np.empty(len(ids), np.int32)
        self._index.nearest(ids, known, places)
        if self._columns[0].length:
            self._columns[0].array.take(places, 0, rows, "clip")

    def touched(self, since: int) -> tuple[Ids, Places]:
        """Return rows changed at mark `since` or later, by id; all rows if that is unknown."""
        ids, places = self._index.entries()
        if since > self._base:
            recent = self._stamps.array[places] >= since - self._base
            ids, places = ids[recent], places[recent]
        return ids, places

    def columns(self, places: Places) -> list[NDArray[Any]]:
        """Return copies of the columns of these rows."""
        return [column.array[places] for column in self._columns]

    def load(self, ids: Ids, parts: Sequence[memoryview], mark: int) -> None:
        """Set the columns of rows, as returned by `columns`; ids ascending. Raises MemoryError."""
        places = self._index.find(ids)
        new = places < 0
        if new.any():
            self._extend(len(self._index) + int(new.sum()))
            places[new] = self._index.add(ids[new])
        for column, part in zip(self._columns, parts, strict=True):
            values = np.frombuffer(part, column.dtype)
            column.array[places] = values.reshape(len(ids), *column.array.shape[1:])
        self._stamps.array[places] = self._stamp(mark)

    def _add(self, ids: Ids, values: NDArray[Any], numbers: Sequence[float]) -> Places:
        start = len(self._index)
        end = start + len(ids)
        self._extend(end)
        places = self._index.add(ids)
        self._columns[0].array[start:end] = values
        if len(self._columns) > 1 and (first := row_rules.first_state(self._rule, numbers)):
            self._columns[1].array[start:end] = first
        return places

    def _extend(self, rows: int) -> None:
        """Allocate entries for this many rows, with a reserve."""
        if rows > self._stamps.length:  # extended last
            for column in (*self._columns, self._stamps):
                column.extend(max(0, rows + rows // 16 - column.length))

    def _stamp(self, mark: int) -> int:
        if mark - self._base > _STAMPS:
            # Older marks are forgotten; a query for one returns all rows.
            base = mark - _STAMPS // 2
            stamps = self._stamps.array
            stamps[:] = np.maximum(stamps.astype(np.int64) - (base - self._base), 0)
            self._base = base
        return mark - self._base


def fill_absent(table: SlotTable, initial: InitialRows, ids: Ids, rows: NDArray[Any], known: Ids) -> None:
    """Complete the result of `TableRows.read` for any slots: fill in absent rows and the padding row."""
    absent = known != ids
    if absent.any():
        rows[absent] = initial_rows(initial, ids[absent], table.width)
    if table.padding_row is not None:
        rows[ids == table.padding_row] = 0


@dataclass(frozen=True)
class Part:
    """One slot's share [start, end) of the rows of a push to a table."""

    rows: TableRows
    mark: int
    start: int
    end: int


def born(parts: Sequence[Part], ids: Ids, numbers: Sequence[float]) -> Places:
    """Return the positions of ids in their slots, adding rows that do not exist.

    ids: ascending within each part. numbers: the group's rates. Raises MemoryError and changes nothing
    visible.
    """
    known, nearest = np.empty(len(ids), np.int64), np.empty(len(ids), np.int32)
    for part in parts:
        start, end = part.start, part.end
        part.rows._index.nearest(ids[start:end], known[start:end], nearest[start:end])
    places = nearest.astype(np.int64)
    new = (known != ids).nonzero()[0]
    if not len(new):
        return places
    fresh, first = ids[new], parts[0].rows
    values = initial_rows(first._initial, fresh, first._table.width)
    added, end = np.empty(len(new), np.int64), 0
    for part, until in zip(parts, new.searchsorted([part.end for part in parts]).tolist(), strict=True):
        start, end = end, until
        if start < end:
            added[start:end] = part.rows._add(fresh[start:end], values[start:end], numbers)
    places[new] = added
    return places


def step(parts: Sequence[Part], places: Places, gradients: NDArray[Any], numbers: Sequence[float]) -> None:
    """Apply gradients to rows, each at most once: one step for all parts."""
    first = parts[0].rows
    own = [places[part.start : part.end] for part in parts]
    columns = []
    for number, column in enumerate(first._columns):
        copies = np.empty((len(places), *column.array.shape[1:]), column.dtype)
        for part, at in zip(parts, own, strict=True):
            part.rows._columns[number].array.take(at, 0, copies[part.start : part.end], "clip")
        columns.append(copies)
    for number, values in enumerate(row_rules.updated(first._rule, columns, gradients, numbers)):
        for part, at in zip(parts, own, strict=True):
            part.rows._columns[number].array[at] = values[part.start : part.end]
    for part, at in zip(parts, own, strict=True):
        part.rows._stamps.array[at] = part.rows._stamp(part.mark)
