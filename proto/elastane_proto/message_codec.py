"""Conversion between structs and protobuf messages, field by field, by name.

A field has the same name in struct and message. Some have a different form on the wire:

    x_seconds: float        x: google.protobuf.Duration
    x_at: float             x: google.protobuf.Timestamp, in seconds since the Unix epoch
    Literal["d0", "d1"]     an enum DeterminismLevel: DETERMINISM_LEVEL_D0, DETERMINISM_LEVEL_D1
    None                    an optional field, or the message that holds it, is not set

The tables of a `Codec` define what names and types do not: other names, fields of nested messages,
checks. A codec builds one function per pair of struct and message, once.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from operator import attrgetter
from typing import Any, Final, TypeVar

import msgspec
from google.protobuf import duration_pb2, timestamp_pb2
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.message import Message

SUFFIXES: Final = ("_seconds", "_at")
NANOS: Final = 1_000_000_000

TIMESTAMP_SECONDS_MAX: Final = 253_402_300_799
"""The last second of the year 9999: a Timestamp can say no later one."""

Struct = TypeVar("Struct")
Convert = Callable[[Any], Any]
Get = Callable[[Any], Any]
Put = Callable[[Any, Any], None]


class InvalidFieldError(ValueError):
    """A field of a message has a value that its struct cannot hold.

    field: its path in the message. allowed: what it may be, in words.
    """

    def __init__(self, field: str, problem: str, allowed: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem
        self.allowed = allowed

    def within(self, holder: str) -> InvalidFieldError:
        """Return the same error for a message that holds this one as its field `holder`."""
        return InvalidFieldError(f"{holder}.{self.field}", self.problem, self.allowed)


@dataclass(frozen=True)
class Field:
    """Mapping of a struct's field that differs from the message's field of the same name.

    path: where it is in the message, "range.start" in a nested one; "": by its name. read: returns the
    struct's value for the message's, after checking it. write: the inverse. get, put: for a field that is not
    made of one value; `get(message)` returns it, `put(message, struct)` sets all that it becomes.
    """

    path: str = ""
    read: Convert | None = None
    write: Convert | None = None
    get: Get | None = None
    put: Put | None = None


Table = Mapping[str, Field | str | None]
"""Fields of a struct; a text: its path; None: the message does not have it."""


class Codec:
    """Maps structs and messages. names: paths of fields of all structs. structs: the tables of some."""

    def __init__(
        self, names: Mapping[str, str] | None = None, structs: Mapping[type, Table] | None = None
    ) -> None:
        self._names = names or {}
        self._structs = structs or {}
        self.reader = cache(self._reader)
        self.writer = cache(self._writer)

    def fill(self, message: Message, struct: Any) -> None:
        """Set the fields of a new message from a struct's, nested structs and tuples of them included."""
        self.writer(type(struct), message.DESCRIPTOR)(message, struct)

    def read(self, struct: type[Struct], message: Message, *, zero_is_default: bool = False) -> Struct:
        """Return a message as a struct of this type. Raises InvalidFieldError; see `reader`."""
        return self.reader(struct, message.DESCRIPTOR, (), zero_is_default)(message)

    def _reader(
        self,
        struct: type[Struct],
        descriptor: Descriptor,
        given: tuple[str, ...] = (),
        zero_is_default: bool = False,
    ) -> Callable[..., Struct]:
        """Return a function that builds the struct from a message; `given`: values of its first fields.

        zero_is_default: fields that are zero, empty or unset in the message get the default of the struct, if
        it has one; flags stay as they are sent.
        """
        assert struct.__struct_fields__[: len(given)] == given  # type: ignore[attr-defined]
        paths: list[str] = []
        converts: list[tuple[int, Convert]] = []
        gets: list[tuple[int, Get]] = []
        for place, (name, hint) in enumerate(_hints(struct).items()):
            if name in given:
                continue
            spec = self._spec(struct, name, descriptor)
            default = _default(struct, name)
            if spec is None:
                gets.append((place, lambda message, default=default: default))
                continue
            get = spec.get
            if get is None:
                field = _field_at(spec.path, descriptor)
                convert = spec.read or self._converter(field, spec.path, hint)
                if type(None) in _kinds(hint):
                    get = _if_present(spec.path, field, _value(spec.path, convert), None)
                elif zero_is_default and default is not msgspec.NODEFAULT:
                    get = _if_present(spec.path, field, _value(spec.path, convert), default)
                else:
                    if convert is not None:
                        converts.append((len(given) + len(paths), convert))
                    paths.append(spec.path)
                    continue
            gets.append((place, get))
        fetch = _fetch(paths)

        if not gets and not converts:
            return lambda message, *values: struct(*values, *fetch(message))

        def read(message: Any, *values: Any) -> Struct:
            found = [*values, *fetch(message)]
            for place, convert in converts:
                found[place] = convert(found[place])
            for place, get in gets:
                found.insert(place, get(message))
            return struct(*found)

        return read

    def _writer(self, struct: type, descriptor: Descriptor) -> Put:
        """Return the function that fills a new message of this type from a struct."""
        plain: dict[str, list[tuple[str, str]]] = {}
        puts: list[Put] = []
        for name, hint in _hints(struct).items():
            spec = self._spec(struct, name, descriptor)
            if spec is None:
                continue
            if spec.put is not None:
                puts.append(spec.put)
                continue
            field = _field_at(spec.path, descriptor)
            if _is_plain(field) and spec.write is None and type(None) not in _kinds(hint):
                holder, _, field_name = spec.path.rpartition(".")
                plain.setdefault(holder, []).append((name, field_name))
            else:
                puts.append(self._put(name, spec, field, hint))
        own = plain.pop("", [])
        puts += [_put_nested(holder, pairs) for holder, pairs in plain.items()]
        return _filling(own, puts)

    def _spec(self, struct: type, name: str, descriptor: Descriptor) -> Field | None:
        spec = self._structs.get(struct, {}).get(name, "")
        if spec is None:
            return None
        if isinstance(spec, str):
            spec = Field(spec)
        if spec.path or spec.get or spec.put:
            return spec
        stems = (name.removesuffix(suffix) for suffix in SUFFIXES)
        for path in (name, self._names.get(name, name), *stems):
            if path.split(".", 1)[0] in descriptor.fields_by_name:
                return Field(path, spec.read, spec.write)
        raise LookupError(f"{descriptor.name} has no field for {struct.__name__}.{name}")

    def _converter(self, field: FieldDescriptor, path: str, hint: Any) -> Convert | None:
        """Return the function from the message's value to the struct's; None if they are the same."""
        if field.enum_type is not None:
            return _enum_converter(path, field.enum_type)
        if field.message_type is duration_pb2.Duration.DESCRIPTOR:
            return lambda value: seconds_of(value, path)
        if field.message_type is timestamp_pb2.Timestamp.DESCRIPTOR:
            return lambda value: value.seconds + value.nanos / NANOS
        if field.is_repeated:
            if field.message_type is None:
                return tuple
            if field.message_type.GetOptions().map_entry:
                # `dict` would ask for the view `keys()` of the map, which is written in Python.
                return lambda values: {key: values[key] for key in values}
            return self._tuple_converter(field.message_type, path, hint)
        if field.message_type is None:
            return None
        [struct] = (kind for kind in _kinds(hint) if kind is not type(None))
        read = self.reader(struct, field.message_type)

        def convert(value: Any) -> Any:
            try:
                return read(value)
            except InvalidFieldError as error:
                raise error.within(path) from None

        return convert

    def _tuple_converter(self, descriptor: Descriptor, path: str, hint: Any) -> Convert:
        read = self.reader(typing.get_args(hint)[0], descriptor)

        def convert(values: Iterable[Any]) -> tuple[Any, ...]:
            try:
                return tuple(map(read, values))
            except InvalidFieldError as error:
                raise error.within(f"{path}[{_first_invalid(read, values)}]") from None

        return convert

    def _put(self, name: str, spec: Field, field: FieldDescriptor, hint: Any) -> Put:
        holder_path, _, field_name = spec.path.rpartition(".")
        set_value = self._setter(field_name, field, hint)
        if holder_path:
            set_in, holder_of = set_value, attrgetter(holder_path)
            set_value = lambda message, value: set_in(holder_of(message), value)  # noqa: E731
        if spec.write is not None:
            return _put_written(name, spec.write, set_value)
        if not field.has_presence:
            return _put_unless_empty(name, set_value)

        def put(message: Any, struct: Any) -> None:
            value = getattr(struct, name)
            if value is not None:
                set_value(message, value)

        return put

    def _setter(self, field_name: str, field: FieldDescriptor, hint: Any) -> Put:
        """Return a function that sets a field of a message."""
        if field.enum_type is not None:
            numbers = {word: number for number, word in enum_words(field.enum_type).items()}
            return lambda message, value: setattr(message, field_name, numbers[value])
        if field.message_type is duration_pb2.Duration.DESCRIPTOR:
            return lambda message, value: set_duration(getattr(message, field_name), value)
        if field.message_type is timestamp_pb2.Timestamp.DESCRIPTOR:
            return lambda message, value: set_timestamp(getattr(message, field_name), value)
        if field.is_repeated:
            if field.message_type is None:
                return lambda message, value: getattr(message, field_name).extend(value)
            if field.message_type.GetOptions().map_entry:
                return lambda message, value: getattr(message, field_name).update(value)
            write_item = self.writer(typing.get_args(hint)[0], field.message_type)

            def extend(message: Any, value: Any) -> None:
                # Filled in place: a message made apart would be copied into its holder.
                add = getattr(message, field_name).add
                for item in value:
                    write_item(add(), item)

            return extend
        if field.message_type is None:
            return lambda message, value: setattr(message, field_name, value)
        [struct] = (kind for kind in _kinds(hint) if kind is not type(None))
        write = self.writer(struct, field.message_type)

        def put(message: Any, value: Any) -> None:
            nested = getattr(message, field_name)
            nested.SetInParent()  # also if every field of it is zero
            write(nested, value)

        return put


def set_duration(message: duration_pb2.Duration, seconds: float) -> None:
    """Set a Duration."""
    message.seconds, message.nanos = divmod(round(seconds * NANOS), NANOS)


def seconds_of(message: duration_pb2.Duration, field: str) -> float:
    """Return a Duration in seconds. Raises InvalidFieldError if it is negative."""
    seconds = message.seconds + message.nanos / NANOS
    if seconds < 0:
        raise InvalidFieldError(field, f"{seconds:g} s is negative", "use a duration of 0 or more")
    return seconds


def set_timestamp(message: timestamp_pb2.Timestamp, value: float) -> None:
    """Set a Timestamp from seconds since the Unix epoch, clamped to the range it has."""
    if not 0.0 <= value <= TIMESTAMP_SECONDS_MAX:
        value = min(max(value, 0.0), TIMESTAMP_SECONDS_MAX)
    message.seconds, message.nanos = divmod(round(value * NANOS), NANOS)


def enum_word(enum: EnumDescriptor, number: int) -> str:
    """Return the short name in lower case: JOB_PHASE_RUNNING -> "running"; the number if it is unknown."""
    value = enum.values_by_number.get(number)
    if value is None:
        return str(number)
    prefix = "".join(f"_{char}" if char.isupper() else char.upper() for char in enum.name).lstrip("_")
    return value.name.removeprefix(f"{prefix}_").lower()


@cache
def enum_words(enum: EnumDescriptor) -> dict[int, str]:
    """Return the short names of all values but the unspecified one, which is 0, by number."""
    return {value.number: enum_word(enum, value.number) for value in enum.values if value.number}


@cache
def _hints(struct: type) -> dict[str, Any]:
    hints = typing.get_type_hints(struct, localns={})  # a field "bytes" is not the type of the others
    return {name: hints[name] for name in struct.__struct_fields__}  # type: ignore[attr-defined]


def _kinds(hint: Any) -> tuple[Any, ...]:
    is_union = isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union
    return typing.get_args(hint) if is_union else (hint,)


def _default(struct: type, name: str) -> Any:
    """Return the default of a field; NODEFAULT without one."""
    [field] = (field for field in msgspec.structs.fields(struct) if field.name == name)
    factory = field.default_factory
    return field.default if factory is msgspec.NODEFAULT else factory()


def _field_at(path: str, descriptor: Descriptor) -> FieldDescriptor:
    holder, _, field_name = path.rpartition(".")
    for name in holder.split(".") if holder else ():
        descriptor = descriptor.fields_by_name[name].message_type
    return descriptor.fields_by_name[field_name]


def _is_plain(field: FieldDescriptor) -> bool:
    """True for a scalar that is zero if it is not set."""
    return not (field.has_presence or field.is_repeated or field.enum_type or field.message_type)


def _fetch(paths: Iterable[str]) -> Callable[[Any], tuple[Any, ...]]:
    """Return a function that gets all these attributes at once."""
    match tuple(paths):
        case ():
            return lambda _: ()
        case (path,):
            get = attrgetter(path)
            return lambda holder: (get(holder),)
        case several:
            return attrgetter(*several)


def _value(path: str, convert: Convert | None) -> Get:
    get = attrgetter(path)
    return get if convert is None else lambda message: convert(get(message))


def _if_present(path: str, field: FieldDescriptor, get: Get, otherwise: Any) -> Get:
    """Return `get` for messages that have the field set, else `otherwise`.

    A field without presence is set if its nested message is, and if there is none, if it is not zero; a flag
    always is.
    """
    holder, _, field_name = path.rpartition(".")
    if holder and not field.has_presence:
        holder, _, field_name = holder.rpartition(".")
    elif not field.has_presence:
        if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
            return get
        return lambda message: get(message) if getattr(message, field_name) else otherwise
    if not holder:
        return lambda message: get(message) if message.HasField(field_name) else otherwise
    holder_of = attrgetter(holder)
    return lambda message: get(message) if holder_of(message).HasField(field_name) else otherwise


def _first_invalid(read: Convert, values: Iterable[Any]) -> int:
    for index, value in enumerate(values):
        try:
            read(value)
        except InvalidFieldError:
            return index
    raise AssertionError("one of them is invalid")


def _put_unless_empty(name: str, set_value: Put) -> Put:
    def put(message: Any, struct: Any) -> None:
        value = getattr(struct, name)
        if value:
            set_value(message, value)

    return put


def _put_written(name: str, write: Convert, set_value: Put) -> Put:
    return lambda message, struct: set_value(message, write(getattr(struct, name)))


def _filling(pairs: Iterable[tuple[str, str]], puts: Iterable[Put]) -> Put:
    """Return a function that sets plain fields, (struct's name, message's name), and then the others."""
    pairs, puts = tuple(pairs), tuple(puts)

    def write(message: Any, struct: Any) -> None:
        for name, field_name in pairs:
            value = getattr(struct, name)
            if value:
                setattr(message, field_name, value)
        for put in puts:
            put(message, struct)

    return write


def _put_nested(holder: str, pairs: Iterable[tuple[str, str]]) -> Put:
    """Return a function that sets plain fields of a nested message, which is set even if all are zero."""
    write, holder_of = _filling(pairs, ()), attrgetter(holder)

    def put(message: Any, struct: Any) -> None:
        nested = holder_of(message)
        nested.SetInParent()
        write(nested, struct)

    return put


def _enum_converter(path: str, enum: EnumDescriptor) -> Convert:
    words = enum_words(enum)
    allowed = " or ".join(word.upper().replace("_", "-") for word in words.values())

    def convert(number: int) -> str:
        if number not in words:
            problem = f"{number} is not a known value"
            raise InvalidFieldError(path, problem, f"use {allowed}, or a newer release")
        return words[number]

    return convert


_BY_NAME: Final = Codec()
fill = _BY_NAME.fill
read = _BY_NAME.read
