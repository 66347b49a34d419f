"""Conversion between events of a job's history and messages, field by field, by name.

The messages of history.proto have the names of the structs' tags and fields; a test compares them.
"""

from __future__ import annotations

import typing

from elastane_proto import message_codec
from elastane_proto.history.events import AnyHistoryEvent, HistoryEvent, UnknownEvent
from elastane_proto.history.fold import DatedEvent
from elastane_proto.history.upgrade import upgraded
from elastane_proto.v1 import ring_pb2

_STRUCTS: dict[str, type[HistoryEvent]] = {
    struct.__struct_config__.tag: struct for struct in typing.get_args(AnyHistoryEvent)
}
"""By the name of the field of `Event`."""


def fill(message: ring_pb2.Event, event: HistoryEvent) -> None:
    """Fill the message of an event."""
    if isinstance(event, UnknownEvent):
        return
    detail = getattr(message, str(event.__struct_config__.tag))
    detail.SetInParent()  # of an event without fields too
    message_codec.fill(detail, event)


def dated_event_of(message: ring_pb2.Event) -> DatedEvent:
    """Return an event that a master of any release served."""
    return DatedEvent(
        message.sequence,
        message.time.seconds + message.time.nanos / 1e9,
        message.kind,
        message.worker_id,
        message.reason,
        message.generation,
        message.step,
        event_of(message),
    )


def event_of(message: ring_pb2.Event) -> HistoryEvent:
    """Return the event; for one from an older master, what its text contains."""
    name = message.WhichOneof("event")
    if name is None:
        return upgraded(message.kind, message.worker_id, message.reason, message.step, message.facts)
    return message_codec.read(_STRUCTS[name], getattr(message, name))
