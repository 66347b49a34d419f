"""What of a job is stored, as bytes: events for replay, commits for the audit, notes for people."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from elastane_master.decisions.effects import Commit, Note, TaskCommit
from elastane_master.decisions.events import AnyEvent
from elastane_master.store.errors import StoreFormatUnknown

T = TypeVar("T")


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


class LoggedTask(msgspec.Struct, frozen=True, gc=False):
    """What a curve needs of a task of a step; the rest of it is passed over."""

    virtual_rank: int
    start: int
    end: int
    metrics: dict[str, float] = {}


class LoggedStep(msgspec.Struct, frozen=True, tag="Commit"):
    """What a curve needs of a `Commit`."""

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
_logged = msgspec.msgpack.Decoder(_Logged)


def encode(value: StoredEvent | StoredCommit | StoredNote) -> bytes:
    return _encoder.encode(value)


def decode_event(payload: bytes) -> StoredEvent:
    """Raises StoreFormatUnknown, as the others do."""
    return _decoded(_events, payload, "event")


def decode_commit(payload: bytes) -> StoredCommit:
    return _decoded(_commits, payload, "commit")


def decode_logged(payload: bytes) -> tuple[float, LoggedStep | None]:
    """When a commit was made, and what was logged in it; None for tasks of a dynamic dataset.

    Reads no sample, which is most of a commit. Raises as `decode_commit`.
    """
    stored = _decoded(_logged, payload, "commit")
    return stored.now, stored.commit if isinstance(stored.commit, LoggedStep) else None


def decode_note(payload: bytes) -> StoredNote:
    return _decoded(_notes, payload, "note")


def _decoded(decoder: msgspec.msgpack.Decoder[T], payload: bytes, what: str) -> T:
    try:
        return decoder.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise StoreFormatUnknown(f"a stored {what} cannot be read: {error}") from error
