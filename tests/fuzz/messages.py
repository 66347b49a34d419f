"""Protobuf messages as nobody sends them: built from the descriptor, or mutated on the wire."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

NAMES = ("victim", "other", "w0", "w1", "train", "tasks", "closed", "")
TEXTS = st.one_of(
    st.sampled_from(NAMES),
    st.sampled_from(("../../etc/passwd", "a/b", "{job}", "\x00", "\u202e", "x" * 300, "0-0", "-", "0-1", "")),
    st.text(max_size=8),
)
_EDGES = {
    8: (-(2**63), -(2**31), -1, 0, 1, 2, 3, 2**31, 2**63 - 1),
    4: (-(2**31), -1, 0, 1, 2, 3, 2**31 - 1),
}
_UNSIGNED = {8: (0, 1, 2, 3, 2**63, 2**64 - 1), 4: (0, 1, 2, 3, 1000, 2**31, 2**32 - 1)}
_FLOATS = (0.0, -1.0, 1.0, 1e300, float("inf"), float("-inf"), float("nan"))
_SCALARS: dict[int, SearchStrategy[Any]] = {
    FieldDescriptor.TYPE_INT64: st.sampled_from(_EDGES[8]),
    FieldDescriptor.TYPE_INT32: st.sampled_from(_EDGES[4]),
    FieldDescriptor.TYPE_SINT32: st.sampled_from(_EDGES[4]),
    FieldDescriptor.TYPE_SINT64: st.sampled_from(_EDGES[8]),
    FieldDescriptor.TYPE_UINT64: st.sampled_from(_UNSIGNED[8]),
    FieldDescriptor.TYPE_FIXED64: st.sampled_from(_UNSIGNED[8]),
    FieldDescriptor.TYPE_UINT32: st.sampled_from(_UNSIGNED[4]),
    FieldDescriptor.TYPE_FIXED32: st.sampled_from(_UNSIGNED[4]),
    FieldDescriptor.TYPE_DOUBLE: st.sampled_from(_FLOATS),
    FieldDescriptor.TYPE_FLOAT: st.sampled_from(_FLOATS),
    FieldDescriptor.TYPE_BOOL: st.booleans(),
    FieldDescriptor.TYPE_STRING: TEXTS,
    FieldDescriptor.TYPE_BYTES: st.binary(max_size=12),
    FieldDescriptor.TYPE_ENUM: st.sampled_from((0, 1, 2, 3, 4, 99, -1)),
}
#: Where random values would never get past the first check: these are the right ones most of the time.
LIKELY: dict[str, SearchStrategy[Any]] = {
    "job": st.sampled_from(("job", "job", "job", "job", "", "none")),
    "name": st.sampled_from(("victim", "victim", "other", "none", "a b", "", "x" * 64)),
    "dataset": st.sampled_from(("tasks", "tasks", "tasks", "none", "train", "")),
    "generation": st.sampled_from((0, 1, 1, 2, 3, -1, 2**62)),
    "step": st.sampled_from((0, 0, 1, 2, 3, -1, 2**62)),
    "applied_step": st.sampled_from((0, 0, 1, 2, 3, -1, 2**62)),
    "virtual_rank": st.sampled_from((0, 1, 2, 2**32 - 1)),
    "epoch": st.sampled_from((0, 0, 1, 2, -1, 2**62)),
    "state_digest": st.sampled_from((0, 0, 0, 1)),
    "settings_digest": st.sampled_from((0, 0, 0, 1)),
    "index": st.sampled_from((0, 1, 2, 3, -1, 2**62)),
    "attempt": st.sampled_from((0, 1, 1, 2, 2**32 - 1)),
    "ests": st.sampled_from((0, 1, 2, 3, 2**32 - 1)),
}


@st.composite
def messages(draw: DrawFn, descriptor: Descriptor, depth: int = 0) -> Message:
    """A message of the type, each field set now and then."""
    message = GetMessageClass(descriptor)()
    for field in descriptor.fields:
        if not draw(st.sampled_from((True, True, False) if depth < 4 else (False,))):
            continue
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            _fill_map(draw, message, field)
            continue
        value = _values(field, depth)
        if field.is_repeated:
            getattr(message, field.name).extend(draw(st.lists(value, max_size=3)))
        elif field.message_type is not None:
            getattr(message, field.name).CopyFrom(draw(value))
        else:
            setattr(message, field.name, draw(value))
    return message


def _values(field: FieldDescriptor, depth: int) -> SearchStrategy[Any]:
    if field.message_type is not None:
        return messages(field.message_type, depth + 1)
    likely = LIKELY.get(field.name)
    if likely is not None and field.type != FieldDescriptor.TYPE_BYTES:
        return likely
    return _SCALARS[field.type]


def _fill_map(draw: DrawFn, message: Message, field: FieldDescriptor) -> None:
    key, value = field.message_type.fields_by_name["key"], field.message_type.fields_by_name["value"]
    for name in draw(st.lists(_values(key, 0), max_size=2)):
        getattr(message, field.name)[name] = draw(_values(value, 0))


@st.composite
def mutated(draw: DrawFn, payloads: SearchStrategy[bytes]) -> bytes:
    """Bytes as a broken or hostile peer sends them: flipped, cut, doubled, text that is no UTF-8."""
    payload = bytearray(draw(payloads))
    changes: list[Callable[[], None]] = []

    def place() -> int:
        return draw(st.integers(0, max(0, len(payload) - 1)))

    def flip() -> None:
        if payload:
            payload[place()] ^= 1 << draw(st.integers(0, 7))

    def cut() -> None:
        del payload[place() :]

    def insert() -> None:
        at = place()
        payload[at:at] = draw(st.binary(min_size=1, max_size=6))

    def spoil_text() -> None:
        found = payload.find(b"job")
        if found >= 0:
            payload[found : found + 3] = b"\xff\xfe\x80"

    def double() -> None:
        payload.extend(payload[place() :])

    changes = draw(st.lists(st.sampled_from((flip, cut, insert, spoil_text, double)), min_size=1, max_size=3))
    for change in changes:
        change()
    return bytes(payload)


@st.composite
def spoiled(draw: DrawFn, template: Message) -> Message:
    """A right message in which up to three fields, however deep, are something else."""
    message = type(template)()
    message.CopyFrom(template)
    for _ in range(draw(st.integers(0, 3)) if message.DESCRIPTOR.fields else 0):
        part, depth = message, 0
        while True:
            field = draw(st.sampled_from(list(part.DESCRIPTOR.fields)))
            single = field.message_type is not None and not field.is_repeated
            if not single or depth == 3 or draw(st.booleans()):
                break
            part, depth = getattr(part, field.name), depth + 1
        part.ClearField(field.name)
        if field.is_repeated and field.message_type is None:
            getattr(part, field.name).extend(draw(st.lists(_values(field, depth), max_size=3)))
        elif not field.is_repeated and field.message_type is not None:
            getattr(part, field.name).CopyFrom(draw(_values(field, depth)))
        elif not field.is_repeated:
            setattr(part, field.name, draw(_values(field, depth)))
        elif field.message_type.GetOptions().map_entry:
            _fill_map(draw, part, field)
        else:
            getattr(part, field.name).extend(draw(st.lists(_values(field, depth), max_size=3)))
    return message


def wire(template: Message) -> SearchStrategy[bytes]:
    """Bytes of a message: nearly right, made of anything, or mutated."""
    nearly = spoiled(template).map(lambda message: message.SerializeToString())
    anything = messages(template.DESCRIPTOR).map(lambda message: message.SerializeToString())
    return st.one_of(nearly, nearly, nearly, anything, mutated(nearly), st.binary(max_size=40))
