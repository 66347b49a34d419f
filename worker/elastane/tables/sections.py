"""Sections of a slot's weights, for copies to other processes and for files.

A section is one block, or rows of one table, with optimizer state. The same part of a slot may occur in
several sections; the last one counts. All sizes follow from the header and the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from elastane.tables.layout import padded_sum
from elastane_shards.errors import InvalidSnapshot

Chunk = bytes | memoryview


class SectionHeader(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """table: -1 for a block. number: the block's position in the slot, or the number of rows.

    states, steps: of a block, the number of its optimizer's states and of its steps so far.
    """

    table: int
    number: int
    states: int = 0
    steps: int = 0


_decoder: Final = msgspec.msgpack.Decoder(list[SectionHeader])


@dataclass(frozen=True)
class Section:
    """parts: of a block, its values and states; of rows, the ascending ids and the columns."""

    header: SectionHeader
    parts: Sequence[memoryview]

    @property
    def bytes(self) -> int:
        """Bytes of the parts, each padded to the alignment."""
        return padded_sum(len(part) for part in self.parts)


def encode_headers(headers: Sequence[SectionHeader]) -> bytes:
    """Serialise headers of sections."""
    return msgspec.msgpack.encode(headers)


def decode_headers(stored: bytes) -> list[SectionHeader]:
    """Inverse of `encode_headers`. Raises InvalidSnapshot."""
    try:
        return _decoder.decode(stored)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InvalidSnapshot(f"these bytes are no sections: {error}") from error
