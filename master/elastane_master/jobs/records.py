"""Stored form of a job, as bytes: events for replay, commits for the audit, notes for people."""

from __future__ import annotations

import msgspec

from elastane_master.decisions.effects import Commit, Note, TaskCommit
from elastane_master.decisions.events import AnyEvent
from elastane_master.store.format import decoded
from elastane_proto.history.events import UnknownEvent
from elastane_proto.history.fold import DatedEvent
from elastane_proto.history.upgrade import upgraded


class StoredEvent(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """An event that changed the state. now: the time it was decided at, seconds since the Unix epoch."""

    now: float
    event: AnyEvent


class StoredCommit(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """An entry of the committed history. now: when it was committed."""

    now: float
    commit: Commit | TaskCommit


class StoredNote(msgspec.Struct, array_like=True, frozen=True):
    """A decision and its reason. sequence: grows by one with each note of the job, from 1."""

    sequence: int
    now: float
    note: Note

    @property
    def dated(self) -> DatedEvent:
        """Return the dated event for readers of history."""
        return self.note.dated(self.now, self.sequence)


class _TextOfNote(msgspec.Struct, frozen=True, tag="Note"):
    """A note without its event, as stored by masters before typed events."""

    kind: str
    reason: str
    worker: str = ""
    generation: int = 0
    step: int = 0
    facts: dict[str, str] = {}

    @property
    def note(self) -> Note:
        event = upgraded(self.kind, self.worker, self.reason, self.step, self.facts)
        return Note(self.kind, self.reason, self.worker, self.generation, self.step, self.facts, event)


class _StoredText(msgspec.Struct, array_like=True, frozen=True):
    sequence: int
    now: float
    note: _TextOfNote


class LoggedTask(msgspec.Struct, frozen=True, gc=False):
    """The fields of a step's task that a curve needs; the others are skipped in decoding."""

    virtual_rank: int
    start: int
    end: int
    metrics: dict[str, float] = {}


class LoggedStep(msgspec.Struct, frozen=True, tag="Commit"):
    """The fields of a `Commit` that a curve needs."""

    step: int
    epoch: int
    generation: int
    tasks: tuple[tuple[str, LoggedTask], ...]


class _LoggedTasks(msgspec.Struct, frozen=True, tag="TaskCommit"):
    """A `TaskCommit`, in which nothing is logged."""


class _Logged(msgspec.Struct, array_like=True, frozen=True):
    now: float
    commit: LoggedStep | _LoggedTasks


_encoder = msgspec.msgpack.Encoder()
_events = msgspec.msgpack.Decoder(StoredEvent)
_commits = msgspec.msgpack.Decoder(StoredCommit)
_notes = msgspec.msgpack.Decoder(StoredNote)
_texts = msgspec.msgpack.Decoder(_StoredText)
_logged = msgspec.msgpack.Decoder(_Logged)


def encode(value: StoredEvent | StoredCommit | StoredNote) -> bytes:
    return _encoder.encode(value)


def decode_event(payload: bytes) -> StoredEvent:
    """Raises StoreFormatUnknown, as the others do."""
    return decoded(_events, payload, "a stored event")


def decode_commit(payload: bytes) -> StoredCommit:
    return decoded(_commits, payload, "a stored commit")


def decode_logged(payload: bytes) -> tuple[float, LoggedStep | None]:
    """Time of a commit and the values logged in it; None for tasks of a dynamic dataset.

    Reads no sample, which is most of a commit. Raises as `decode_commit`.
    """
    stored = decoded(_logged, payload, "a stored commit")
    return stored.now, stored.commit if isinstance(stored.commit, LoggedStep) else None


def decode_note(payload: bytes) -> StoredNote:
    """Decode a note; without a known typed event (older or newer masters), it is upgraded from its text."""
    try:
        stored = _notes.decode(payload)
        if not isinstance(stored.note.event, UnknownEvent):
            return stored
    except (msgspec.DecodeError, UnicodeDecodeError):
        pass  # fall through to the readable part
    text = decoded(_texts, payload, "a stored note")
    return StoredNote(text.sequence, text.now, text.note.note)
