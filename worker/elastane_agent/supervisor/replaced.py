"""Workers whose places in the ring were given to others: what their agent does when they have left. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from elastane_proto.history import events as history
from elastane_proto.history_wire import dated_event_of
from elastane_proto.v1 import ring_pb2


def barred_seconds(worker: str, events: Iterable[ring_pb2.Event], now: float) -> float | None:
    """Return for how long a worker that has left must not be started again; None: it was not replaced.

    It was a straggler if that is what is told of it last; 0.0: it may be started at once. now: seconds since
    the Unix epoch. Raises nothing: events that are not known are passed over.
    """
    until: float | None = None
    for dated in map(dated_event_of, events):
        match dated.event:
            case history.StragglerReplaced(worker=name, barred_seconds=seconds) if name == worker:
                until = dated.time + seconds
            case history.WorkerJoined(worker=name) | history.WorkerReturned(worker=name) if name == worker:
                until = None
    return None if until is None else max(0.0, until - now)
