"""Frames of a feed, from the source of a newcomer that follows the ring, to it.

    head       kind, step, number, bytes of the structure, bytes of the stream, crc32 of both
    structure  JSON of the codec
    stream     tensors, as `StreamLayout` orders them, in pieces

The checksum is that of a small frame; large ones are covered by the digest that both report before the
newcomer's copy is believed.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch

from elastane.state.codec import Exported
from elastane.state.handover import PIECE_BYTES, HandoverError, Transport
from elastane.state.stream import StreamLayout, exported_from_stream

STATE, GIVEN, LEVEL, END = range(4)
CHECKED_BYTES_MAX: Final = 16 << 20
_HEAD_FIELDS: Final = 6
_TAG: Final = 1


@dataclass(frozen=True)
class Frame:
    """One message. step: of the state. number: of optimizer steps since the feed's beginning.

    block: the memory of the stream, to be given back to its `Memory`.
    """

    kind: int
    step: int
    number: int = 0
    structure: bytes = b""
    stream: torch.Tensor | None = None
    block: torch.Tensor | None = None

    def exported(self) -> Exported:
        """Return the tensors, as views of the stream."""
        stream = torch.empty(0, dtype=torch.uint8) if self.stream is None else self.stream
        return exported_from_stream(self.structure, stream)


class Memory:
    """Memory for streams, used again where it is large enough: fresh pages cost more than filling them."""

    def __init__(self) -> None:
        self._free: list[torch.Tensor] = []

    def take(self, size_bytes: int) -> torch.Tensor:
        """Return memory of at least this size, at the front of which a stream fits."""
        for index, block in enumerate(self._free):
            if block.numel() >= size_bytes:
                return self._free.pop(index)
        return torch.empty(size_bytes, dtype=torch.uint8)

    def give(self, block: torch.Tensor) -> None:
        """Take a block back that nobody uses any more."""
        self._free.append(block)


def copy_of(tensors: Sequence[torch.Tensor], layout: StreamLayout, memory: Memory) -> torch.Tensor:
    """Copy tensors into a stream, and return the block at whose front it is."""
    block = memory.take(layout.total_bytes)
    layout.gather(tensors, 0, layout.total_bytes, block)
    return block


def send_frame(transport: Transport, peer: int, frame: Frame) -> None:
    """Send a frame; returns when it is delivered or in transit. Errors of the transport pass through."""
    structure = torch.frombuffer(bytearray(frame.structure or b" "), dtype=torch.uint8)
    stream = torch.empty(0, dtype=torch.uint8) if frame.stream is None else frame.stream
    head = [
        frame.kind,
        frame.step,
        frame.number,
        structure.numel(),
        stream.numel(),
        _checksum(structure, stream),
    ]
    works = [transport.send(torch.tensor(head), peer, _TAG), transport.send(structure, peer, _TAG)]
    works += [transport.send(piece, peer, _TAG) for piece in stream.split(PIECE_BYTES) if piece.numel()]
    for work in works:
        work.wait()


def receive_frame(transport: Transport, peer: int, memory: Memory) -> Frame:
    """Receive the next frame. Raises HandoverError if it is damaged; errors of the transport pass through.

    memory: where its stream is put, to be given back.
    """
    head = torch.zeros(_HEAD_FIELDS, dtype=torch.int64)
    transport.recv(head, peer, _TAG).wait()
    kind, step, number, structure_bytes, stream_bytes, checksum = head.tolist()
    if not (STATE <= kind <= END and structure_bytes > 0 and stream_bytes >= 0):
        raise HandoverError(f"the source sent an invalid frame: {head.tolist()}")
    structure = torch.empty(structure_bytes, dtype=torch.uint8)
    block = memory.take(stream_bytes)
    stream = block[:stream_bytes]
    works = [transport.recv(structure, peer, _TAG)]
    works += [transport.recv(piece, peer, _TAG) for piece in stream.split(PIECE_BYTES) if piece.numel()]
    for work in works:
        work.wait()
    if _checksum(structure, stream) != checksum:
        raise HandoverError(f"the frame of step {step} that the source sent is damaged")
    return Frame(kind, step, number, structure.numpy().tobytes(), stream, block)


def _checksum(structure: torch.Tensor, stream: torch.Tensor) -> int:
    value = zlib.crc32(structure.numpy().data)
    return zlib.crc32(stream.numpy().data, value) if stream.numel() <= CHECKED_BYTES_MAX else value
