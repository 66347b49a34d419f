"""Nested state comes back with the same types and the same bits, or is refused by name."""

from __future__ import annotations

import enum
import io
import struct
from collections import Counter, OrderedDict, defaultdict
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from elastane.state.codec import (
    Exported,
    StateFormatError,
    StateNotCarriedError,
    decode,
    encode,
    flat_bytes,
    is_dense,
    specs_of,
)
from elastane.state.stream import StreamLayout, exported_from_stream

DTYPES = [
    torch.float32,
    torch.float64,
    torch.bfloat16,
    torch.float16,
    torch.int64,
    torch.int8,
    torch.uint8,
    torch.bool,
    torch.complex64,
    torch.float8_e4m3fn,
]


def through_bytes(exported: Exported) -> Exported:
    """What a hand-over or a checkpoint does to a state: bytes out, bytes in."""
    layout = StreamLayout(exported.specs)
    stream = torch.full((layout.total_bytes,), 0xAA, dtype=torch.uint8)
    layout.gather(exported.tensors, 0, layout.total_bytes, stream)
    return exported_from_stream(exported.structure, stream)


def round_trip(state: object) -> Any:
    return decode(through_bytes(encode(state)))


def same(left: Any, right: Any) -> bool:
    """Equal types and bits, all the way down."""
    if type(left) is not type(right):
        return False
    if isinstance(left, torch.Tensor):
        described = (left.dtype, left.shape, left.stride()) == (right.dtype, right.shape, right.stride())
        return described and torch.equal(flat_bytes(left), flat_bytes(right))
    if isinstance(left, np.ndarray):
        described = (left.dtype, left.shape) == (right.dtype, right.shape)
        return described and left.tobytes() == right.tobytes()
    if isinstance(left, np.generic):
        return left.dtype == right.dtype and left.tobytes() == right.tobytes()
    if isinstance(left, dict):
        return list(left) == list(right) and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, float):
        return struct.pack(">d", left) == struct.pack(">d", right)
    return bool(left == right)


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    """Dense tensors of any dtype, order of dimensions and offset into their storage."""
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(st.lists(st.integers(0, 4), max_size=4))
    order = draw(st.permutations(range(len(shape))))
    offset = draw(st.integers(0, 3))
    count = int(np.prod(shape, dtype=int))
    data = draw(st.binary(min_size=count, max_size=count)) if count else b""
    values = torch.tensor(list(data), dtype=torch.uint8).to(torch.float32)
    whole = torch.cat([torch.zeros(offset), values]).to(dtype)
    strides, step = [0] * len(shape), 1
    for dim in reversed(order):
        strides[dim] = step
        step *= max(shape[dim], 1)
    return whole.as_strided(shape, strides, offset)


LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-(2**100), 2**100)
    | st.floats(allow_nan=True)
    | st.text()
    | st.binary(max_size=40)
    | tensors()
    | st.sampled_from([torch.float32, torch.bfloat16, torch.Size([2, 3]), np.float32(0.1), np.int64(-3)])
    | st.sampled_from(
        [np.bool_(True), np.arange(6.0).reshape(2, 3), np.asfortranarray(np.arange(6).reshape(2, 3))]
    )
)
KEYS = st.text(max_size=8) | st.integers(-(2**70), 2**70)
STATES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(KEYS, inner, max_size=4)
        | st.dictionaries(KEYS, inner, max_size=4).map(OrderedDict)
    ),
    max_leaves=12,
)


@given(STATES)
@settings(max_examples=300, deadline=None)
def test_any_carried_state_comes_back_with_the_same_bits(state: object) -> None:
    assert same(round_trip(state), state)


@pytest.mark.parametrize(
    "value",
    [
        float("inf"),
        float("-inf"),
        float("nan"),
        struct.unpack(">d", bytes.fromhex("fff8000000000123"))[0],  # a NaN with a payload
        -0.0,
        5e-324,
        0.1 + 0.2,
        10**5000,
        "\ud800 lone surrogate",
        Counter({3: 2, 7: 1}),
        np.array(3.5),
        np.empty((0, 3)),
        np.array([1, 2], dtype=">i4"),
        np.float64("nan"),
        torch.tensor(3.0),
        torch.empty(0, 2),
        {True and 1: "int key", "1": "text key"},
    ],
    ids=lambda value: type(value).__name__,
)
def test_corner_values(value: object) -> None:
    assert same(round_trip(value), value)


def test_channels_last_keeps_its_strides() -> None:
    image = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    again = round_trip(image)
    assert again.stride() == image.stride() and torch.equal(again, image)


def test_tied_tensors_are_stored_once_and_stay_tied() -> None:
    weight = torch.randn(4, 4)
    exported = encode({"encoder": weight, "decoder": torch.nn.Parameter(weight), "other": weight.clone()})
    assert len(exported.tensors) == 2
    again = decode(through_bytes(exported))
    assert again["encoder"] is again["decoder"] and again["other"] is not again["encoder"]


def test_views_of_one_memory_with_other_shapes_are_not_confused() -> None:
    weight = torch.arange(12.0)
    state = {"flat": weight, "rows": weight.view(3, 4), "columns": weight.view(4, 3).t(), "part": weight[:3]}
    assert all(torch.equal(round_trip(state)[key], state[key]) for key in state)


def test_exported_tensors_are_references_not_copies() -> None:
    weight = torch.randn(8)
    assert encode([weight]).tensors[0].data_ptr() == weight.data_ptr()


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(12.0)[::2],
        torch.arange(3.0).expand(4, 3),
        torch.arange(12.0).view(3, 4)[:, :2],
        torch.randn(3, dtype=torch.complex64).conj(),
        torch.randn(3, dtype=torch.complex64).conj().imag,
    ],
    ids=["strided", "expanded", "sliced", "conjugate", "negative"],
)
def test_tensors_that_are_not_dense_keep_their_values(tensor: torch.Tensor) -> None:
    again = round_trip(tensor)
    assert torch.equal(again, tensor) and is_dense(tuple(again.shape), again.stride())


class Colour(enum.IntEnum):
    RED = 1


class Point(NamedTuple):
    x: int


class Text(str):
    __slots__ = ()


@pytest.mark.parametrize(
    "value",
    [
        object(),
        Colour.RED,
        Point(1),
        Text("a"),
        {1, 2},
        1j,
        defaultdict(list),
        io.BytesIO(),
        lambda: None,
        np.array([object()]),
        np.datetime64("2020-01-01"),
        torch.eye(2).to_sparse(),
        torch.empty(2, device="meta"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_cannot_be_carried_is_refused_with_its_path(value: object) -> None:
    with pytest.raises(StateNotCarriedError, match=r"optimizer\.state\[3\]\.foo\[1\]: ") as caught:
        encode({"optimizer": {"state": {3: {"foo": (0, value)}}}})
    assert caught.value.facts["path"] == "optimizer.state[3].foo[1]"


def test_the_message_names_the_type() -> None:
    with pytest.raises(
        StateNotCarriedError, match=r"state\[3\]\.foo: object of type object cannot be carried"
    ):
        encode({3: {"foo": object()}}, path="state")


@pytest.mark.parametrize("key", [1.5, None, True, (1,), b"a"], ids=repr)
def test_keys_other_than_str_and_int_are_refused(key: object) -> None:
    with pytest.raises(StateNotCarriedError, match="key"):
        encode({"extras": {key: 1}})


def test_a_state_that_contains_itself_is_refused() -> None:
    state: list[object] = []
    state.append({"again": state})
    with pytest.raises(StateNotCarriedError, match="contains itself"):
        encode(state)


def test_the_same_container_twice_is_no_cycle() -> None:
    shared = [1]
    assert round_trip([shared, shared]) == [[1], [1]]


@pytest.mark.parametrize(
    "structure",
    [
        b"",
        b"\xff",
        b"[]",
        b'{"version":99,"tensors":[],"tree":1}',
        b'{"version":1,"tensors":[]}',
        b'{"version":1,"tensors":[],"tree":{"pickle":"x"}}',
        b'{"version":1,"tensors":[],"tree":{"tensor":0}}',
        b'{"version":1,"tensors":[],"tree":{"dict":[[1]]}}',
        b'{"version":1,"tensors":[],"tree":{"bytes":"!"}}',
        b'{"version":1,"tensors":[],"tree":{"a":1,"b":2}}',
        b'{"version":1,"tensors":[["float32",[2],[1],"cpu"]],"tree":1}',
    ],
)
def test_a_damaged_structure_raises_a_typed_error(structure: bytes) -> None:
    with pytest.raises(StateFormatError):
        decode(Exported(structure, []))


@pytest.mark.parametrize(
    "spec",
    [
        '["float3",[2],[1],"cpu"]',
        '["float32",[-2],[1],"cpu"]',
        '["float32",[2],[9],"cpu"]',
        '["float32",[2],[],"cpu"]',
        "7",
    ],
)
def test_an_impossible_tensor_raises_a_typed_error(spec: str) -> None:
    with pytest.raises(StateFormatError):
        specs_of(f'{{"version":1,"tensors":[{spec}],"tree":1}}'.encode())
