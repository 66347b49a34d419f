"""Commits and events of recent writes, kept in memory in case the store loses acknowledged writes.

A store that fsyncs once per second, or is replaced by its replica, loses its last writes when its host dies.
The state is in the master's memory and goes into the next snapshot; commits and events are in no snapshot.
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
class Entries:
    """Commits and events of a write, in order."""

    history: Sequence[bytes] = ()
    events: Sequence[NumberedEvent] = ()

    @property
    def size(self) -> int:
        return sum(map(len, self.history)) + sum(len(payload) for _, payload in self.events)


@dataclass(frozen=True, slots=True)
class _Kept:
    """One kept write.

    commit: number of its last commit; count: number of its commits. history: its commits encoded as one
    piece, because thousands of small objects take twice the memory.
    """

    commit: int
    count: int
    event: int
    at: float
    history: bytes
    events: Sequence[NumberedEvent]
    size: int


@dataclass(slots=True)
class KeptGroups:
    """Writes of the last `seconds`, at most `bytes_max` in total. Times are monotonic seconds.

    commit, event: numbers of the newest commit and event that are no longer kept.
    """

    seconds: float
    bytes_max: int
    commit: int = 0
    event: int = 0
    _writes: deque[_Kept] = field(default_factory=deque)
    _size: int = 0

    def keep(self, commit: int, event: int, entries: Sequence[Entries], now: float) -> None:
        """Add an acknowledged write and drop outdated ones. commit, event: the newest numbers after it."""
        if size := sum(one.size for one in entries):
            commits = [payload for one in entries for payload in one.history]
            events = tuple(one for each in entries for one in each.events)
            history = _encoder.encode(commits)
            self._writes.append(_Kept(commit, len(commits), event, now, history, events, size))
            self._size += size
        while self._writes and (now - self._writes[0].at > self.seconds or self._size > self.bytes_max):
            dropped = self._writes.popleft()
            self._size -= dropped.size
            self.commit, self.event = dropped.commit, dropped.event

    def beyond(self, commit: int, event: int) -> Entries:
        """Return all kept commits and events with higher numbers than these."""
        history: list[bytes] = []
        events: list[NumberedEvent] = []
        for write in self._writes:
            if write.commit > commit:
                # Of a write that the store has in part, only the later commits are missing.
                commits = _commits.decode(write.history)
                history += commits[max(0, commit - (write.commit - write.count)) :]
            events += [one for one in write.events if one[0] > event]
        return Entries(history, events)
