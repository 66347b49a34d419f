"""Events of a job's history as messages, and messages as events: field by field, by their names.

The messages of history.proto have the names of the structs' tags and fields; a test holds them together.
"""

from __future__ import annotations

import typing
from typing import Any

from elastane_proto.history import events
from elastane_proto.history.events import AnyHistoryEvent, HistoryEvent, UnknownEvent
from elastane_proto.history.fold import Told
from elastane_proto.history.upgrade import upgraded
from elastane_proto.v1 import history_pb2, ring_pb2

_NESTED: dict[type, Any] = {
    events.Place: history_pb2.RingPlace,
    events.Vote: history_pb2.GradientVote,
    events.Prices: history_pb2.HourPrices,
    events.Spent: history_pb2.JobSpent,
}
_STRUCTS: dict[str, type[HistoryEvent]] = {
    struct.__struct_config__.tag: struct for struct in typing.get_args(AnyHistoryEvent)
}
"""By the name of the field of `Event`."""
_TYPES: dict[type, dict[str, Any]] = {
    struct: {name: hints[name] for name in struct.__struct_fields__}
    for struct in (*_STRUCTS.values(), *_NESTED)
    if (hints := typing.get_type_hints(struct))
} | {struct: {} for struct in _STRUCTS.values() if not struct.__struct_fields__}


def fill(message: ring_pb2.Event, event: HistoryEvent) -> None:
    """Sets what was decided in the message of the event."""
    if isinstance(event, UnknownEvent):
        return
    detail = getattr(message, str(event.__struct_config__.tag))
    detail.SetInParent()  # of an event without fields too
    for name in event.__struct_fields__:
        _set(detail, name, getattr(event, name))


def told_of(message: ring_pb2.Event) -> Told:
    """An event that a master served, of whatever release it is."""
    return Told(
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
    """What was decided; of a master of before, as far as the text tells."""
    name = message.WhichOneof("event")
    if name is None:
        return upgraded(message.kind, message.worker_id, message.reason, message.step, message.facts)
    return _struct(_STRUCTS[name], getattr(message, name))


def _set(message: Any, name: str, value: Any) -> None:
    if isinstance(value, tuple):
        getattr(message, name).extend([_plain(item) for item in value])
    elif type(value) in _NESTED:
        getattr(message, name).CopyFrom(_plain(value))
    elif value is not None:
        setattr(message, name, value)


def _plain(value: Any) -> Any:
    """A nested struct as a message; anything else as it is."""
    message = _NESTED.get(type(value))
    if message is None:
        return value
    return message(**{name: getattr(value, name) for name in value.__struct_fields__})


def _struct(struct: Any, message: Any) -> Any:
    values = []
    for name, hint in _TYPES[struct].items():
        value = getattr(message, name)
        if typing.get_origin(hint) is tuple:
            item = typing.get_args(hint)[0]
            value = tuple(_struct(item, one) for one in value) if item in _NESTED else tuple(value)
        elif hint in _NESTED:
            value = _struct(hint, value)
        elif type(None) in typing.get_args(hint) and not message.HasField(name):
            value = None
        values.append(value)
    return struct(*values)
