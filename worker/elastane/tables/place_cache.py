"""Positions of the rows that were used last, whichever slots they are in: found at once for all of them.

Only what is absent here is looked up in the slots' own indexes. Memory is bounded: 6 MiB for a table.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from elastane.tables.layout import Ids
from elastane.tables.row_index import Places
from elastane_slots.mixing import GOLDEN

#: An id has so many places to be in: with a quarter of all in use, next to none finds all of its own taken.
_WAYS: Final = 8
_ENTRIES_MIN: Final = 2**12
ENTRIES_MAX: Final = 2**19


class PlaceCache:
    """Bounded; what it forgets is only slower. Ids are not negative. Not thread-safe."""

    def __init__(self) -> None:
        #: By slot, whose rows these are: a slot that has left and come back has its rows elsewhere.
        self._holders: dict[int, int] = {}
        self._clear(_ENTRIES_MIN)

    def admit(self, holders: Iterable[tuple[int, int]]) -> None:
        """Forget all unless the rows of slots are where they were. holders: (slot, number of its rows'
        holder), which is never used again."""
        known = self._holders
        for slot, number in holders:
            if (before := known.get(slot)) != number:
                if before is not None:
                    self._clear(len(self._ids.reshape(-1)))
                    known.clear()
                known[slot] = number

    def find(self, ids: Ids) -> Places:
        """Return the positions of ids; -1 where they are not known here."""
        groups = self._groups(ids)
        ways = (self._ids.take(groups, 0) == ids[:, None]).argmax(1)
        ways += groups * _WAYS
        places: Places = self._places.take(ways).astype(np.int64)
        places[self._ids.reshape(-1).take(ways) != ids] = -1
        return places

    def add(self, ids: Ids, places: Places) -> None:
        """Remember the positions of ids that were not found."""
        size = len(self._places)
        if (self._added + len(ids)) * 4 > size and size < ENTRIES_MAX:
            self._clear(min(ENTRIES_MAX, 1 << ((self._added + len(ids)) * 8).bit_length()))
        self._added += len(ids)
        groups = self._groups(ids)
        free = self._ids.take(groups, 0) < 0
        ways = np.where(free.any(1), free.argmax(1), (np.arange(len(ids)) + self._added) % _WAYS)
        ways += groups * _WAYS
        self._ids.reshape(-1)[ways] = ids
        self._places[ways] = places

    def _groups(self, ids: Ids) -> NDArray[np.int64]:
        mixed = ids.view(np.uint64) * np.uint64(GOLDEN)
        mixed >>= self._shift
        return mixed.view(np.int64)

    def _clear(self, entries: int) -> None:
        groups = entries // _WAYS
        self._shift = np.uint64(64 - (groups.bit_length() - 1))
        self._ids = np.full((groups, _WAYS), -1, np.int64)
        self._places = np.zeros(entries, np.int32)
        self._added = 0
