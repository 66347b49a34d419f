"""What of a job is stored, as bytes: events for replay, commits for the audit, notes for people."""

from __future__ import annotations

import msgspec

from elastane_master.decisions.effects import Commit, Note, TaskCommit
from elastane_master.decisions.events import AnyEvent


class StoredEvent(msgspec.Struct, array_like=True, frozen=True):
    """An event that changed the state. now: the time it was decided at, seconds since the Unix epoch."""

    now: float
    event: AnyEvent


class StoredCommit(msgspec.Struct, array_like=True, frozen=True):
    """An entry of the committed history. now: when it was committed."""

    now: float
    commit: Commit | TaskCommit


class StoredNote(msgspec.Struct, array_like=True, frozen=True):
    """A decision and its reason. sequence: grows by one with each note of the job, from 1."""

    sequence: int
    now: float
    note: Note


_encoder = msgspec.msgpack.Encoder()
_events = msgspec.msgpack.Decoder(StoredEvent)
_commits = msgspec.msgpack.Decoder(StoredCommit)
_notes = msgspec.msgpack.Decoder(StoredNote)


def encode(value: StoredEvent | StoredCommit | StoredNote) -> bytes:
    return _encoder.encode(value)


def decode_event(payload: bytes) -> StoredEvent:
    return _events.decode(payload)


def decode_commit(payload: bytes) -> StoredCommit:
    return _commits.decode(payload)


def decode_note(payload: bytes) -> StoredNote:
    return _notes.decode(payload)
