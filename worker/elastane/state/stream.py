"""The tensors of a state as one stream of bytes, and its stripes.

Hand-over and checkpoints both divide the state among several workers. Cuts are made at bytes, not between
tensors, so that one huge embedding does not burden a single worker. In the stream the tensors follow in
order, each starting at a multiple of `ALIGNMENT_BYTES` and padded with zeros: a receiver can take the whole
stream into one buffer and use typed views of it, without another copy.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import torch

from elastane.state.codec import Exported, TensorSpec, flat_bytes, from_flat_bytes, specs_of

ALIGNMENT_BYTES: Final = 64


@dataclass(frozen=True)
class Segment:
    """Bytes [start, end) of tensor `tensor`, at `position` of the stream."""

    tensor: int
    start: int
    end: int
    position: int


class StreamLayout:
    """Offsets of the tensors in the stream. `total_bytes` includes the padding."""

    def __init__(self, specs: Sequence[TensorSpec]) -> None:
        self.specs = list(specs)
        self.offsets: list[int] = []
        position = 0
        for spec in self.specs:
            self.offsets.append(position)
            position += _round_up(spec.nbytes)
        self.total_bytes = position

    def stripe(self, index: int, count: int) -> tuple[int, int]:
        """Return the range [start, end) of stripe `index` of `count` equal ones.

        The last are shorter or empty.
        """
        if not 0 <= index < count:
            raise ValueError(f"stripe {index} of {count}")
        width = _round_up(-(-self.total_bytes // count))
        return min(index * width, self.total_bytes), min((index + 1) * width, self.total_bytes)

    def segments(self, start: int, end: int) -> Iterator[Segment]:
        """Yield the pieces of tensors within [start, end) of the stream, in order."""
        first = max(bisect_right(self.offsets, start) - 1, 0)
        for tensor in range(first, len(self.specs)):
            offset = self.offsets[tensor]
            if offset >= end:
                return
            low, high = max(start - offset, 0), min(end - offset, self.specs[tensor].nbytes)
            if low < high:
                yield Segment(tensor, low, high, offset + low)

    def view(
        self, tensors: Sequence[torch.Tensor], start: int, end: int, device: torch.device
    ) -> torch.Tensor | None:
        """Return bytes [start, end) as a view if they lie in one tensor on `device`, otherwise None."""
        for segment in self.segments(start, end):
            source = tensors[segment.tensor]
            if segment.end - segment.start != end - start or source.device != device:
                return None
            return flat_bytes(source)[segment.start : segment.end]
        return None

    def gather(
        self, tensors: Sequence[torch.Tensor], start: int, end: int, out: torch.Tensor
    ) -> torch.Tensor:
        """Write bytes [start, end) of the stream to the front of `out` (1-D uint8) and return that part."""
        piece = out[: end - start]
        position = start
        for segment in self.segments(start, end):
            if segment.position > position:
                piece[position - start : segment.position - start].zero_()
            position = segment.position + segment.end - segment.start
            source = flat_bytes(tensors[segment.tensor])[segment.start : segment.end]
            piece[segment.position - start : position - start].copy_(source)
        if position < end:
            piece[position - start :].zero_()
        return piece

    def views(self, stream: torch.Tensor) -> list[torch.Tensor]:
        """Return the tensors as views of the whole stream (1-D uint8 of `total_bytes`)."""
        return [
            from_flat_bytes(stream[offset : offset + spec.nbytes], spec)
            for offset, spec in zip(self.offsets, self.specs, strict=True)
        ]


def exported_from_stream(structure: bytes, stream: torch.Tensor) -> Exported:
    """Return the state whose tensors are views of `stream` (1-D uint8, as `StreamLayout` orders it)."""
    specs = specs_of(structure)
    return Exported(structure, StreamLayout(specs).views(stream), specs)


def _round_up(count: int) -> int:
    return -(-count // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
