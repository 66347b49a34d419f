"""The newest notes of a job in memory, bounded by their number and by the ring members they list."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Final

from elastane_master.jobs.records import StoredNote
from elastane_proto.history.events import RingAnnounced

MEMBERS_MAX: Final = 200_000
"""Limit of members in all kept rings together, about 100 bytes each: 20 ring changes of a job of 10,000
workers."""


class RecentNotes:
    """Notes in order; older ones are in the store. Always has the newest, however large its ring."""

    def __init__(self, notes_max: int, members_max: int = MEMBERS_MAX) -> None:
        self._notes: deque[StoredNote] = deque()
        self._notes_max = notes_max
        self._members_max = members_max
        self._members = 0

    def extend(self, notes: Iterable[StoredNote]) -> None:
        """Add newer notes."""
        for note in notes:
            self._notes.append(note)
            self._members += _members(note)
            while len(self._notes) > self._notes_max or (
                self._members > self._members_max and len(self._notes) > 1
            ):
                self._members -= _members(self._notes.popleft())

    def __len__(self) -> int:
        return len(self._notes)

    def __iter__(self) -> Iterator[StoredNote]:
        return iter(self._notes)

    def __getitem__(self, place: int) -> StoredNote:
        return self._notes[place]


def _members(stored: StoredNote) -> int:
    event = stored.note.event
    return len(event.members) if isinstance(event, RingAnnounced) else 0
