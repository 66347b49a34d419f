"""Memory for new rows and blocks: a request that exceeds it is refused before any part of it is done.

Otherwise the kernel would kill the process, and then each process that takes over its slots.
"""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Final

from elastane.runtime.est_memory import left_in_cgroup_bytes

#: Memory reserved for frames, and for snapshots being written.
RESERVED_BYTES: Final = 64 * 2**20
_PAGES: Final = Path("/proc/self/statm")


class Room:
    """Memory of this process. bytes_max: its limit; 0: that of its control group, if any."""

    def __init__(self, bytes_max: int = 0) -> None:
        self._bytes_max = bytes_max

    def left_bytes(self) -> int | None:
        """Return the memory left for rows and blocks; None without a limit, or if it cannot be read."""
        if not self._bytes_max:
            left = left_in_cgroup_bytes()
            return None if left is None else left - RESERVED_BYTES
        try:
            used = int(_PAGES.read_text().split()[1]) * mmap.PAGESIZE
        except (OSError, ValueError, IndexError):
            return None
        return self._bytes_max - RESERVED_BYTES - used
