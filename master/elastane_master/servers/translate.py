"""Between messages and values: what all services need (times, ranges, checks of names)."""

from __future__ import annotations

import re

from google.protobuf import duration_pb2, timestamp_pb2

from elastane_master.decisions.events import Rejection
from elastane_master.jobs.limits import clip
from elastane_proto import message_codec
from elastane_proto.message_codec import Field

NAME_CHARACTERS_MAX = 253
"""Limit of a worker id, a dataset's name and a request id."""
DEVICE_CHARACTERS_MAX = 80
"""Limit of the name of a device type."""

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._:@+-]*")
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")

NAMES = {"worker": "worker_id", "rank": "virtual_rank", "ready_order": "extra.ready_order"}
"""Paths in messages of fields that structs call otherwise."""
RANGE = {"start": "range.start", "end": "range.end"}


def seconds(duration: duration_pb2.Duration, field: str) -> float:
    """Seconds of a Duration; raises Rejection when it is negative."""
    try:
        return message_codec.seconds_of(duration, field)
    except message_codec.InvalidFieldError as error:
        raise invalid_field(error) from None


def invalid_field(error: message_codec.InvalidFieldError) -> Rejection:
    """The refusal of a message with a field that its struct cannot hold."""
    return Rejection("invalid_argument", str(error), hint=error.allowed, field=error.field)


def duration(value: float) -> duration_pb2.Duration:
    """A Duration of `value` seconds."""
    message = duration_pb2.Duration()
    message_codec.set_duration(message, value)
    return message


def timestamp(value: float) -> timestamp_pb2.Timestamp:
    """A Timestamp of `value` seconds since the Unix epoch; what lies outside its range is cut."""
    message = timestamp_pb2.Timestamp()
    message_codec.set_timestamp(message, value)
    return message


def checked_name(name: str, field: str) -> str:
    """`name` itself; raises Rejection unless it could stand in a path, a key or on a terminal unharmed."""
    checked_length(name, field)
    if not _NAME.fullmatch(name):
        raise Rejection(
            "invalid_argument",
            f"{name[:80]!r} cannot be {field}",
            hint=f"{field} has letters, digits and . _ - : @ + only, and begins with a letter, a digit or _",
            field=field,
        )
    return name


def checked_length(name: str, field: str) -> str:
    """`name` itself; raises Rejection when it is empty or too long."""
    if not name or len(name) > NAME_CHARACTERS_MAX:
        raise Rejection(
            "invalid_argument",
            f"{field} is empty" if not name else f"{field} has {len(name)} characters",
            hint=f"set {field} to 1 to {NAME_CHARACTERS_MAX} characters",
            field=field,
        )
    return name


def checked_request_id(request_id: str) -> str:
    """`request_id` itself, which may be empty; raises Rejection when it is too long."""
    return checked_length(request_id, "request_id") if request_id else ""


def checked_count(asked: int, field: str, maximum: int, what: str, default: int) -> int:
    """`asked`, or the default for 0; raises Rejection beyond the maximum. what: it in words."""
    if asked > maximum:
        raise Rejection("invalid_argument", what, hint=f"ask for at most {maximum}", field=field)
    return asked or default


def shown(text: str, characters_max: int = 4000) -> str:
    """Words of a worker that people will read: not too many, and none that would steer their terminal."""
    return _CONTROLS.sub("\N{REPLACEMENT CHARACTER}", clip(text, characters_max))


SHOWN = Field(read=shown)
"""A text that people will read."""
