"""Places of rows by their ids: sorted arrays, 12 bytes a row.

New ids go to a small sorted rest, which is merged into the others when it has become a sixteenth of them.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from elastane.tables.growing import GrowingArray
from elastane.tables.layout import Ids

#: Limit of the rest, for tables of few rows.
_REST: Final = 4096
ROWS_MAX: Final = 2**31 - 1

Places = NDArray[np.int64]


class RowIndex:
    """Rows have the places 0, 1, 2, ... in the order in which they come."""

    def __init__(self) -> None:
        self._ids = GrowingArray(np.int64)
        self._places = GrowingArray(np.int32)
        self._rest_ids: NDArray[np.int64] = np.zeros(0, np.int64)
        self._rest_places: NDArray[np.int32] = np.zeros(0, np.int32)

    def __len__(self) -> int:
        return self._ids.length + len(self._rest_ids)

    @property
    def bytes(self) -> int:
        return self._ids.bytes + self._places.bytes + self._rest_ids.nbytes + self._rest_places.nbytes

    def find(self, ids: Ids) -> Places:
        """Return the places of ids, in any order; -1 for those that have none."""
        places = _found(self._ids.array, self._places.array, ids)
        if len(self._rest_ids):
            missing = np.flatnonzero(places < 0)
            if len(missing):
                places[missing] = _found(self._rest_ids, self._rest_places, ids[missing])
        return places

    def add(self, ids: Ids) -> Places:
        """Add ids, ascending and none of them here, and return their places. Raises MemoryError."""
        first = len(self)
        if first + len(ids) > ROWS_MAX:
            raise MemoryError(f"a slot has at most {ROWS_MAX} rows of a table")
        places = np.arange(first, first + len(ids), dtype=np.int32)
        rest_ids, rest_places = _merged(self._rest_ids, self._rest_places, ids, places)
        if len(rest_ids) > max(_REST, self._ids.length // 16):
            self._absorb(rest_ids, rest_places)
            rest_ids, rest_places = rest_ids[:0].copy(), rest_places[:0].copy()
        self._rest_ids, self._rest_places = rest_ids, rest_places
        return places.astype(np.int64)

    def entries(self) -> tuple[Ids, Places]:
        """Return all ids, ascending, and their places; copies."""
        ids, places = _merged(self._ids.array, self._places.array, self._rest_ids, self._rest_places)
        return ids, places.astype(np.int64)

    def _absorb(self, ids: NDArray[np.int64], places: NDArray[np.int32]) -> None:
        all_ids, all_places = _merged(self._ids.array, self._places.array, ids, places)
        count = len(all_ids) - self._ids.length
        self._ids.extend(count)
        self._places.extend(count)
        self._ids.array[:] = all_ids
        self._places.array[:] = all_places


def _found(known: NDArray[np.int64], places: NDArray[np.int32], ids: Ids) -> Places:
    if not len(known):
        return np.full(len(ids), -1, np.int64)
    at = np.searchsorted(known, ids)
    np.minimum(at, len(known) - 1, out=at)
    return np.where(known[at] == ids, places[at], -1).astype(np.int64)


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
