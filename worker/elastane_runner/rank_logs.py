"""Reads the logs of ranks from an offset on, while they are being written or afterwards.

An offset counts the bytes that the rank wrote, kept or not. Where the middle of a log was dropped, a line
says how many bytes are missing. A reader keeps one chunk in memory, and blocks neither rank nor readers.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final, NamedTuple

from elastane_runner.log_segments import segment_offsets, segment_path
from elastane_runner.process_records import EXIT, read_record

CHUNK_BYTES_MAX: Final = 64 * 1024
POLL_SECONDS: Final = 0.05
_LAST_LINE_BYTES: Final = 4096


class LogChunk(NamedTuple):
    """A part of a log. offset: of its first byte. next_offset: where to go on.

    dropped_bytes: bytes that the chunk stands for without having them; its data is a line that says so.
    """

    offset: int
    data: bytes
    next_offset: int
    dropped_bytes: int = 0


def read(folder: Path, offset: int, limit_bytes: int = CHUNK_BYTES_MAX) -> LogChunk:
    """Read at most `limit_bytes` of a rank's log from an offset on; no data: there are none yet.

    folder: of the rank. Raises ValueError for a negative offset, OSError.
    """
    if offset < 0:
        raise ValueError(f"the offset {offset} is negative")
    ended_bytes = _ended_bytes(folder)  # before the segments: what is missing then will not come any more
    while True:
        offsets = segment_offsets(folder)
        try:
            chunk = _read_segments(folder, offsets, offset, min(limit_bytes, CHUNK_BYTES_MAX), ended_bytes)
        except FileNotFoundError:  # the segment was dropped since it was listed
            continue
        # A listing that is made while segments are begun may lack one and have its successor.
        if not chunk.dropped_bytes or segment_offsets(folder) == offsets:
            return chunk


async def follow(
    folder: Path, offset: int = 0, *, poll_seconds: float = POLL_SECONDS
) -> AsyncIterator[LogChunk]:
    """Yield a rank's log from an offset on, as it is written.

    Ends when the rank has ended. Raises FileNotFoundError if the folder is removed before its end was read.
    """
    was_there = False
    while True:
        was_there = was_there or folder.exists()
        has_ended = _ended_bytes(folder) is not None  # before it is read: afterwards nothing is added
        chunk = await asyncio.to_thread(read, folder, offset)
        if chunk.next_offset > offset:
            yield chunk
            offset = chunk.next_offset
        elif has_ended:
            return
        elif was_there and not folder.exists():
            raise FileNotFoundError(f"it was removed after {offset} bytes were read")
        else:
            await asyncio.sleep(poll_seconds)


def size_bytes(folder: Path) -> int:
    """Return how many bytes a rank has written so far, including dropped ones."""
    if (ended_bytes := _ended_bytes(folder)) is not None:
        return ended_bytes
    for offset in reversed(segment_offsets(folder)):
        with contextlib.suppress(FileNotFoundError):
            return offset + segment_path(folder, offset).stat().st_size
    return 0


def last_line(folder: Path) -> bytes:
    """Return the last line of a rank's log that is not empty, of long ones the end; b"" if there is none."""
    text = b""
    for offset in reversed(segment_offsets(folder)):
        try:
            with segment_path(folder, offset).open("rb") as segment:
                segment.seek(max(0, os.fstat(segment.fileno()).st_size - _LAST_LINE_BYTES))
                text = segment.read() + text
        except FileNotFoundError:
            break
        if b"\n" in text.strip() or len(text) >= _LAST_LINE_BYTES:
            break
    return text.strip().rpartition(b"\n")[2][-_LAST_LINE_BYTES:].strip()


def _read_segments(
    folder: Path, offsets: list[int], offset: int, limit_bytes: int, ended_bytes: int | None
) -> LogChunk:
    begun = [one for one in offsets if one <= offset]
    if begun:
        with segment_path(folder, begun[-1]).open("rb") as segment:
            segment.seek(offset - begun[-1])
            if data := segment.read(limit_bytes):
                return LogChunk(offset, data, offset + len(data))
    later = [one for one in offsets if one > offset]
    goes_on = later[0] if later else ended_bytes
    if goes_on is None or goes_on <= offset:
        return LogChunk(offset, b"", offset)
    dropped_bytes = goes_on - offset
    return LogChunk(offset, b"\n[%d bytes left out]\n" % dropped_bytes, goes_on, dropped_bytes)


def _ended_bytes(folder: Path) -> int | None:
    """Bytes that the rank wrote in all; None while it may write more."""
    record = read_record(folder / EXIT)
    return None if record is None else int(record["log_bytes"])
