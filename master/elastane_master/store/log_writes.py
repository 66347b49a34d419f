"""Writes of a job's log: what one call of the script stores, and how the store stands if it refuses one.

`log` decides what is written and when; the script is `fenced_scripts.WRITE`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from elastane_master.store.errors import Damage
from elastane_master.store.format import FORMAT, Chain
from elastane_master.store.kept_writes import Entries, NumberedEvent
from elastane_master.store.keys import JobKeys
from elastane_master.store.wholeness import show_chain


@dataclass(slots=True)
class Group:
    """Records that become durable together.

    opened_at: the event loop's time of its first append. end: the position after its last one.
    """

    durable: asyncio.Future[None]
    opened_at: float
    records: list[bytes] = field(default_factory=list)
    history: list[bytes] = field(default_factory=list)
    events: list[NumberedEvent] = field(default_factory=list)
    bytes: int = 0
    end: int = 0

    @property
    def entries(self) -> Entries:
        return Entries(self.history, self.events)


_NOTHING = Entries()


@dataclass(frozen=True, slots=True)
class Write:
    """One call of the script: groups of records, or the snapshot that replaces them.

    chain: its end after this write. commit, event: the newest numbers after it. lost: commits and events of
    earlier writes that the store no longer has; they come first, and a snapshot replaces their records.
    expected: numbers of commits and events that should exist, if some are lost for good. cut: commits with
    higher numbers are removed.
    """

    sequence: int
    mode: Literal["write", "replace", "check"]
    chain: Chain
    commit: int
    event: int
    groups: Sequence[Group] = ()
    batch: bytes = b""
    snapshot: bytes = b""
    lost: Entries = _NOTHING
    expected: tuple[int, int] | tuple[()] = ()
    cut: int | None = None

    @property
    def records(self) -> int:
        """Number of records that become durable with this write."""
        return sum([len(group.records) for group in self.groups])

    @property
    def size_bytes(self) -> int:
        """Size of the snapshot, or of the records if there is none."""
        return len(self.snapshot) or sum([group.bytes for group in self.groups])

    def arguments(
        self, token: int, stamp: int, *, history_entries_max: int, events_max: int, state_version: int
    ) -> list[bytes | int | str]:
        """ARGV of the script. For the keywords see `LogOptions`."""
        entries = [self.lost, *(group.entries for group in self.groups)]
        history = [commit for one in entries for commit in one.history]
        events = [part for one in entries for event in one.events for part in event]
        bounds = (history_entries_max, events_max, FORMAT, state_version)
        return [
            token,
            self.sequence,
            self.mode,
            self.batch,
            self.snapshot,
            *bounds,
            stamp,
            show_chain(self.chain),
            self.commit - len(history) + 1,
            "" if self.cut is None else self.cut,
            *(self.expected or ("", "")),
            len(history),
            *history,
            *events,
        ]


class Standing(NamedTuple):
    """State of a store that refused a write; for the fields see the script."""

    sequence: int
    history: int
    newest_commit: str
    events: int
    newest_event: str
    changed: str

    @classmethod
    def of(cls, reply: str) -> Standing:
        _, sequence, history, newest_commit, events, newest_event, changed = reply.split(":")
        return cls(int(sequence), int(history), newest_commit, int(events), newest_event, changed.strip())

    def foreign(self, keys: JobKeys) -> list[Damage]:
        """Return streams at the job's keys that hold another job's data."""
        streams = (
            (keys.history, keys.commits_in(self.newest_commit)),
            (keys.events, keys.event_in(self.newest_event)),
        )
        return [Damage(key, 1, "it is another job's") for key, number in streams if number is None]


def gone(
    key: str, what: str, stored: int, newest: int, kept_beyond: int, length: int, expected: int
) -> list[Damage]:
    """Return the damages of a stream: entries that are neither stored nor kept.

    stored, newest: numbers of the last stored entry, and of the last one ever written. kept_beyond: entries
    with higher numbers are kept in memory. length, expected: how many are stored, and at least were when
    `newest` was written.
    """
    if stored < kept_beyond:
        return [Damage(key, stored + 1, f"{what}s {stored + 1} to {kept_beyond} are gone")]
    missing = expected - (newest - stored) - length
    return [Damage(key, 0, f"{missing} {what}s before {what} {stored} are gone")] if missing > 0 else []
