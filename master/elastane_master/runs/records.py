"""Stored form of the training service's events, for replay."""

from __future__ import annotations

import msgspec

from elastane_master.decisions.runs.events import AnyRunsEvent
from elastane_master.store.format import decoded


class StoredRunsEvent(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """An event that changed the state. now: the time it was decided at, seconds since the Unix epoch."""

    now: float
    event: AnyRunsEvent


_encoder = msgspec.msgpack.Encoder()
_events = msgspec.msgpack.Decoder(StoredRunsEvent)


def encode(stored: StoredRunsEvent) -> bytes:
    return _encoder.encode(stored)


def decode_event(payload: bytes) -> StoredRunsEvent:
    """Raises StoreFormatUnknown."""
    return decoded(_events, payload, "a stored event of a run")
