"""Structs as protobuf messages and messages as structs, field by field, by their names.

A field of the struct has the message's name for it. Three things have another form on the wire:

    x_seconds: float        x: google.protobuf.Duration
    Literal["d0", "d1"]     an enum DeterminismLevel: DETERMINISM_LEVEL_D0, DETERMINISM_LEVEL_D1
    None                    an optional field that is not set
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable
from functools import cache
from typing import Any, Final, TypeVar

import msgspec
from google.protobuf import duration_pb2
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.message import Message

SUFFIX: Final = "_seconds"
NANOS: Final = 1_000_000_000

Struct = TypeVar("Struct")


class InvalidFieldError(ValueError):
    """A field of a message has a value that its struct cannot hold.

    field: its name in the message. allowed: what it may be, in words.
    """

    def __init__(self, field: str, problem: str, allowed: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.allowed = allowed


def fill(message: Message, struct: Any) -> None:
    """Set the fields of a message from a struct's, nested structs and tuples of them included."""
    for name, put in _writers(type(struct), message.DESCRIPTOR):
        value = getattr(struct, name)
        if value is not None:
            put(message, value)


def read(struct: type[Struct], message: Message, *, zero_is_default: bool = False) -> Struct:
    """Return a message as a struct of this type.

    zero_is_default: fields that are zero, empty or unset in the message get the default of the struct, if it
    has one; flags stay as they are sent. Raises InvalidFieldError.
    """
    values = {}
    for name, has_default, has, get in _readers(struct, message.DESCRIPTOR):
        if not (zero_is_default and has_default) or has(message):
            values[name] = get(message)
    return struct(**values)


def set_duration(message: duration_pb2.Duration, seconds: float) -> None:
    """Set a Duration."""
    message.seconds, message.nanos = divmod(round(seconds * NANOS), NANOS)


def seconds_of(message: duration_pb2.Duration, field: str) -> float:
    """Return a Duration in seconds. Raises InvalidFieldError if it is negative."""
    seconds = message.seconds + message.nanos / NANOS
    if seconds < 0:
        raise InvalidFieldError(field, f"{seconds:g} s is negative", "use a duration of 0 or more")
    return seconds


Put = Callable[[Any, Any], None]
Has = Callable[[Any], bool]
Get = Callable[[Any], Any]


@cache
def _writers(struct: type, descriptor: Descriptor) -> tuple[tuple[str, Put], ...]:
    return tuple((name, _writer(*_field(name, descriptor))) for name in _hints(struct))


@cache
def _readers(struct: type, descriptor: Descriptor) -> tuple[tuple[str, bool, Has, Get], ...]:
    optional = {field.name for field in msgspec.structs.fields(struct) if not field.required}
    found = []
    for name, hint in _hints(struct).items():
        told, field = _field(name, descriptor)
        found.append((name, name in optional, _presence(told, field), _reader(told, field, hint)))
    return tuple(found)


@cache
def _hints(struct: type) -> dict[str, Any]:
    hints = typing.get_type_hints(struct)
    return {name: hints[name] for name in struct.__struct_fields__}  # type: ignore[attr-defined]


def _field(name: str, descriptor: Descriptor) -> tuple[str, FieldDescriptor]:
    told = name
    if told not in descriptor.fields_by_name and told.endswith(SUFFIX):
        told = told.removesuffix(SUFFIX)
    return told, descriptor.fields_by_name[told]


def _writer(told: str, field: FieldDescriptor) -> Put:
    if field.message_type is duration_pb2.Duration.DESCRIPTOR:
        return lambda message, value: set_duration(getattr(message, told), value)
    if field.enum_type is not None:
        numbers = {word: number for number, word in _words(field.enum_type).items()}
        return lambda message, value: setattr(message, told, numbers[value])
    if field.is_repeated:
        if field.message_type is None:
            return lambda message, value: getattr(message, told).extend(value)
        if field.message_type.GetOptions().map_entry:
            return lambda message, value: getattr(message, told).update(value)

        def extend(message: Any, value: Any) -> None:
            for item in value:
                fill(getattr(message, told).add(), item)

        return extend
    if field.message_type is not None:

        def put(message: Any, value: Any) -> None:
            nested = getattr(message, told)
            nested.SetInParent()  # also if every field of it is zero
            fill(nested, value)

        return put
    return lambda message, value: setattr(message, told, value)


def _presence(told: str, field: FieldDescriptor) -> Has:
    if field.has_presence:
        return lambda message: bool(message.HasField(told))
    if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        return lambda message: True
    return lambda message: bool(getattr(message, told))


def _reader(told: str, field: FieldDescriptor, hint: Any) -> Get:
    if field.message_type is duration_pb2.Duration.DESCRIPTOR:
        return lambda message: seconds_of(getattr(message, told), told)
    if field.enum_type is not None:
        return _enum_reader(told, field.enum_type)
    if field.is_repeated:
        if field.message_type is None:
            return lambda message: tuple(getattr(message, told))
        if field.message_type.GetOptions().map_entry:
            return lambda message: dict(getattr(message, told))
        item = typing.get_args(hint)[0]
        return lambda message: tuple(read(item, one) for one in getattr(message, told))
    optional = type(None) in typing.get_args(hint)
    if field.message_type is not None:
        [struct] = (kind for kind in _kinds(hint) if kind is not type(None))
        get: Get = lambda message: read(struct, getattr(message, told))  # noqa: E731
    else:
        get = lambda message: getattr(message, told)  # noqa: E731
    return (lambda message: get(message) if message.HasField(told) else None) if optional else get


def _kinds(hint: Any) -> tuple[Any, ...]:
    is_union = isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union
    return typing.get_args(hint) if is_union else (hint,)


def _enum_reader(told: str, enum: EnumDescriptor) -> Get:
    words = _words(enum)
    allowed = " or ".join(word.upper().replace("_", "-") for word in words.values())

    def get(message: Any) -> str:
        number = getattr(message, told)
        if number not in words:
            problem = f"{number} is not a known value"
            raise InvalidFieldError(told, problem, f"use {allowed}, or a newer release")
        return words[number]

    return get


@cache
def _words(enum: EnumDescriptor) -> dict[int, str]:
    """Values of an enum as the struct's words, without the unspecified one, which is 0."""
    return {value.number: enum_word(enum, value.number) for value in enum.values if value.number}


def enum_word(enum: EnumDescriptor, number: int) -> str:
    """Return the short name in lower case: JOB_PHASE_RUNNING -> "running"; the number if it is unknown."""
    value = enum.values_by_number.get(number)
    if value is None:
        return str(number)
    prefix = "".join(f"_{char}" if char.isupper() else char.upper() for char in enum.name).lstrip("_")
    return value.name.removeprefix(f"{prefix}_").lower()
