"""Places of rows by their ids: sorted arrays, 12 bytes a row.

New ids go to a small sorted rest, which is merged into the others when it has become a sixteenth of them.
Both are merged in place, part by part from the end, so that no second copy of them is needed for a moment.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from elastane.tables.growing import GrowingArray
from elastane.tables.layout import Ids

#: Limit of the rest, for tables of few rows.
_REST: Final = 4096
#: Entries that are merged at a time.
_PART: Final = 65_536
ROWS_MAX: Final = 2**31 - 1

Places = NDArray[np.int64]


class RowIndex:
    """Rows have the places 0, 1, 2, ... in the order in which they come."""

    def __init__(self) -> None:
        self._most, self._rest = _Sorted(), _Sorted()

    def __len__(self) -> int:
        return self._most.count + self._rest.count

    @property
    def bytes(self) -> int:
        return self._most.bytes + self._rest.bytes

    def find(self, ids: Ids) -> Places:
        """Return the places of ids, in any order; -1 for those that have none."""
        if not self._most.count:
            return self._rest.find(ids)
        places = self._most.find(ids)
        if self._rest.count and len(missing := (places < 0).nonzero()[0]):
            places[missing] = self._rest.find(ids[missing])
        return places

    def add(self, ids: Ids) -> Places:
        """Add ids, ascending and none of them here, and return their places.

        Raises MemoryError, and has the same rows then.
        """
        first = len(self)
        if first + len(ids) > ROWS_MAX:
            raise MemoryError(f"a slot has at most {ROWS_MAX} rows of a table")
        if self._rest.count + len(ids) > max(_REST, self._most.count // 16):
            self._most.merge(*self._rest.entries())
            self._rest = _Sorted()
        places = np.arange(first, first + len(ids), dtype=np.int32)
        self._rest.merge(ids, places)
        return places.astype(np.int64)

    def entries(self) -> tuple[Ids, Places]:
        """Return all ids, ascending, and their places; copies."""
        ids, places = _merged(*self._most.entries(), *self._rest.entries())
        return ids, places.astype(np.int64)


class _Sorted:
    """`count` ids, ascending, and their places."""

    def __init__(self) -> None:
        self.count = 0
        self._ids, self._places = GrowingArray(np.int64), GrowingArray(np.int32)

    @property
    def bytes(self) -> int:
        return self.count * (self._ids.dtype.itemsize + self._places.dtype.itemsize)

    def entries(self) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """Return ids and places: views, see `GrowingArray.array`."""
        return self._ids.array[: self.count], self._places.array[: self.count]

    def find(self, ids: Ids) -> Places:
        if not self.count:
            return np.full(len(ids), -1, np.int64)
        known, places = self.entries()
        at = known.searchsorted(ids)
        found = places.take(at, mode="clip").astype(np.int64)
        found[known.take(at, mode="clip") != ids] = -1
        return found

    def merge(self, ids: NDArray[np.int64], places: NDArray[np.int32]) -> None:
        """Add entries with other ids, ascending. Raises MemoryError, and has the same entries then."""
        total = self.count + len(ids)
        for array in (self._ids, self._places):
            array.extend(max(0, total - array.length))  # an earlier try may have left some
        all_ids, all_places = self._ids.array, self._places.array
        end, left = self.count, len(ids)
        while left:  # where nothing is left to add, all is in its place
            start = max(0, end - _PART)
            first = int(np.searchsorted(ids[:left], all_ids[start])) if start else 0
            merged = _merged(all_ids[start:end], all_places[start:end], ids[first:left], places[first:left])
            all_ids[start + first : end + left], all_places[start + first : end + left] = merged
            end, left = start, first
        self.count = total


def _merged(
    ids: NDArray[np.int64], places: NDArray[np.int32], new_ids: Ids, new_places: NDArray[np.int32]
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Merge two sorted arrays into new ones."""
    total = len(ids) + len(new_ids)
    at = np.searchsorted(ids, new_ids) + np.arange(len(new_ids))
    old = np.ones(total, np.bool_)
    old[at] = False
    all_ids, all_places = np.empty(total, np.int64), np.empty(total, np.int32)
    all_ids[at], all_places[at] = new_ids, new_places
    all_ids[old], all_places[old] = ids, places
    return all_ids, all_places
