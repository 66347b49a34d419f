"""Places of rows by their ids: sorted arrays, 12 bytes a row.

New ids go to a small sorted rest, which is merged into the others when it has become a sixteenth of them:
in place, part by part from the end, so that no second copy of them is needed for a moment.
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
        self._most = _Sorted()
        self._rest_ids, self._rest_places = np.empty(0, np.int64), np.empty(0, np.int32)

    def __len__(self) -> int:
        return self._most.count + len(self._rest_ids)

    @property
    def bytes(self) -> int:
        return self._most.bytes + self._rest_ids.nbytes + self._rest_places.nbytes

    def find(self, ids: Ids) -> Places:
        """Return the places of ids, in any order; -1 for those that have none."""
        known, places = np.empty(len(ids), np.int64), np.empty(len(ids), np.int32)
        self.nearest(ids, known, places)
        found = places.astype(np.int64)
        found[known != ids] = -1
        return found

    def nearest(self, ids: Ids, known: Ids, places: NDArray[np.int32]) -> None:
        """Write the places of ids, in any order, into `places`. `known` gets the ids that have these places:
        others than those asked for, where these have none; it is compared for many indices at once."""
        if not self._most.count:
            _nearest(self._rest_ids, self._rest_places, ids, known, places)
            return
        _nearest(*self._most.entries(), ids, known, places)
        if len(self._rest_ids) and len(missing := (known != ids).nonzero()[0]):
            at = self._rest_ids.searchsorted(ids[missing])
            known[missing] = self._rest_ids.take(at, mode="clip")
            places[missing] = self._rest_places.take(at, mode="clip")

    def add(self, ids: Ids) -> Places:
        """Add ids, ascending and none of them here, and return their places.

        Raises MemoryError, and has the same rows then.
        """
        rest_count, count = len(self._rest_ids), len(ids)
        first = self._most.count + rest_count
        if first + count > ROWS_MAX:
            raise MemoryError(f"a slot has at most {ROWS_MAX} rows of a table")
        if rest_count + count > max(_REST, self._most.count // 16):
            self._most.merge(self._rest_ids, self._rest_places)
            self._rest_ids, self._rest_places = np.empty(0, np.int64), np.empty(0, np.int32)
        places = np.arange(first, first + count)
        rest = np.concatenate([self._rest_ids, ids])
        order = rest.argsort(kind="stable")  # of two sorted runs: it merges them
        rest_places = np.concatenate([self._rest_places, places], dtype=np.int32, casting="unsafe")
        self._rest_ids, self._rest_places = rest.take(order), rest_places.take(order)
        return places

    def entries(self) -> tuple[Ids, Places]:
        """Return all ids, ascending, and their places; copies."""
        ids, places = _merged(*self._most.entries(), self._rest_ids, self._rest_places)
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


def _nearest(
    sorted_ids: NDArray[np.int64],
    sorted_places: NDArray[np.int32],
    ids: Ids,
    known: Ids,
    places: NDArray[np.int32],
) -> None:
    if not len(sorted_ids):
        known.fill(-1)
        places.fill(-1)
        return
    at = sorted_ids.searchsorted(ids)
    sorted_ids.take(at, out=known, mode="clip")
    sorted_places.take(at, out=places, mode="clip")


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
