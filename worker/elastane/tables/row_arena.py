"""Memory for the rows of one table in all slots of a process, which are read or updated in one step.

Positions belong to whoever took them, a slot's `TableRows`, until that is deleted; then they are used again,
and whole pages of them take no memory meanwhile. Rows never move.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from typing import Final

import numpy as np

from elastane.tables import row_rules
from elastane.tables.growing import GrowingArray
from elastane.tables.layout import SlotTable
from elastane.tables.place_cache import PlaceCache
from elastane.tables.row_index import Places
from elastane.tables.spec import ModelSpec

#: Positions are int32 in indexes.
ROWS_MAX: Final = 2**31 - 1


class RowArena:
    """Columns of a table: values, then the states of the rule (`row_rules`).

    lock: guards all of it, and is taken after a slot's lock; while it is held, no other lock is taken.
    stamps: by position, the mark at which the row was last changed. shared: by several slots, whose rows'
    positions are remembered.
    """

    def __init__(self, table: SlotTable, rule: str, *, shared: bool = False) -> None:
        self.lock = threading.Lock()
        dtype = np.dtype(str(table.dtype).removeprefix("torch."))
        self.columns = [GrowingArray(dtype, table.width)]
        for _, width, state_dtype in row_rules.STATES[rule]:
            self.columns.append(GrowingArray(state_dtype or dtype, table.width if width < 0 else 0))
        self.stamps = GrowingArray(np.uint8)
        self.cache = PlaceCache() if shared else None
        self._end = 0
        self._free: list[Places] = []
        #: Appended to by threads that delete rows, at any moment and without the lock.
        self._returned: deque[Sequence[Places]] = deque()

    def take(self, count: int) -> Places:
        """Return positions of zeros. The caller holds the lock. Raises MemoryError and takes nothing."""
        self.collect()
        parts, left = list[Places](), count
        while left and self._free:
            last = self._free.pop()
            if len(last) > left:
                self._free.append(last[left:])
                last = last[:left]
            parts.append(last)
            left -= len(last)
        try:
            end = self._end + left
            if end > ROWS_MAX:
                raise MemoryError(f"a process has at most {ROWS_MAX} rows of a table")
            for column in (*self.columns, self.stamps):
                column.extend(max(0, end - column.length))  # an earlier attempt may have left some
        except MemoryError:
            self._free += parts
            raise
        parts.append(np.arange(self._end, end))
        self._end = end
        return np.concatenate(parts) if len(parts) > 1 else parts[0]

    def give_back(self, places: Sequence[Places]) -> None:
        """Return positions that nothing reads any more; from any thread, with any lock."""
        self._returned.append(places)

    def collect(self) -> None:
        """Free the memory of positions that were given back. The caller holds the lock."""
        while self._returned:
            places = np.sort(np.concatenate(self._returned.popleft()))
            if len(places):
                for column in (*self.columns, self.stamps):
                    column.clear(places)
                self._free.append(places)


class RowArenas:
    """The arenas of a model's tables, shared by all slots of a process."""

    def __init__(self, spec: ModelSpec) -> None:
        tables = zip(spec.layouts[0].tables, spec.tables, strict=True)
        self.tables = [RowArena(layout, told.rule, shared=True) for layout, told in tables]

    def collect(self) -> None:
        """Free the memory of slots that have left."""
        for arena in self.tables:
            with arena.lock:
                arena.collect()
