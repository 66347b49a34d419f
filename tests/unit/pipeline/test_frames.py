"""Frames carry values with everything that bits depend on, and nothing else."""

from __future__ import annotations

import struct

import pytest
import torch
from torch import Tensor, nn

from elastane.pipeline import frames
from elastane.pipeline.frames import (
    BoundaryError,
    FrameError,
    FrameKey,
    Kind,
    copied,
    decode,
    encode,
    frame_of,
    received_here,
)

KEY = FrameKey(Kind.FORWARD, 1, 2, 3)
X = torch.arange(120.0).view(4, 6, 5)

TENSORS = {
    "contiguous": X,
    "transposed": X.transpose(0, 2),
    "a slice": X[:, 1:],
    "a column of a large tensor": torch.randn(64, 512)[:, 3],
    "expanded": torch.randn(3, 1).expand(3, 7),
    "expanded and sparse in memory": torch.randn(8, 100)[:, 3:4].expand(8, 5),
    "overlapping": torch.arange(10.0).unfold(0, 4, 1),
    "channels_last": torch.randn(2, 3, 4, 4).contiguous(memory_format=torch.channels_last),
    "zero-size": torch.zeros(0, 3),
    "zero-size, of a slice": torch.randn(4, 5)[:, 2:2],
    "scalar": torch.tensor(3.0),
    "bfloat16": torch.randn(7).bfloat16(),
    "bool": torch.randn(9) > 0,
    "int64": torch.arange(5),
    "complex": torch.randn(4, dtype=torch.complex64),
    "not a number": torch.tensor([float("nan"), -0.0, float("inf")]),
    "parameter": nn.Parameter(torch.randn(3)),
    "off a line's beginning": torch.randn(9)[5:],
}


def _sent(value, **more):
    memory, total = encode(frame_of(KEY, 4, 5, value, **more))
    assert len(memory) == total
    return decode(memory)


def _here(value, **more):
    return received_here(frame_of(KEY, 4, 5, value, **more))


def _bytes(tensor: Tensor) -> bytes:
    return bytes(tensor.detach().contiguous().view(-1).view(torch.uint8).tolist())


@pytest.mark.parametrize("name", TENSORS)
@pytest.mark.parametrize(
    "way",
    [lambda tensor: _sent(tensor).value, lambda tensor: _here(tensor).value, copied],
    ids=["sent", "here", "copied"],
)
def test_tensor_keeps_values_strides_and_place_in_a_line(name, way):
    tensor = TENSORS[name]
    got = way(tensor)
    assert (got.dtype, got.shape, got.stride()) == (tensor.dtype, tensor.shape, tensor.stride())
    assert got.data_ptr() != tensor.data_ptr() or not tensor.numel()
    assert not got.requires_grad
    if tensor.numel():
        assert _bytes(got) == _bytes(tensor)
        assert got.data_ptr() % 64 == tensor.data_ptr() % 64


def test_little_of_a_large_tensor_is_sent():
    column = torch.randn(1000, 1000)[:, 0]
    assert encode(frame_of(KEY, 0, 0, column))[1] < 5_000


def test_values_keep_their_structure():
    x = torch.randn(3)
    value = (x, [None, True, 3, -2.5, "a", b"b"], {"k": (x,), 4: {}}, ())
    got = _sent(value).value
    assert type(got) is tuple and got[1] == value[1] and list(got[2]) == ["k", 4] and got[3] == ()
    assert [type(item) for item in got[1]] == [type(item) for item in value[1]]
    assert got[0] is got[2]["k"][0], "a tensor that stands twice is one tensor"


@pytest.mark.parametrize("way", [_sent, _here])
def test_a_frame_says_which_it_is_and_whose_gradients_are_wanted(way):
    x, y = torch.randn(3, requires_grad=True), torch.arange(3)
    got = way((x, y), parts={"rng/a": b"12"})
    assert (got.key, got.generation, got.step) == (KEY, 4, 5)
    assert got.wants_gradient == [True, False]
    assert got.parts == {"rng/a": b"12"}


def test_memory_that_is_not_the_value_s_alone_is_marked():
    whole, own = torch.randn(8), torch.randn(2)
    assert _sent((whole[:4], whole[4:], own)).shared == [True, True, False]
    owned = frozenset({own.untyped_storage().data_ptr()})
    assert _sent((own, torch.randn(2)), owned=owned).shared == [True, False]


@pytest.mark.parametrize("way", [_sent, _here])
def test_tensors_of_a_frame_have_version_counters_of_their_own(way):
    a, b = way((torch.zeros(3), torch.zeros(3))).value
    before = b._version
    a.add_(1)
    assert (a._version, b._version, float(b.sum())) == (before + 1, before, 0.0)


class _Sub(torch.Tensor):
    pass


@pytest.mark.parametrize(
    "value",
    [
        object(),
        {1, 2},
        {(1, 2): 3},
        1 << 70,
        torch.randn(3).to_sparse(),
        torch.randn(3).as_subclass(_Sub),
        torch.empty(3, device="meta"),
        torch.conj(torch.randn(3, dtype=torch.complex64)),
        torch.nn.utils.rnn.pack_sequence([torch.zeros(3)]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_cannot_be_sent_is_refused(value):
    with pytest.raises(BoundaryError, match="cannot be sent") as raised:
        frame_of(KEY, 0, 0, (1, value))
    assert raised.value.code == "ELA390"


def test_damaged_frames_are_refused():
    memory, _ = encode(frame_of(KEY, 0, 0, torch.zeros(3)))
    other = memory.clone()
    other[0] += 1
    with pytest.raises(FrameError, match="no frame"):
        decode(other)
    other = memory.clone()
    other[frames.PREFIX_BYTES] = 0xC1  # not a byte of msgpack
    with pytest.raises(FrameError, match="damaged"):
        decode(other)


def test_a_frame_may_have_more_room_than_it_needs():
    memory, total = encode(frame_of(KEY, 0, 0, X), 1 << 16)
    assert len(memory) == 1 << 16 > total == struct.unpack_from("<IIQ", bytes(memory[:16].tolist()))[2]
    assert torch.equal(decode(memory).value, X)
