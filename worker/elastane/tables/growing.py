"""Arrays that grow in place.

Doubling an array by copying temporarily needs three times its memory. So large arrays are separate memory
mappings, which the kernel can move without copying, and of which only written pages take memory. Small ones
are ordinary arrays, because the number of mappings of a process is limited (65,530 in Linux); each leaves a
hole in the heap when it is outgrown.
"""

from __future__ import annotations

import mmap
from typing import Any, Final
from weakref import WeakSet

import numpy as np
from numpy.typing import DTypeLike, NDArray

#: Minimum size of a mapping in bytes: usually, and once the process has many mappings.
MAPPED_BYTES: Final = 2**16
MAPPED_BYTES_OF_MANY: Final = 2**18
MAPPINGS_MANY: Final = 16_384

_mapped: WeakSet[GrowingArray] = WeakSet()


class GrowingArray:
    """An array of `length` entries with `width` elements each, or one if width is 0; new entries are zero."""

    def __init__(self, dtype: DTypeLike, width: int = 0) -> None:
        self.dtype = np.dtype(dtype)
        self.length = 0
        self._width = width
        self.entry_bytes = self.dtype.itemsize * max(width, 1)
        self._map: mmap.mmap | None = None
        self._all = self._shaped(np.zeros(0, self.dtype))

    @property
    def array(self) -> NDArray[Any]:
        """View of the entries. If a view still exists at the next `extend`, that raises BufferError."""
        return self._all[: self.length]

    @property
    def bytes(self) -> int:
        """Size of the entries in bytes."""
        return self.length * self.entry_bytes

    def extend(self, count: int) -> None:
        """Append `count` entries of zeros. Raises MemoryError and leaves the array unchanged."""
        wanted = self.length + count
        if wanted > len(self._all):
            self._reserve(max(wanted, len(self._all) + len(self._all) // 4))
        self.length = wanted

    def clear(self, places: NDArray[np.int64]) -> None:
        """Set entries, ascending, to zero; whole pages of them no longer take memory."""
        self._all[places] = 0
        if self._map is None or not len(places):
            return
        ends = np.append((np.diff(places) != 1).nonzero()[0], len(places) - 1)
        first = places[np.append(0, ends[:-1] + 1)] * self.entry_bytes
        last = (places[ends] + 1) * self.entry_bytes
        first, last = -(-first // mmap.PAGESIZE) * mmap.PAGESIZE, last // mmap.PAGESIZE * mmap.PAGESIZE
        for start, end in zip(first[first < last].tolist(), last[first < last].tolist(), strict=True):
            self._map.madvise(mmap.MADV_DONTNEED, start, end - start)

    def _reserve(self, entries: int) -> None:
        size = entries * self.entry_bytes
        mapped_bytes = MAPPED_BYTES if len(_mapped) < MAPPINGS_MANY else MAPPED_BYTES_OF_MANY
        if self._map is None and size < mapped_bytes:
            larger = self._shaped(np.zeros(entries * max(self._width, 1), self.dtype))
            larger[: self.length] = self.array
            self._all = larger
            return
        size = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        try:
            if self._map is None:
                mapped = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
                # Huge pages would round the size of every array up to two megabytes.
                mapped.madvise(mmap.MADV_NOHUGEPAGE)
                larger = self._viewed(mapped)
                larger[: self.length] = self.array
                self._map, self._all = mapped, larger
                _mapped.add(self)
            else:
                self._all = self._shaped(np.zeros(0, self.dtype))  # the mapping has no view now
                try:
                    self._map.resize(size)
                finally:
                    self._all = self._viewed(self._map)
        except OSError as error:
            raise MemoryError(f"no memory for {size} bytes: {error}") from error

    def _viewed(self, mapped: mmap.mmap) -> NDArray[Any]:
        count = len(mapped) // self.entry_bytes * max(self._width, 1)
        return self._shaped(np.frombuffer(mapped, self.dtype, count))

    def _shaped(self, flat: NDArray[Any]) -> NDArray[Any]:
        return flat.reshape(-1, self._width) if self._width else flat
