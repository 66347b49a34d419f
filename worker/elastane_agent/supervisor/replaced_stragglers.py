"""Replaced stragglers: when their agent may start them again. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from elastane_proto.history import events as history
from elastane_proto.history_wire import dated_event_of
from elastane_proto.v1 import ring_pb2


def barred_seconds(worker: str, events: Iterable[ring_pb2.Event], now: float) -> float | None:
    """Return for how long a worker that left must not be restarted; None: it was not replaced.

    Its last event decides whether it was replaced; 0.0: it may be restarted at once. now: seconds since the
    Unix epoch. Unknown events are ignored.
    """
    until: float | None = None
    for dated in map(dated_event_of, events):
        match dated.event:
            case history.StragglerReplaced(worker=name, barred_seconds=seconds) if name == worker:
                until = dated.time + seconds
            case history.WorkerJoined(worker=name) | history.WorkerReturned(worker=name) if name == worker:
                until = None
    return None if until is None else max(0.0, until - now)
