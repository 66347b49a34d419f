"""The log of a rank on disk: a chain of segments, whose middle is dropped once the log exceeds its cap.

A segment is a file named by the offset of its first byte among all that the rank wrote. The first four stay,
of the others the last four: head and tail are kept, offsets never change, and a reader that finds a gap
between two segments knows how many bytes it misses. Nothing is rewritten, so readers need no lock. Standard
library alone: shims write through it.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

#: Segments that stay at the beginning, and as many at the end.
KEPT_SEGMENTS: Final = 4
CAP_BYTES_MIN: Final = 2 * KEPT_SEGMENTS

_PREFIX: Final = "log."


def segment_path(folder: Path, offset: int) -> Path:
    """Return the file of the segment that begins at an offset."""
    return folder / f"{_PREFIX}{offset:016d}"


def segment_offsets(folder: Path) -> list[int]:
    """Return the offsets at which the segments of a folder begin, ascending; [] without a log."""
    with contextlib.suppress(FileNotFoundError):
        names = (entry.name for entry in os.scandir(folder) if entry.name.startswith(_PREFIX))
        return sorted(int(name.removeprefix(_PREFIX)) for name in names)
    return []


def log_bytes(folder: Path) -> int:
    """Return where the files of a log end."""
    offsets = segment_offsets(folder)
    return offsets[-1] + segment_path(folder, offsets[-1]).stat().st_size if offsets else 0


class LogWriter:
    """Writes the log of one rank. At most `cap_bytes` are on disk at any time.

    A full disk does not stop the rank: bytes that cannot be written are dropped like those of the middle, and
    writing goes on when there is room again.
    """

    def __init__(self, folder: Path, cap_bytes: int) -> None:
        assert cap_bytes >= CAP_BYTES_MIN
        self._folder = folder
        self._segment_bytes = cap_bytes // (2 * KEPT_SEGMENTS)
        self._file = -1
        self._used_bytes = 0
        self._head_segments = 0
        self._tail: list[Path] = []
        self.offset = 0
        """Bytes that the rank has written, whether they were kept or not."""

    def write(self, data: bytes) -> None:
        """Append bytes of the rank."""
        view = memoryview(data)
        while view:
            part = view[: self._segment_bytes - (self._used_bytes if self._file >= 0 else 0)]
            if not part:
                self._close_segment()
                continue
            written = self._append(part)
            self.offset += written
            view = view[written:]

    def close(self) -> None:
        """Close the last segment."""
        self._close_segment()

    def _append(self, part: memoryview) -> int:
        """Write at most the rest of a segment, and return how many bytes of the rank have been handled."""
        try:
            if self._file < 0:
                self._open_segment()
            written = os.write(self._file, part)
        except OSError:  # dropped; the next write begins a segment of its own, after the gap
            self._close_segment()
            return len(part)
        self._used_bytes += written
        return written

    def _open_segment(self) -> None:
        is_head = self._head_segments < KEPT_SEGMENTS
        while not is_head and len(self._tail) >= KEPT_SEGMENTS:
            self._tail.pop(0).unlink(missing_ok=True)
        path = segment_path(self._folder, self.offset)
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        if is_head:
            self._head_segments += 1
        else:
            self._tail.append(path)

    def _close_segment(self) -> None:
        if self._file >= 0:
            os.close(self._file)
        self._file, self._used_bytes = -1, 0
