"""Conversion of EST contexts between the wire form (`EstContext`) and the flat form (`dict[str, bytes]`).

Worker and master keep a context flat, because merging a delta and comparing parts is then one dictionary
operation. The keys are:

    rng/python  rng/numpy  rng/torch_cpu  rng/torch_device     states of the EST's own generators
    loader                                                     position, packed (see `pack_loader`)
    stream/J/rng/...  stream/J/item/NAME                       states and items of data-worker stream J
    item/NAME                                                  a registered item; "@..." is the runtime's
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Final

from elastane_proto.generator_positions import GeneratorPosition
from elastane_proto.v1 import common_pb2

Parts = dict[str, bytes]

PYTHON: Final = "rng/python"
NUMPY: Final = "rng/numpy"
TORCH_CPU: Final = "rng/torch_cpu"
TORCH_DEVICE: Final = "rng/torch_device"

_RNG_FIELDS = ("python", "numpy", "torch_cpu", "torch_device")
_LOADER = struct.Struct("<qqqB")


def pack_loader(epoch: int, batch: int, base_seed: int | None) -> bytes:
    """Pack the part "loader": epoch, batches consumed in it, and the iterator's base seed if drawn."""
    return _LOADER.pack(epoch, batch, base_seed or 0, base_seed is not None)


def unpack_loader(part: bytes) -> tuple[int, int, int | None]:
    """Inverse of `pack_loader`. Raises ValueError for anything else."""
    try:
        epoch, batch, base_seed, drawn = _LOADER.unpack(part)
    except struct.error as error:
        raise ValueError(f"loader position of {len(part)} bytes, expected {_LOADER.size}") from error
    return epoch, batch, base_seed if drawn else None


def context_to_proto(
    virtual_rank: int,
    step: int,
    parts: Mapping[str, bytes],
    *,
    delta: bool = False,
    positions: Mapping[str, GeneratorPosition] | None = None,
) -> common_pb2.EstContext:
    """Return the wire form of one context, or with `delta` of its changed parts. Raises ValueError.

    positions: for a delta: positions of generators, by name, in place of their `parts`.
    """
    message = common_pb2.EstContext()
    fill_context(message, virtual_rank, step, parts, delta=delta)
    for name, position in (positions or {}).items():
        message.positions.add(name=name, beside_words=position.beside_words, checksum=position.checksum)
    return message


def fill_context(
    message: common_pb2.EstContext,
    virtual_rank: int,
    step: int,
    parts: Mapping[str, bytes],
    *,
    delta: bool = False,
) -> None:
    """Set a new message to what `context_to_proto` returns."""
    message.virtual_rank, message.step, message.delta = virtual_rank, step, delta
    streams: dict[int, common_pb2.DataWorkerState] = {}
    for key, value in parts.items():
        kind, _, rest = key.partition("/")
        if kind == "rng":
            setattr(message.rng, rest, value)
        elif kind == "loader":
            fill_loader(message.loader, value)
        elif kind == "stream":
            number, _, part = rest.partition("/")
            stream = int(number)
            if stream not in streams:
                streams[stream] = common_pb2.DataWorkerState(stream=stream)
            part_kind, _, name = part.partition("/")
            if part_kind == "rng":
                setattr(streams[stream].rng, name, value)
            elif part_kind == "item":
                streams[stream].items[name] = value
            else:
                raise ValueError(f"unknown part {key!r} of the context of EST {virtual_rank}")
        elif kind == "item":
            message.items[rest] = value
        else:
            raise ValueError(f"unknown part {key!r} of the context of EST {virtual_rank}")
    message.streams.extend(streams[stream] for stream in sorted(streams))


def fill_loader(message: common_pb2.LoaderPosition, part: bytes) -> None:
    """Set a new message to the position that the part "loader" holds. Raises ValueError."""
    message.epoch, message.batch, base_seed = unpack_loader(part)
    if base_seed is not None:
        message.base_seed = base_seed


def context_from_proto(message: common_pb2.EstContext) -> Parts:
    """Return the flat form of a context or delta, with only the fields that are present.

    Raises ValueError for one with positions: it has only part of what changed.
    """
    if message.positions:
        raise ValueError(f"the context of EST {message.virtual_rank} has positions of generators")
    return parts_from_proto(message)


def positions_from_proto(message: common_pb2.EstContext) -> dict[str, GeneratorPosition]:
    """Return the positions of a delta by the names of their parts."""
    return {
        position.name: GeneratorPosition(position.beside_words, position.checksum)
        for position in message.positions
    }


def parts_from_proto(message: common_pb2.EstContext) -> Parts:
    """Return the parts of a context or delta that are sent whole; the others: `positions_from_proto`."""
    parts = _rng_parts("rng/", message.rng) if message.HasField("rng") else {}
    if message.HasField("loader"):
        loader = message.loader
        base_seed = loader.base_seed if loader.HasField("base_seed") else None
        parts["loader"] = pack_loader(loader.epoch, loader.batch, base_seed)
    for stream in message.streams:
        parts.update(_rng_parts(f"stream/{stream.stream}/rng/", stream.rng))
        _add_items(parts, f"stream/{stream.stream}/item/", stream.items)
    _add_items(parts, "item/", message.items)
    return parts


def rng_to_proto(parts: Mapping[str, bytes]) -> common_pb2.RngStates:
    """Return only the RNG states (the parts "rng/...") as a message, as dynamic tasks carry them."""
    message = common_pb2.RngStates()
    fill_rng(message, parts)
    return message


def fill_rng(message: common_pb2.RngStates, parts: Mapping[str, bytes]) -> None:
    """Set a new message to what `rng_to_proto` returns."""
    for field in _RNG_FIELDS:
        if (state := parts.get(f"rng/{field}")) is not None:
            setattr(message, field, state)


def rng_from_proto(message: common_pb2.RngStates) -> Parts:
    """Inverse of `rng_to_proto`."""
    return _rng_parts("rng/", message)


def _add_items(parts: Parts, prefix: str, items: Mapping[str, bytes]) -> None:
    for name in items:  # the view `items()` of a message's map is written in Python
        parts[prefix + name] = items[name]


def _rng_parts(prefix: str, message: common_pb2.RngStates) -> Parts:
    return {prefix + field: getattr(message, field) for field in _RNG_FIELDS if message.HasField(field)}
