"""Converts messages to plain values for JSON: numbers as numbers, times in ISO 8601, durations in seconds.

The output of `--json` is meant for jq and pandas, but protobuf's own JSON writes int64 as strings and enums
by their long names. JSON has no infinity and no NaN, such as the loss of a diverged training: both become
None, like absent values.
"""

from __future__ import annotations

import math
from typing import Any

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from elastane_proto.message_codec import enum_word


def to_plain(message: Message) -> dict[str, Any]:
    """Return a message as a dict of all its fields; absent messages and optional fields are None."""
    return {field.name: _field(message, field) for field in message.DESCRIPTOR.fields}


def _field(message: Message, field: Any) -> Any:
    value = getattr(message, field.name)
    if field.is_repeated:
        entry = field.message_type
        if entry is not None and entry.GetOptions().map_entry:
            kind = entry.fields_by_name["value"]
            return {str(key): _scalar(kind, item) for key, item in value.items()}
        return [_scalar(field, item) for item in value]
    if field.has_presence and not message.HasField(field.name):
        return None
    return _scalar(field, value)


def _scalar(field: Any, value: Any) -> Any:
    if isinstance(value, Timestamp):
        return value.ToJsonString()
    if isinstance(value, Duration):
        return value.ToTimedelta().total_seconds()
    if isinstance(value, Message):
        return to_plain(value)
    if isinstance(value, bytes):
        return value.hex()
    if field.enum_type is not None:
        return enum_word(field.enum_type, value)
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
