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

    def read(self, ids: Ids) -> NDArray[Any]:
        """Return a copy of the rows of these ids, which may be none of the slot's; any order, repeats too."""
        places = self._index.find(ids)
        absent = places < 0
        if self._columns[0].length:
            rows = self._columns[0].array[places]  # absent ones: any row
        else:
            rows = np.empty((len(ids), self._table.width), self._dtype)
        if absent.any():
            rows[absent] = initial_rows(self._initial, ids[absent], self._table.width)
        padding = self._table.padding_row
        if padding is not None:
            rows[ids == padding] = 0
        return rows

    def born(self, ids: Ids, numbers: Sequence[float], mark: int) -> Places:
        """Return the places of ids, ascending; rows that are not there are born. numbers: the group's rates.

        Raises MemoryError, and changes nothing then that could be seen.
        """
        places = self._index.find(ids)
        new = places < 0
        if new.any():
            places[new] = self._add(ids[new], numbers, mark)
        return places

    def step(self, places: Places, gradients: NDArray[Any], numbers: Sequence[float], mark: int) -> None:
        """Apply gradients to rows, each at most once."""
        rows = [column.array[places] for column in self._columns]
        rows = list(row_rules.updated(self._rule, rows, gradients, numbers))
        for column, updated in zip(self._columns, rows, strict=True):
            column.array[places] = updated
        self._stamps.array[places] = self._stamp(mark)

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

    def _add(self, ids: Ids, numbers: Sequence[float], mark: int) -> Places:
        values = initial_rows(self._initial, ids, self._table.width)
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
