"""Frames: values that members of a pipeline send one another, as flat bytes.

What the next stage computes depends on more than a tensor's values: kernels choose their path, and so the
bits of their sums, by strides and by the place of the data in a cache line. So a frame carries each tensor
with its strides and that place, and the receiver builds it the same. A tensor that stands in a value twice is
sent once, so that autograd adds its gradients in the uncut model's order.

    prefix     magic, bytes of the header, bytes of the frame (32 bytes)
    header     msgpack: which frame it is, the value's tree, each tensor's form, which generator states follow
    payload    the tensors' memory, each at a multiple of 64 bytes plus its own place in a cache line

There is no pickle: a value consists of tensors, None, numbers, strings, bytes, tuples, lists and dicts.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import lru_cache
from typing import Any, Final, NamedTuple

import msgspec
import torch
from torch import Tensor

from elastane_common.errors import ElastaneError, UnsupportedError

#: A cache line, to which torch's CPU allocator aligns.
LINE_BYTES: Final = 64
_PREFIX: Final = struct.Struct("<IIQ")
PREFIX_BYTES: Final = 32
_MAGIC: Final = 0xE1A57F01
_CPU: Final = torch.device("cpu")
#: Type of one element of storage memory that is only copied.
_BYTE: Final = torch.uint8


class BoundaryError(UnsupportedError):
    """A unit returns, or a batch contains, what cannot be sent to another worker with the same bits."""

    code = "ELA390"


class FrameError(ElastaneError):
    """A frame of another step or generation, or a damaged one: a bug, never used."""

    code = "ELA391"


class Kind(IntEnum):
    """What a frame is; frames of one kind between two members arrive in the order of sending."""

    #: From an EST's home to the first and to the last stage.
    INPUT = 1
    TARGET = 2
    #: A stage's output, to the next; gradients with respect to it, back.
    FORWARD = 3
    BACKWARD = 4
    #: Generators and loss, from the first stage to the EST's home.
    END = 5
    #: EST 0's buffers of a stage, to its other holders.
    BUFFERS = 6
    #: To every member: from replicas of the last stage, from a holder of each stage, from all.
    LOSSES = 7
    NORMS = 8
    FLAGS = 9
    COUNTS = 10
    #: Evaluation: input or a stage's output, and the model's output to who asked.
    EVALUATE = 11
    OUTPUT = 12
    #: A unit's weights, to who asked for the whole model's.
    WEIGHTS = 13


class FrameKey(NamedTuple):
    """Which frame it is. stage: the one that receives it, or whose it is; est, micro: of whom it is."""

    kind: Kind
    stage: int
    est: int
    micro: int


@dataclass(slots=True)
class Frame:
    """A value on its way. tree: the value with tensors replaced by their places in `tensors`.

    wants_gradient: by tensor: it requires a gradient at the sender. shared: its memory is also that of
    another tensor of the value, or of a buffer, at the sender: the receiver must not write to it. parts:
    generator states that have changed since the last frame of this kind and EST.
    """

    key: FrameKey
    generation: int
    step: int
    tree: Any
    tensors: list[Tensor]
    wants_gradient: list[bool]
    shared: list[bool]
    parts: dict[str, bytes] = field(default_factory=dict)

    @property
    def value(self) -> Any:
        """The value with its tensors."""
        return rebuilt(self.tree, self.tensors)


def frame_of(
    key: FrameKey,
    generation: int,
    step: int,
    value: Any,
    parts: dict[str, bytes] | None = None,
    owned: frozenset[int] = frozenset(),
) -> Frame:
    """Return the frame of a value. owned: addresses of storages that are not the value's alone.

    Raises BoundaryError for what cannot be sent.
    """
    tensors: list[Tensor] = []
    tree = _tree(value, tensors, {})
    storages = [tensor.untyped_storage().data_ptr() for tensor in tensors]
    return Frame(
        key,
        generation,
        step,
        tree,
        tensors,
        [tensor.requires_grad for tensor in tensors],
        [bool(address) and (address in owned or storages.count(address) > 1) for address in storages],
        parts or {},
    )


# ---------------------------------------------------------------------- trees


def leaves(value: Any) -> list[Tensor]:
    """Return a value's tensors, each once, in order. Raises BoundaryError as `frame_of`."""
    tensors: list[Tensor] = []
    _tree(value, tensors, {})
    return tensors


def rebuilt(tree: Any, tensors: Sequence[Tensor]) -> Any:
    """Return the value of a tree with these tensors."""
    if not isinstance(tree, list):
        return tree
    kind, content = tree
    if kind == "x":
        return tensors[content]
    if kind == "d":
        return {key: rebuilt(item, tensors) for key, item in content}
    items = [rebuilt(item, tensors) for item in content]
    return tuple(items) if kind == "t" else items


def _tree(value: Any, tensors: list[Tensor], places: dict[int, int]) -> Any:
    if isinstance(value, Tensor):
        if id(value) not in places:
            _check(value)
            places[id(value)] = len(tensors)
            tensors.append(value)
        return ["x", places[id(value)]]
    kind = type(value)
    if kind in (tuple, list, torch.Size):
        return ["l" if kind is list else "t", [_tree(item, tensors, places) for item in value]]
    if kind is dict:
        for key in value:
            if type(key) not in (str, int, bool):
                raise _cannot(f"a dict with the key {key!r}")
        return ["d", [[key, _tree(item, tensors, places)] for key, item in value.items()]]
    if value is None or kind in (bool, float, str, bytes):
        return value
    if kind is int and -(1 << 63) <= value < 1 << 63:
        return value
    raise _cannot(f"an object of type {kind.__qualname__}")


def _check(tensor: Tensor) -> None:
    if type(tensor) not in (Tensor, torch.nn.Parameter):
        raise _cannot(f"a tensor of type {type(tensor).__qualname__}")
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_meta:
        raise _cannot(f"a tensor of layout {tensor.layout} and type {tensor.dtype}")
    if tensor.is_conj() or tensor.is_neg():
        raise _cannot("a lazily conjugated or negated tensor")


def _cannot(what: str) -> BoundaryError:
    return BoundaryError(
        f"{what} cannot be sent from one stage of a pipeline to the next",
        hint="pass dense tensors, None, numbers, strings, and tuples, lists and dicts of them",
    )


# ---------------------------------------------------------------------- forms of tensors


@lru_cache(maxsize=4096)
def _form(shape: tuple[int, ...], stride: tuple[int, ...]) -> tuple[int, bool]:
    """Return (elements from the first to the last in memory, whether most of them are another tensor's).

    Where they are, only the tensor's own elements are sent.
    """
    if 0 in shape:
        return 0, False
    extent = 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))
    dims = sorted((step, size) for size, step in zip(shape, stride, strict=True) if size > 1 and step > 0)
    own, reach = 1, 1
    for step, size in dims:
        if step < reach:
            return extent, False  # elements overlap
        reach = step * size
        own *= size
    return extent, extent > 2 * own


def _once(tensor: Tensor) -> Tensor:
    """Return the tensor without the repetitions of expanded dimensions."""
    for dim, step in enumerate(tensor.stride()):
        if step == 0 and tensor.shape[dim] > 1:
            tensor = tensor.narrow(dim, 0, 1)
    return tensor


def _phase(tensor: Tensor) -> int:
    """Return the place of the tensor's first element in its cache line, bytes."""
    place = tensor.data_ptr() % LINE_BYTES
    return place if place % tensor.element_size() == 0 else 0


def _placed(extent: int, dtype: torch.dtype, phase: int, device: torch.device) -> tuple[Tensor, int]:
    """Return new memory for `extent` elements, and the element at which a line plus `phase` bytes begins."""
    size = dtype.itemsize
    offset = phase // size
    return torch.empty(extent + offset, dtype=dtype, device=device), offset


def _strided(
    memory: Tensor, dtype: torch.dtype, shape: Sequence[int], stride: Sequence[int], offset: int
) -> Tensor:
    """Return a tensor over memory that has a version counter of its own."""
    return torch.empty(0, dtype=dtype, device=memory.device).set_(
        memory.untyped_storage(), offset, tuple(shape), tuple(stride)
    )


def copied(tensor: Tensor, device: torch.device | None = None) -> Tensor:
    """Return a copy with the same strides at the same place in a cache line; without a gradient."""
    tensor = tensor.detach()
    shape, stride = tuple(tensor.shape), tensor.stride()
    extent, sparse = _form(shape, stride)
    memory, offset = _placed(extent, tensor.dtype, _phase(tensor), device or tensor.device)
    copy = _strided(memory, tensor.dtype, shape, stride, offset)
    if sparse:
        _once(copy).copy_(_once(tensor))
    elif extent:
        memory[offset:].copy_(tensor.as_strided((extent,), (1,), tensor.storage_offset()))
    return copy


def received_here(frame: Frame) -> Frame:
    """Return the frame as a receiver in this process gets it: its tensors are copies."""
    return replace(frame, tensors=[copied(tensor) for tensor in frame.tensors])


# ---------------------------------------------------------------------- bytes


class _Form(NamedTuple):
    """Form of a tensor in a header. offset: of its elements in the frame, bytes; on_device: not on CPU."""

    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    phase: int
    packed: bool
    wants_gradient: bool
    shared: bool
    on_device: bool


class _Header(NamedTuple):
    kind: int
    stage: int
    est: int
    micro: int
    generation: int
    step: int
    tree: Any
    tensors: tuple[_Form, ...]
    #: Name, offset in the frame and size of each generator state.
    parts: tuple[tuple[str, int, int], ...]


_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(_Header)


def _up(value: int) -> int:
    return -(-value // LINE_BYTES) * LINE_BYTES


def encode(frame: Frame, room_bytes: int = 0) -> tuple[Tensor, int]:
    """Return (memory, bytes of the frame in it); the memory has at least `room_bytes`.

    The tensors are copied: they may change at once.
    """
    forms, place = [], 0
    for tensor, wants, shared in zip(frame.tensors, frame.wants_gradient, frame.shared, strict=True):
        shape, stride = tuple(tensor.shape), tensor.stride()
        extent, packed = _form(shape, stride)
        phase = _phase(tensor)
        elements = _once(tensor).numel() if packed else extent
        start = _up(place) + (0 if packed else phase)
        forms.append(
            _Form(
                str(tensor.dtype).removeprefix("torch."),
                shape,
                stride,
                start,
                phase,
                packed,
                wants,
                shared,
                tensor.device.type != "cpu",
            )
        )
        place = start + elements * tensor.element_size()
    parts = []
    for name, state in frame.parts.items():
        parts.append((name, place, len(state)))
        place += len(state)
    header = _ENCODER.encode(
        _Header(*frame.key, frame.generation, frame.step, frame.tree, tuple(forms), tuple(parts))
    )
    body = _up(PREFIX_BYTES + len(header))
    total = body + place
    memory = torch.empty(max(total, room_bytes), dtype=_BYTE)
    address = memory.data_ptr()
    ctypes.memmove(address, _PREFIX.pack(_MAGIC, len(header), total), _PREFIX.size)
    ctypes.memmove(address + PREFIX_BYTES, header, len(header))
    for tensor, form in zip(frame.tensors, forms, strict=True):
        extent, _ = _form(form.shape, form.stride)
        if not (form.packed or form.on_device):
            size = extent * tensor.element_size()
            ctypes.memmove(address + body + form.offset, tensor.data_ptr(), size)
            continue
        tensor = tensor.detach()
        source = _once(tensor) if form.packed else tensor.as_strided((extent,), (1,), tensor.storage_offset())
        first = (body + form.offset) // tensor.element_size()
        _strided(memory, tensor.dtype, source.shape, _row_major(source.shape), first).copy_(source)
    for (_, offset, size), state in zip(parts, frame.parts.values(), strict=True):
        ctypes.memmove(address + body + offset, state, size)
    return memory, total


def total_bytes(memory: Tensor) -> int:
    """Return the bytes of the frame whose beginning is in memory. Raises FrameError."""
    return _sizes(memory)[1]


def _sizes(memory: Tensor) -> tuple[int, int]:
    """Return the bytes of the header, and of the frame."""
    magic, header, total = _PREFIX.unpack(ctypes.string_at(memory.data_ptr(), _PREFIX.size))
    if magic != _MAGIC:
        raise FrameError("what came is no frame of a pipeline")
    return header, total


def decode(memory: Tensor, device: torch.device = _CPU) -> Frame:
    """Return the frame in memory, whose tensors lie in it, but for those that were on a device at the sender:
    they are copied to `device`. Raises FrameError."""
    size, _ = _sizes(memory)
    address = memory.data_ptr()
    try:
        header = _DECODER.decode(ctypes.string_at(address + PREFIX_BYTES, size))
        key = FrameKey(Kind(header.kind), header.stage, header.est, header.micro)
    except (msgspec.DecodeError, ValueError) as error:
        raise FrameError(f"the header of a frame is damaged: {error}") from error
    body = _up(PREFIX_BYTES + size)
    return Frame(
        key,
        header.generation,
        header.step,
        header.tree,
        [_decoded(memory, body, form, device) for form in header.tensors],
        [form.wants_gradient for form in header.tensors],
        [form.shared for form in header.tensors],
        {name: ctypes.string_at(address + body + offset, length) for name, offset, length in header.parts},
    )


def _decoded(memory: Tensor, body: int, form: _Form, device: torch.device) -> Tensor:
    dtype: torch.dtype = getattr(torch, form.dtype)
    first = (body + form.offset) // dtype.itemsize
    if not form.packed:
        tensor = _strided(memory, dtype, form.shape, form.stride, first)
    else:
        extent, _ = _form(form.shape, form.stride)
        apart, offset = _placed(extent, dtype, form.phase, memory.device)
        tensor = _strided(apart.zero_(), dtype, form.shape, form.stride, offset)
        target = _once(tensor)
        target.copy_(_strided(memory, dtype, target.shape, _row_major(target.shape), first))
    return copied(tensor, device) if form.on_device and device != _CPU else tensor


def _row_major(shape: Sequence[int]) -> tuple[int, ...]:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))
