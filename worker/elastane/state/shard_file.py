"""One shard of a checkpoint: a worker's stripe of the state and the contexts of its ESTs, in one file.

    offset 0    magic, 16 bytes
           16   length of the header, 8 bytes little-endian
           24   header: JSON, see ShardHeader
                structure of the state (shard 0 only, see `codec`)
                EST contexts: protobuf EstContext, one after the other
                zeros up to a multiple of 64
                the stripe: bytes [start, end) of the stream of tensors (see `stream`)

The sha256 of the whole file is in the checkpoint's manifest and not repeated here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
import torch
from google.protobuf.message import DecodeError

from elastane.state.codec import Exported
from elastane.state.stream import ALIGNMENT_BYTES, StreamLayout
from elastane_common.storage import CheckpointError, Chunk
from elastane_proto.contexts import Parts, context_from_proto, context_to_proto
from elastane_proto.v1.common_pb2 import EstContext

MAGIC: Final = b"elastane-shard-1"
CHUNK_BYTES: Final = 8 << 20
_PREFIX_BYTES: Final = len(MAGIC) + 8
_HEADER_BYTES_MAX: Final = 64 << 20


#: Receives a chunk of a stripe, and its position in the stream.
Taker = Callable[[int, bytes], None]


class CheckpointDamagedError(CheckpointError):
    """A checkpoint, or a file of it, differs from what was written."""

    code = "ELA312"


class ShardHeader(msgspec.Struct, frozen=True):
    """Header of a shard.

    checkpoint: its name. step: first step not included. [start, end) of `total_bytes`: its stripe. contexts:
    (virtual rank, bytes) of each EST context, in order. ready_order: shard 0 only.
    """

    checkpoint: str
    step: int
    shard: int
    shards: int
    total_bytes: int
    start: int
    end: int
    structure_bytes: int
    contexts: tuple[tuple[int, int], ...]
    ready_order: tuple[int, ...]


_decoder: Final = msgspec.json.Decoder(ShardHeader)


class Snapshot(msgspec.Struct, frozen=True):
    """A worker's part of the state at a step boundary, independent of the live state.

    stripe: 1-D uint8 on the CPU, bytes [start, end) of the stream. structure, ready_order: shard 0 only.
    """

    step: int
    shard: int
    shards: int
    total_bytes: int
    start: int
    end: int
    stripe: torch.Tensor
    structure: bytes
    contexts: dict[int, Parts]
    ready_order: tuple[int, ...]


class ShardContents(msgspec.Struct, frozen=True):
    """Contents of a shard besides its stripe, and the sha256 of its file."""

    sha256: str
    structure: bytes
    contexts: dict[int, Parts]


def take_snapshot(
    exported: Exported,
    shard: int,
    shards: int,
    *,
    step: int,
    contexts: Mapping[int, Parts],
    ready_order: Sequence[int] = (),
) -> Snapshot:
    """Copy this worker's stripe out of the live state; training may continue when it returns.

    exported: `TrainState.export()` at the boundary. step: first step not included. contexts: of the ESTs this
    worker hosts, at the start of `step`. Takes the time of copying 1/shards of the state.
    """
    layout = StreamLayout(exported.specs)
    start, end = layout.stripe(shard, shards)
    pinned = any(tensor.is_cuda for tensor in exported.tensors)
    stripe = torch.empty(end - start, dtype=torch.uint8, pin_memory=pinned)
    layout.gather(exported.tensors, start, end, stripe)
    return Snapshot(
        step=step,
        shard=shard,
        shards=shards,
        total_bytes=layout.total_bytes,
        start=start,
        end=end,
        stripe=stripe,
        structure=exported.structure if shard == 0 else b"",
        contexts={rank: dict(parts) for rank, parts in contexts.items()},
        ready_order=tuple(ready_order) if shard == 0 else (),
    )


def shard_chunks(name: str, snapshot: Snapshot) -> Iterator[Chunk]:
    """Yield the bytes of the shard's file: the front in one piece, the stripe in pieces of CHUNK_BYTES."""
    contexts = encoded_contexts(snapshot.contexts, snapshot.step)
    header = msgspec.json.encode(
        ShardHeader(
            checkpoint=name,
            step=snapshot.step,
            shard=snapshot.shard,
            shards=snapshot.shards,
            total_bytes=snapshot.total_bytes,
            start=snapshot.start,
            end=snapshot.end,
            structure_bytes=len(snapshot.structure),
            contexts=tuple((rank, len(data)) for rank, data in contexts),
            ready_order=snapshot.ready_order,
        )
    )
    front = b"".join(
        [
            MAGIC,
            len(header).to_bytes(8, "little"),
            header,
            snapshot.structure,
            *(data for _, data in contexts),
        ]
    )
    yield front + bytes(-len(front) % ALIGNMENT_BYTES)
    stripe = snapshot.stripe.numpy().data
    for position in range(0, len(stripe), CHUNK_BYTES):
        yield stripe[position : position + CHUNK_BYTES]


def read_header(file: Any, file_bytes: int) -> ShardHeader:
    """Read the header of an open shard and check it against the file's size.

    Contents are not trusted before the sha256 was compared, but these checks make it safe to allocate memory.
    Raises CheckpointDamagedError.
    """
    header_bytes, text = read_prefix(file, MAGIC, file_bytes)
    try:
        header = _decoder.decode(text)
    except msgspec.DecodeError as error:
        raise CheckpointDamagedError(f"has an unreadable header: {error}") from error
    lengths = (header.structure_bytes, header.end - header.start, *(size for _, size in header.contexts))
    expected = _stripe_offset(header_bytes, header) + header.end - header.start
    if min(lengths) < 0 or header.start < 0 or header.end > header.total_bytes or expected != file_bytes:
        raise CheckpointDamagedError(f"is {file_bytes} bytes long, its header says {expected}")
    return header


def read_shard(
    file: Any, header: ShardHeader, stripe: torch.Tensor | Callable[[bytes], Taker] | None
) -> ShardContents:
    """Read an open shard from its beginning; its stripe goes into `stripe` (1-D uint8, CPU).

    stripe: None to compute only the digest; or a function of the structure (empty except in shard 0) that
    returns a receiver of the stripe's bytes, called with each chunk and its position in the stream. Raises
    CheckpointDamagedError if the file ends early or a context is invalid.
    """
    digest = hashlib.sha256()
    prefix = read_exactly(file, digest, _PREFIX_BYTES)
    header_bytes = int.from_bytes(prefix[len(MAGIC) :], "little")
    if header_bytes > _HEADER_BYTES_MAX:
        raise CheckpointDamagedError("changed while it was read")
    read_exactly(file, digest, header_bytes)
    structure = read_exactly(file, digest, header.structure_bytes)
    encoded = [(rank, read_exactly(file, digest, size)) for rank, size in header.contexts]
    position = (
        _PREFIX_BYTES + header_bytes + header.structure_bytes + sum(size for _, size in header.contexts)
    )
    read_exactly(file, digest, -position % ALIGNMENT_BYTES)
    if isinstance(stripe, torch.Tensor):
        read_into(file, digest, stripe)
    elif stripe is None:
        skip(file, digest, header.end - header.start)
    else:
        take, at = stripe(structure), header.start
        while at < header.end:
            chunk = read_exactly(file, digest, min(CHUNK_BYTES, header.end - at))
            take(at, chunk)
            at += len(chunk)
    return ShardContents(digest.hexdigest(), structure, contexts_of(encoded, header.step))


def read_prefix(file: Any, magic: bytes, file_bytes: int) -> tuple[int, bytes]:
    """Return the length of an open shard's header, and the header. Raises CheckpointDamagedError."""
    prefix = file.read(_PREFIX_BYTES)
    header_bytes = int.from_bytes(prefix[len(magic) :], "little")
    limit = min(file_bytes - _PREFIX_BYTES, _HEADER_BYTES_MAX)
    if prefix[: len(magic)] != magic or len(prefix) != _PREFIX_BYTES or not 0 < header_bytes <= limit:
        raise CheckpointDamagedError("does not begin with the header of a shard")
    return header_bytes, file.read(header_bytes)


def encoded_contexts(contexts: Mapping[int, Parts], step: int) -> list[tuple[int, bytes]]:
    """Return the contexts of ESTs at `step` in the encoding of a shard."""
    return [
        (rank, context_to_proto(rank, step, parts).SerializeToString(deterministic=True))
        for rank, parts in sorted(contexts.items())
    ]


def read_into(file: Any, digest: Any, memory: torch.Tensor) -> None:
    """Fill `memory` (1-D uint8, CPU). Raises CheckpointDamagedError if the file ends early."""
    view, filled = memory.numpy().data, 0
    while filled < len(view):
        count = file.readinto(view[filled : filled + CHUNK_BYTES])
        if not count:
            raise CheckpointDamagedError(f"ends {len(view) - filled} bytes early")
        digest.update(view[filled : filled + count])
        filled += count


def skip(file: Any, digest: Any, size: int) -> None:
    """Read `size` bytes only for the digest. Raises CheckpointDamagedError if the file ends early."""
    while size > 0:
        size -= len(read_exactly(file, digest, min(size, CHUNK_BYTES)))


def contexts_of(encoded: list[tuple[int, bytes]], step: int) -> dict[int, Parts]:
    """Decode the contexts of a shard at `step`. Raises CheckpointDamagedError."""
    contexts: dict[int, Parts] = {}
    for rank, data in encoded:
        try:
            message = EstContext.FromString(data)
        except DecodeError as error:
            raise CheckpointDamagedError(f"has an unreadable context of EST {rank}") from error
        if (message.virtual_rank, message.step) != (rank, step):
            raise CheckpointDamagedError(
                f"has, for EST {rank} at step {step}, the context of {message.virtual_rank} at {message.step}"
            )
        contexts[rank] = context_from_proto(message)
    return contexts


def read_exactly(file: Any, digest: Any, size: int) -> bytes:
    """Read `size` bytes. Raises CheckpointDamagedError if the file ends early."""
    data: bytes = file.read(size)
    if len(data) != size:
        raise CheckpointDamagedError(f"ends {size - len(data)} bytes early")
    digest.update(data)
    return data


def _stripe_offset(header_bytes: int, header: ShardHeader) -> int:
    front = _PREFIX_BYTES + header_bytes + header.structure_bytes + sum(size for _, size in header.contexts)
    return front + -front % ALIGNMENT_BYTES
