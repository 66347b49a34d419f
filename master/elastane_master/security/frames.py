"""Counts the calls begun on a connection, by its HTTP/2 frames (RFC 9113, sections 3.4, 4.1 and 6.2).

Pure. Only the headers of frames are read: parsing calls is gRPC's job. What is not HTTP/2 is not
looked into; none of it counts.
"""

from __future__ import annotations

from typing import Final

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
FRAME_HEADER_BYTES: Final = 9
HEADERS: Final = 0x1
CONTINUATION: Final = 0x9


class CallCounter:
    """Call counter of one connection, from its first byte on.

    calls_max: number of calls that may begin; each answer allows one more.
    """

    def __init__(self, calls_max: int) -> None:
        self._left = calls_max
        self._begun = b""
        self._in_preface = True
        self._skip = 0

    def answered(self) -> None:
        """Allow one more call."""
        self._left += 1

    def allowed(self, data: memoryview) -> int:
        """Return how many of these bytes precede the first surplus call; pass the rest again later."""
        at = 0
        while at < len(data):
            if self._skip:
                at += (passed := min(self._skip, len(data) - at))
                self._skip -= passed
                continue
            wanted = len(PREFACE) if self._in_preface else FRAME_HEADER_BYTES
            before, started_at = self._begun, at
            taken = bytes(data[at : at + wanted - len(self._begun)])
            self._begun, at = self._begun + taken, at + len(taken)
            if self._in_preface and not PREFACE.startswith(self._begun):
                self._skip = 1 << 62
                continue
            if len(self._begun) < wanted:
                break
            if not self._in_preface:
                begins = self._begun[3] == HEADERS
                # CONTINUATION frames are refused: gRPC limits the headers of each frame, but not the number
                # of continuations; a caller with less than 16 KiB of headers needs none.
                if (begins and not self._left) or self._begun[3] == CONTINUATION:
                    self._begun = before
                    return started_at
                self._skip = int.from_bytes(self._begun[:3])
                self._left -= begins
            self._in_preface, self._begun = False, b""
        return len(data)
