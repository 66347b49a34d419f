"""Commits and events of the newest writes, kept for a store that loses what it acknowledged.

A store that fsyncs once a second, or is replaced by its replica, forgets its last writes when its host
dies. The state is in the master's memory and goes into the next snapshot; commits and events are in none.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

NumberedEvent = tuple[int, bytes]
"""An event's sequence number and its payload."""


_encoder = msgspec.msgpack.Encoder()
_commits = msgspec.msgpack.Decoder(list[bytes])


@dataclass(frozen=True, slots=True)
class Told:
    """What a write told people: commits and events, in order."""

    history: Sequence[bytes] = ()
    events: Sequence[NumberedEvent] = ()

    @property
    def size(self) -> int:
        return sum(map(len, self.history)) + sum(len(payload) for _, payload in self.events)


@dataclass(frozen=True, slots=True)
class _Kept:
    """Of one write. history: its commits in one piece, for thousands of small ones weigh twice as much."""

    sequence: int
    at: float
    history: bytes
    events: Sequence[NumberedEvent]
    size: int

    @property
    def told(self) -> Told:
        return Told(_commits.decode(self.history), self.events)


@dataclass(slots=True)
class KeptGroups:
    """What the writes of the last `seconds` told, at most `bytes_max` of it. Times are monotonic seconds."""

    seconds: float
    bytes_max: int
    _writes: deque[_Kept] = field(default_factory=deque)
    _size: int = 0
    #: Sequence number of the newest write that told something and was dropped.
    _dropped: int = 0

    def keep(self, sequence: int, told: Sequence[Told], now: float) -> None:
        """The write `sequence` is acknowledged."""
        if size := sum(one.size for one in told):
            history = _encoder.encode([commit for one in told for commit in one.history])
            events = tuple(event for one in told for event in one.events)
            self._writes.append(_Kept(sequence, now, history, events, size))
            self._size += size
        while self._writes and (now - self._writes[0].at > self.seconds or self._size > self.bytes_max):
            dropped = self._writes.popleft()
            self._size -= dropped.size
            self._dropped = dropped.sequence

    def take_after(self, stored: int) -> tuple[list[Told], bool]:
        """What the writes after number `stored` told, and whether some of it was kept no longer."""
        lost: list[Told] = []
        while self._writes and self._writes[-1].sequence > stored:
            write = self._writes.pop()
            self._size -= write.size
            lost.insert(0, write.told)
        return lost, self._dropped > stored
