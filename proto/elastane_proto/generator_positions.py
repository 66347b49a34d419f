"""Generator states as positions in the block of words that the receiver has. Pure.

Most draws of a Mersenne Twister (MT19937) change only how many of its block's 624 words are drawn; the words
change once in 624 draws. So a worker sends a state of 2.5 or 5 KB as the 16 to 64 bytes beside the words.

    worker      HostedContexts.reported: `find_position`  ──▶  EstContext.positions in StepReport
    master      ContextTable.after: `at_position`, with the words that it has; whole from there on

The master compares a checksum of the whole state. States have the layouts of `elastane.rng`.
"""

from __future__ import annotations

import zlib
from typing import Final

import msgspec


class PositionError(ValueError):
    """The position does not belong to the given state's block of words."""


class GeneratorPosition(msgspec.Struct, frozen=True, array_like=True):
    """A state whose words are those of the state before.

    beside_words: all its other bytes, in order: position, cached Gaussian value. checksum: CRC-32 of the
    whole state.
    """

    beside_words: bytes
    checksum: int


#: Size of a state, and where its words begin and end, by generator.
_LAYOUTS: Final = {"python": (2513, 4, 2500), "numpy": (2512, 0, 2496), "torch_cpu": (5056, 24, 5016)}


def find_position(name: str, before: bytes, after: bytes) -> GeneratorPosition | None:
    """Return `after` as a position in the block of `before`; None if it has another block.

    name: of the part, as in `elastane_proto.contexts`. None also for parts that are no such generators.
    """
    size, start, end = _layout_of(name)
    if not len(before) == len(after) == size or before[start:end] != after[start:end]:
        return None
    return GeneratorPosition(after[:start] + after[end:], zlib.crc32(after))


def at_position(name: str, before: bytes, position: GeneratorPosition) -> bytes:
    """Return the state at `position` in the block of `before`. Raises PositionError."""
    size, start, end = _layout_of(name)
    beside = position.beside_words
    if len(before) != size or not size or len(beside) != size - (end - start):
        raise PositionError(f"{len(beside)} bytes beside the words are no position of {name}")
    after = b"".join((beside[:start], before[start:end], beside[start:]))
    if zlib.crc32(after) != position.checksum:
        raise PositionError(f"{name} has other words here than where its position was reported")
    return after


def _layout_of(name: str) -> tuple[int, int, int]:
    return _LAYOUTS.get(name.rpartition("rng/")[2], (0, 0, 0))
