"""The rows of one table in one slot, with their optimizer state; their memory is in an arena.

A row is allocated at its first gradient. Until then its values, a function of its id, are computed at every
pull, so pulls change nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import count
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from elastane.tables import row_rules
from elastane.tables.initial import initial_rows
from elastane.tables.layout import Ids, SlotTable
from elastane.tables.row_arena import RowArena
from elastane.tables.row_index import Places, RowIndex
from elastane_slots.initial_rows import InitialRows

#: Stamps fit into a byte: they identify the last change of a row among the newest 255 marks.
_STAMPS: Final = 255
#: Bytes of an id and its position.
_INDEX_ENTRY_BYTES: Final = 8 + 4
#: Least number of positions that are taken together.
_SPARE: Final = 64
_numbers = count(1)

#: One slot's share [start, end) of the rows of a request to a table.
Part = tuple["TableRows", int, int]
Absent = NDArray[np.bool_]


class TableRows:
    """Rows in columns: the values, then the states of the rule. rule: of `row_rules`.

    arena: of the process's slots; without one, the rows have one of their own. mark: of changes from now on.
    """

    def __init__(
        self, slot: int, table: SlotTable, initial: InitialRows, rule: str, arena: RowArena | None = None
    ) -> None:
        self._spare = np.empty(0, np.int64)
        self._index = RowIndex()
        self.arena = arena if arena is not None else RowArena(table, rule)
        self.holder = slot, next(_numbers)
        self.mark = 1
        self._table, self._initial, self._rule = table, initial, rule
        #: Stamps are counted from this mark.
        self._base = 0

    def __del__(self) -> None:
        if self.arena.cache is not None:
            _, places = self._index.entries()
            self.arena.give_back((places, self._spare))

    def __len__(self) -> int:
        return len(self._index)

    @property
    def column_row_bytes(self) -> list[int]:
        """Bytes of one row in each column."""
        return [column.entry_bytes for column in self.arena.columns]

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

    def touched(self, since: int) -> tuple[Ids, Places]:
        """Return rows changed at mark `since` or later, by id; all rows if that is unknown."""
        ids, places = self._index.entries()
        if since > self._base:
            with self.arena.lock:
                recent = self.arena.stamps.array[places] >= since - self._base
            ids, places = ids[recent], places[recent]
        return ids, places

    def columns(self, places: Places) -> list[NDArray[Any]]:
        """Return copies of the columns of these rows."""
        with self.arena.lock:
            return [column.array[places] for column in self.arena.columns]

    def load(self, ids: Ids, parts: Sequence[memoryview]) -> None:
        """Set the columns of rows, as returned by `columns`; ids ascending. Raises MemoryError."""
        arena = self.arena
        with arena.lock:
            places = self._index.find(ids)
            new = places < 0
            if new.any():
                places[new] = self._add(ids[new])
            for column, part in zip(arena.columns, parts, strict=True):
                values = np.frombuffer(part, column.dtype)
                column.array[places] = values.reshape(len(ids), *column.array.shape[1:])
            arena.stamps.array[places] = self._stamp()

    def _add(self, ids: Ids) -> Places:
        """Add rows of zeros. ids: ascending. The caller holds the arena's lock."""
        spare, added = self._spare, len(ids)
        if len(spare) < added:
            more = self.arena.take(max(added - len(spare), len(self) // 16, _SPARE))
            spare = self._spare = np.concatenate([spare, more])
        self._index.add(ids, spare[:added])
        self._spare = spare[added:]
        return spare[:added]

    def _stamp(self) -> int:
        if self.mark - self._base > _STAMPS:
            # Older marks are forgotten; a query for one returns all rows.
            base = self.mark - _STAMPS // 2
            _, places = self._index.entries()
            stamps = self.arena.stamps.array
            stamps[places] = np.maximum(stamps[places].astype(np.int64) - (base - self._base), 0)
            self._base = base
        return self.mark - self._base


def read(parts: Sequence[Part], ids: Ids, rows: NDArray[Any], absent: Absent) -> None:
    """Copy the rows of ids, in any order within a part, into `rows`, and tell in `absent` which have none.

    `fill_absent` completes them. parts: of one arena, following one another.
    """
    start, end = parts[0][1], parts[-1][2]
    arena = parts[0][0].arena
    with arena.lock:
        places = _find(arena, parts, ids)
        if arena.columns[0].length:
            arena.columns[0].array.take(places, 0, rows[start:end], "clip")
    np.less(places, 0, out=absent[start:end])


def fill_absent(table: SlotTable, initial: InitialRows, ids: Ids, rows: NDArray[Any], absent: Absent) -> None:
    """Complete the result of `read` for any slots: fill in absent rows and the padding row."""
    if absent.any():
        rows[absent] = initial_rows(initial, ids[absent], table.width)
    if table.padding_row is not None:
        rows[ids == table.padding_row] = 0


def born(parts: Sequence[Part], ids: Ids, numbers: Sequence[float]) -> Places:
    """Return the positions of ids, adding rows that do not exist.

    ids: ascending within each part. numbers: the group's rates. parts: as in `read`. Raises MemoryError and
    changes nothing visible.
    """
    first, arena = parts[0][0], parts[0][0].arena
    with arena.lock:
        places = _find(arena, parts, ids)
        new = (places < 0).nonzero()[0]
        if not len(new):
            return places
        new += parts[0][1]
        fresh = ids[new]
        values = initial_rows(first._initial, fresh, first._table.width)
        state = row_rules.first_state(first._rule, numbers)
        added = np.empty(len(new), np.int64)
        for rows, start, end in _shares(parts, new):
            # A row that is there has its initial values already: what is added is not taken back.
            added[start:end] = own = rows._add(fresh[start:end])
            arena.columns[0].array[own] = values[start:end]
            if len(arena.columns) > 1 and state:
                arena.columns[1].array[own] = state
        places[new - parts[0][1]] = added
        if arena.cache is not None:
            arena.cache.add(fresh, added)
    return places


def step(parts: Sequence[Part], places: Places, gradients: NDArray[Any], numbers: Sequence[float]) -> None:
    """Apply gradients to rows, each at most once.

    places, gradients: of the parts' ids. parts: as in `read`.
    """
    arena = parts[0][0].arena
    with arena.lock:
        columns = [column.array.take(places, 0) for column in arena.columns]
        updated = row_rules.updated(parts[0][0]._rule, columns, gradients, numbers)
        for column, values in zip(arena.columns, updated, strict=True):
            column.array[places] = values
        stamps = np.array([rows._stamp() for rows, _, _ in parts], np.uint8)
        if (stamps == stamps[0]).all():
            arena.stamps.array[places] = stamps[0]
        else:
            arena.stamps.array[places] = stamps.repeat([end - start for _, start, end in parts])


def _find(arena: RowArena, parts: Sequence[Part], ids: Ids) -> Places:
    """Return the positions of the parts' ids; -1 where there is no row."""
    first, last = parts[0][1], parts[-1][2]
    cache = arena.cache
    if cache is None:
        return np.concatenate([rows._index.find(ids[start:end]) for rows, start, end in parts])
    cache.admit([rows.holder for rows, _, _ in parts])
    places = cache.find(ids[first:last])
    missing = (places < 0).nonzero()[0]
    if len(missing):
        found = np.empty(len(missing), np.int64)
        unknown = ids[first:last][missing]
        for rows, start, end in _shares(parts, missing + first):
            found[start:end] = rows._index.find(unknown[start:end])
        places[missing] = found
        there = found >= 0
        if there.any():
            cache.add(unknown[there], found[there])
    return places


def _shares(parts: Sequence[Part], chosen: NDArray[np.int64]) -> Iterable[Part]:
    """Yield the shares of those parts to which some of the chosen places, ascending, belong."""
    end = 0
    for (rows, _, _), until in zip(
        parts, chosen.searchsorted([end for _, _, end in parts]).tolist(), strict=True
    ):
        start, end = end, until
        if start < end:
            yield rows, start, end
