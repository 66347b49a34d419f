"""What was written last, in case the store loses it: history and events are nowhere else.

The state of a job can always be written again from memory. A commit goes into the history once and is then
forgotten by the master, so a store that loses acknowledged writes would leave a hole in it that nobody can
fill. A server with appendfsync everysec that loses power loses about a second, a promoted replica what it was
behind: the writes of the last while are enough.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

NumberedEvent = tuple[int, bytes]
"""An event's sequence number and its payload."""


@dataclass(frozen=True, slots=True)
class Retained:
    """One write that the store has acknowledged. at: time.monotonic() of the acknowledgement."""

    sequence: int
    history: Sequence[bytes]
    events: Sequence[NumberedEvent]
    at: float

    @property
    def bytes(self) -> int:
        return sum(map(len, self.history)) + sum(len(payload) for _, payload in self.events)


class RetainedWrites:
    """The newest writes in order, for `seconds` and at most `bytes_max`; the very last one always."""

    def __init__(self, seconds: float, bytes_max: int) -> None:
        self._seconds = seconds
        self._bytes_max = bytes_max
        self._writes: deque[Retained] = deque()
        self._bytes = 0

    def add(self, write: Retained) -> None:
        """The newest write; what has become too old or too much is dropped."""
        self._writes.append(write)
        self._bytes += write.bytes
        while len(self._writes) > 1 and (
            self._bytes > self._bytes_max or write.at - self._writes[0].at > self._seconds
        ):
            self._bytes -= self._writes.popleft().bytes

    def after(self, sequence: int) -> list[Retained]:
        """Those that a store has lost whose last write is `sequence`, oldest first; they are kept no more."""
        lost = [write for write in self._writes if write.sequence > sequence]
        self._writes = deque(write for write in self._writes if write.sequence <= sequence)
        self._bytes = sum(write.bytes for write in self._writes)
        return lost
