"""One shard of a pipeline's checkpoint: the complete units of which this worker is the first holder.

    offset 0    magic, 16 bytes
           16   length of the header, 8 bytes little-endian
           24   header: JSON, see UnitShardHeader
                EST contexts: protobuf EstContext, one after the other
                zeros up to a multiple of 64
                sections, each beginning at a multiple of 64: the structure of a unit's state, or of the
                common part's (see `codec`), zeros up to a multiple of 64, its tensors (see `stream`)

The manifest has the sha256 of each section, besides that of the whole file, so that a worker reads and
verifies only the units that it needs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec
import torch

from elastane.state.codec import Exported
from elastane.state.shard_file import (
    CHUNK_BYTES,
    CheckpointDamagedError,
    contexts_of,
    encoded_contexts,
    read_exactly,
    read_into,
    read_prefix,
    skip,
)
from elastane.state.stream import ALIGNMENT_BYTES, StreamLayout, exported_from_stream
from elastane_common.storage import Chunk
from elastane_proto.contexts import Parts

MAGIC: Final = b"elastane-units-1"
#: In place of a unit's number: the common part.
COMMON_SECTION: Final = -1
_PREFIX_BYTES: Final = len(MAGIC) + 8


class Section(msgspec.Struct, frozen=True):
    """State of a unit in a shard. unit: COMMON_SECTION for the common part.

    start: in the file; in a shard's own header relative to the first section. sha256: of its bytes, up to the
    end of its stream.
    """

    unit: int
    shard: int
    start: int
    structure_bytes: int
    stream_bytes: int
    sha256: str

    @property
    def stream_start(self) -> int:
        """Where the stream begins in the section."""
        return _round_up(self.structure_bytes)

    @property
    def nbytes(self) -> int:
        return self.stream_start + self.stream_bytes


class UnitShardHeader(msgspec.Struct, frozen=True):
    """Header of a shard. units: of the whole model. Other fields as in `shard_file.ShardHeader`."""

    checkpoint: str
    step: int
    shard: int
    shards: int
    units: int
    sections: tuple[Section, ...]
    contexts: tuple[tuple[int, int], ...]
    ready_order: tuple[int, ...]


_decoder: Final = msgspec.json.Decoder(UnitShardHeader)


class UnitSnapshot(msgspec.Struct, frozen=True):
    """A worker's units at a step boundary, independent of the live state.

    sections: structure and stream (1-D uint8, CPU) by unit. ready_order: shard 0 only.
    """

    step: int
    shard: int
    shards: int
    units: int
    sections: dict[int, tuple[bytes, torch.Tensor]]
    contexts: dict[int, Parts]
    ready_order: tuple[int, ...]


class UnitShardContents(msgspec.Struct, frozen=True):
    """Contents read from a shard: the sha256 of its file, contexts, and the requested sections."""

    sha256: str
    contexts: dict[int, Parts]
    sections: dict[int, Exported]


def copy_section(exported: Exported) -> tuple[bytes, torch.Tensor]:
    """Copy a unit's state out of the live one."""
    layout = StreamLayout(exported.specs)
    pinned = any(tensor.is_cuda for tensor in exported.tensors)
    stream = torch.empty(layout.total_bytes, dtype=torch.uint8, pin_memory=pinned)
    layout.gather(exported.tensors, 0, layout.total_bytes, stream)
    return exported.structure, stream


def unit_shard_chunks(name: str, snapshot: UnitSnapshot) -> Iterator[Chunk]:
    """Yield the bytes of the shard's file."""
    contexts = encoded_contexts(snapshot.contexts, snapshot.step)
    sections, position = [], 0
    for unit, (structure, stream) in sorted(snapshot.sections.items()):
        digest = hashlib.sha256()
        for chunk in _section_chunks(structure, stream):
            digest.update(chunk)
        section = Section(unit, snapshot.shard, position, len(structure), stream.numel(), digest.hexdigest())
        sections.append(section)
        position += _round_up(section.nbytes)
    header = msgspec.json.encode(
        UnitShardHeader(
            checkpoint=name,
            step=snapshot.step,
            shard=snapshot.shard,
            shards=snapshot.shards,
            units=snapshot.units,
            sections=tuple(sections),
            contexts=tuple((rank, len(data)) for rank, data in contexts),
            ready_order=snapshot.ready_order,
        )
    )
    front = b"".join([MAGIC, len(header).to_bytes(8, "little"), header, *(data for _, data in contexts)])
    yield front + bytes(-len(front) % ALIGNMENT_BYTES)
    for _, (structure, stream) in sorted(snapshot.sections.items()):
        yield from _section_chunks(structure, stream)
        yield bytes(-stream.numel() % ALIGNMENT_BYTES)


def _section_chunks(structure: bytes, stream: torch.Tensor) -> Iterator[Chunk]:
    yield structure + bytes(-len(structure) % ALIGNMENT_BYTES)
    memory = stream.numpy().data
    for position in range(0, len(memory), CHUNK_BYTES):
        yield memory[position : position + CHUNK_BYTES]


def read_unit_header(file: Any, file_bytes: int) -> UnitShardHeader:
    """Read the header of an open shard, check it against the file's size, and locate its sections.

    Raises CheckpointDamagedError.
    """
    header_bytes, text = read_prefix(file, MAGIC, file_bytes)
    try:
        header = _decoder.decode(text)
    except msgspec.DecodeError as error:
        raise CheckpointDamagedError(f"has an unreadable header: {error}") from error
    front = _round_up(_PREFIX_BYTES + header_bytes + sum(size for _, size in header.contexts))
    position, sections = 0, []
    for section in header.sections:
        sizes = (section.structure_bytes, section.stream_bytes, *(size for _, size in header.contexts))
        if min(sizes) < 0 or section.start != position or section.shard != header.shard:
            raise CheckpointDamagedError(f"has a section of unit {section.unit} that cannot be")
        sections.append(msgspec.structs.replace(section, start=front + position))
        position += _round_up(section.nbytes)
    if front + position != file_bytes:
        raise CheckpointDamagedError(f"is {file_bytes} bytes long, its header says {front + position}")
    return msgspec.structs.replace(header, sections=tuple(sections))


def read_unit_shard(
    file: Any, header: UnitShardHeader, wanted: Callable[[Section], bool] = lambda _: False
) -> UnitShardContents:
    """Read an open shard completely, and keep the requested sections.

    Raises CheckpointDamagedError if it ends early or a context is invalid.
    """
    digest = hashlib.sha256()
    prefix = read_exactly(file, digest, _PREFIX_BYTES)
    header_bytes = int.from_bytes(prefix[len(MAGIC) :], "little")
    read_exactly(file, digest, header_bytes)
    encoded = [(rank, read_exactly(file, digest, size)) for rank, size in header.contexts]
    position = _PREFIX_BYTES + header_bytes + sum(size for _, size in header.contexts)
    read_exactly(file, digest, -position % ALIGNMENT_BYTES)
    sections = {}
    for section in header.sections:
        size = _round_up(section.nbytes)
        if wanted(section):
            memory = torch.empty(size, dtype=torch.uint8)
            read_into(file, digest, memory)
            sections[section.unit] = (section, memory)
        else:
            skip(file, digest, size)
    exported = {unit: _exported(section, memory) for unit, (section, memory) in sections.items()}
    return UnitShardContents(digest.hexdigest(), contexts_of(encoded, header.step), exported)


def read_section(file: Any, section: Section) -> Exported:
    """Read one section of an open shard and compare its sha256. Raises CheckpointDamagedError."""
    file.seek(section.start)
    digest, memory = hashlib.sha256(), torch.empty(section.nbytes, dtype=torch.uint8)
    read_into(file, digest, memory)
    if digest.hexdigest() != section.sha256:
        raise CheckpointDamagedError(f"is damaged: the sha256 of unit {section.unit} differs")
    return _exported(section, memory)


def _exported(section: Section, memory: torch.Tensor) -> Exported:
    structure = memory[: section.structure_bytes].numpy().tobytes()
    stream = memory[section.stream_start : section.nbytes]
    return exported_from_stream(structure, stream)


def _round_up(count: int) -> int:
    return -(-count // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
