"""Index of one slot's rows, from ids to positions: sorted arrays, 12 bytes per row.

New ids are added to a small sorted array, which is merged into the main one when it reaches a sixteenth of
its size. The merge works in place, in parts from the end, so that no second copy is needed.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from elastane.tables.growing import GrowingArray
from elastane.tables.layout import Ids

#: Size of the small array at which it is merged, for tables with few rows.
_REST: Final = 4096
#: Number of entries merged at a time.
_PART: Final = 65_536

Places = NDArray[np.int64]


class RowIndex:
    """Positions of rows by their ids."""

    def __init__(self) -> None:
        self._most = _Sorted()
        self._rest_ids, self._rest_places = np.empty(0, np.int64), np.empty(0, np.int32)

    def __len__(self) -> int:
        return self._most.count + len(self._rest_ids)

    @property
    def bytes(self) -> int:
        return self._most.bytes + self._rest_ids.nbytes + self._rest_places.nbytes

    def find(self, ids: Ids) -> Places:
        """Return the positions of ids, given in any order; -1 for unknown ids."""
        places = np.full(len(ids), -1, np.int64)
        if self._most.count:
            _find(*self._most.entries(), ids, places)
        if len(self._rest_ids) and len(missing := (places < 0).nonzero()[0]):
            found = np.full(len(missing), -1, np.int64)
            _find(self._rest_ids, self._rest_places, ids[missing], found)
            places[missing] = found
        return places

    def add(self, ids: Ids, places: Places) -> None:
        """Add new ids, ascending, with their positions.

        Raises MemoryError and leaves the index unchanged.
        """
        if len(self._rest_ids) + len(ids) > max(_REST, self._most.count // 16):
            self._most.merge(self._rest_ids, self._rest_places)
            self._rest_ids, self._rest_places = np.empty(0, np.int64), np.empty(0, np.int32)
        rest = np.concatenate([self._rest_ids, ids])
        order = rest.argsort(kind="stable")  # a stable sort merges two sorted runs
        rest_places = np.concatenate([self._rest_places, places], dtype=np.int32, casting="unsafe")
        self._rest_ids, self._rest_places = rest.take(order), rest_places.take(order)

    def entries(self) -> tuple[Ids, Places]:
        """Return copies of all ids, ascending, and of their positions."""
        ids, places = _merged(*self._most.entries(), self._rest_ids, self._rest_places)
        return ids, places.astype(np.int64)


class _Sorted:
    """Sorted array of `count` ids and their positions."""

    def __init__(self) -> None:
        self.count = 0
        self._ids, self._places = GrowingArray(np.int64), GrowingArray(np.int32)

    @property
    def bytes(self) -> int:
        return self.count * (self._ids.dtype.itemsize + self._places.dtype.itemsize)

    def entries(self) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """Return views of ids and positions (see `GrowingArray.array`)."""
        return self._ids.array[: self.count], self._places.array[: self.count]

    def merge(self, ids: NDArray[np.int64], places: NDArray[np.int32]) -> None:
        """Add entries with new ids, ascending. Raises MemoryError and leaves the array unchanged."""
        total = self.count + len(ids)
        for array in (self._ids, self._places):
            array.extend(max(0, total - array.length))  # an earlier attempt may have left some
        all_ids, all_places = self._ids.array, self._places.array
        end, left = self.count, len(ids)
        while left:  # once nothing is left to add, the rest is already in place
            start = max(0, end - _PART)
            first = int(np.searchsorted(ids[:left], all_ids[start])) if start else 0
            merged = _merged(all_ids[start:end], all_places[start:end], ids[first:left], places[first:left])
            all_ids[start + first : end + left], all_places[start + first : end + left] = merged
            end, left = start, first
        self.count = total


def _find(sorted_ids: NDArray[np.int64], sorted_places: NDArray[np.int32], ids: Ids, places: Places) -> None:
    """Write the positions of the ids that are among the sorted ones."""
    at = sorted_ids.searchsorted(ids)
    found = sorted_ids.take(at, mode="clip") == ids
    np.copyto(places, sorted_places.take(at, mode="clip"), where=found)


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
