"""Memory for received frames, bounded for the whole process whatever its callers send."""

from __future__ import annotations

import threading
from typing import Final

import numpy as np

#: Limit in bytes of all bodies being received or applied; a single one may be larger.
STAGED_BYTES_MAX: Final = 512 * 2**20


class Staging:
    """Accounts for memory. A caller that would exceed the limit waits, and its socket is not read."""

    def __init__(self, bytes_max: int = STAGED_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._changed = threading.Condition()

    def take(self, size: int) -> memoryview:
        """Return `size` bytes of writable memory, to be returned with `give_back`."""
        with self._changed:
            self._changed.wait_for(lambda: not self._bytes or self._bytes + size <= self._bytes_max)
            self._bytes += size
        try:
            # Not a bytearray, which would be filled with zeros first.
            return np.empty(size, np.uint8).data if size else memoryview(b"")
        except MemoryError:
            self.give_back(size)
            raise

    def give_back(self, size: int) -> None:
        """Return the memory of a `take`."""
        with self._changed:
            self._bytes -= size
            self._changed.notify_all()
