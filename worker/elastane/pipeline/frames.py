"""Frames: values sent between members of a pipeline, serialized to flat bytes.

The next stage's result depends on more than a tensor's values: kernels choose their code path, and with it
the bits of their sums, by strides and by the alignment of the data within a cache line. So a frame records
each tensor's strides and alignment, and the receiver reproduces both. A tensor that occurs twice in a value
is sent once, so that autograd adds its gradients in the same order as in the undivided model.

    prefix     magic, bytes of the header, bytes of the frame (32 bytes)
    header     msgpack: frame key, tree of the value, layout of each tensor, which generator states follow
    payload    the tensors' memory, each at a multiple of 64 bytes plus its offset in a cache line

    No pickle is used: a value consists of tensors, None, numbers, strings, bytes, tuples, lists and dicts.
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

#: Size of a cache line in bytes; torch's CPU allocator aligns to it.
LINE_BYTES: Final = 64
_PREFIX: Final = struct.Struct("<IIQ")
PREFIX_BYTES: Final = 32
_MAGIC: Final = 0xE1A57F01
_CPU: Final = torch.device("cpu")
#: Element type for storage that is only copied.
_BYTE: Final = torch.uint8


class BoundaryError(UnsupportedError):
    """A unit's output or a batch contains a value that cannot be sent with the same bits."""

    code = "ELA390"


class FrameError(ElastaneError):
    """A frame is damaged, or of another step or generation, which indicates a bug; it is never used."""

    code = "ELA391"


class Kind(IntEnum):
    """Kind of a frame. Frames of one kind between two members arrive in the order in which they were sent."""

    #: From an EST's home to the first and to the last stage.
    INPUT = 1
    TARGET = 2
    #: A stage's output, to the next stage; gradients with respect to it, back.
    FORWARD = 3
    BACKWARD = 4
    #: Generators and loss, from the first stage to the EST's home.
    END = 5
    #: EST 0's buffers of a stage, to its other holders.
    BUFFERS = 6
    #: Broadcasts to every member: from replicas of the last stage, from a holder of each stage, from all.
    LOSSES = 7
    NORMS = 8
    FLAGS = 9
    COUNTS = 10
    #: Evaluation: input or a stage's output, and the model's output for the member that asked.
    EVALUATE = 11
    OUTPUT = 12
    #: A unit's weights, for members that asked for the whole model's.
    WEIGHTS = 13


class FrameKey(NamedTuple):
    """Identifies a frame. stage: the receiving stage, or the frame's own. est, micro: whose data it is."""

    kind: Kind
    stage: int
    est: int
    micro: int


@dataclass(slots=True)
class Frame:
    """A value in transit. tree: the value with each tensor replaced by its index in `tensors`.

    wants_gradient: for each tensor, whether it requires a gradient at the sender. shared: for each tensor,
    whether its memory at the sender is also used by another tensor of the value or by a buffer; the receiver
    must not write to it. parts: generator states that have changed since the last frame of this kind and EST.
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
        """The value, with the tensors in place."""
        return rebuilt(self.tree, self.tensors)


def frame_of(
    key: FrameKey,
    generation: int,
    step: int,
    value: Any,
    parts: dict[str, bytes] | None = None,
    owned: frozenset[int] = frozenset(),
) -> Frame:
    """Return the frame of a value. owned: addresses of storages that are used elsewhere, too.

    Raises BoundaryError for a value that cannot be sent.
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
    """Return a value's distinct tensors in order. Raises BoundaryError as `frame_of`."""
    tensors: list[Tensor] = []
    _tree(value, tensors, {})
    return tensors


def rebuilt(tree: Any, tensors: Sequence[Tensor]) -> Any:
    """Return the value that a tree and its tensors stand for."""
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
    """Return (elements spanned in memory, whether most of them do not belong to the tensor).

    In that case only the tensor's own elements are sent.
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
    """Return the tensor with expanded dimensions reduced to one element."""
    for dim, step in enumerate(tensor.stride()):
        if step == 0 and tensor.shape[dim] > 1:
            tensor = tensor.narrow(dim, 0, 1)
    return tensor


def _phase(tensor: Tensor) -> int:
    """Return the offset of the tensor's first element within its cache line, in bytes."""
    place = tensor.data_ptr() % LINE_BYTES
    return place if place % tensor.element_size() == 0 else 0


def _placed(extent: int, dtype: torch.dtype, phase: int, device: torch.device) -> tuple[Tensor, int]:
    """Return new memory, and the index `phase` bytes into a cache line, from which `extent` elements fit."""
    size = dtype.itemsize
    offset = phase // size
    return torch.empty(extent + offset, dtype=dtype, device=device), offset


def _strided(
    memory: Tensor, dtype: torch.dtype, shape: Sequence[int], stride: Sequence[int], offset: int
) -> Tensor:
    """Return a strided tensor over memory, with its own version counter."""
    return torch.empty(0, dtype=dtype, device=memory.device).set_(
        memory.untyped_storage(), offset, tuple(shape), tuple(stride)
    )


def copied(tensor: Tensor, device: torch.device | None = None) -> Tensor:
    """Return a detached copy with the same strides and the same offset in a cache line."""
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
    """Return the frame as received within this process: with copies of its tensors."""
    return replace(frame, tensors=[copied(tensor) for tensor in frame.tensors])


# ---------------------------------------------------------------------- bytes


class _Form(NamedTuple):
    """A tensor's layout in a header. offset: of its data in the frame, bytes. on_device: not on the CPU."""

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
    #: Name, offset in the frame and size in bytes of each generator state.
    parts: tuple[tuple[str, int, int], ...]


_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(_Header)


def _up(value: int) -> int:
    return -(-value // LINE_BYTES) * LINE_BYTES


def encode(frame: Frame, room_bytes: int = 0) -> tuple[Tensor, int]:
    """Return (memory, size of the frame in it in bytes); the memory has at least `room_bytes`.

    The tensors are copied, so they may be changed as soon as this returns.
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
    """Return the size in bytes of the frame that begins in this memory. Raises FrameError."""
    return _sizes(memory)[1]


def _sizes(memory: Tensor) -> tuple[int, int]:
    """Return the sizes of the header and of the frame, in bytes."""
    magic, header, total = _PREFIX.unpack(ctypes.string_at(memory.data_ptr(), _PREFIX.size))
    if magic != _MAGIC:
        raise FrameError("what came is no frame of a pipeline")
    return header, total


def decode(memory: Tensor, device: torch.device = _CPU) -> Frame:
    """Return the frame in memory. Raises FrameError.

    Its tensors are views of the memory; those that were on a device at the sender are copied to `device`.
    """
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
