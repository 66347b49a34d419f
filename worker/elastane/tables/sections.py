"""Parts of a slot's weights, as they are copied to another process or written to a file.

A section is one block, or rows of one table, with the optimizer's state. Sections of a slot may come more
than once: a later one replaces what an earlier one said. All sizes follow from the header and the model.
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
    """table: -1 for a block. number: its position in the slot, or how many rows. states: of a block, how many
    states its optimizer keeps now; steps: how many it made."""

    table: int
    number: int
    states: int = 0
    steps: int = 0


_decoder: Final = msgspec.msgpack.Decoder(list[SectionHeader])


@dataclass(frozen=True)
class Section:
    """parts: of a block its values and states; of rows the ids, ascending, and the columns."""

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
