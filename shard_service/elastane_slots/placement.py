"""Assignment of model parts to slots, fixed for the life of the job.

Dense tensors are cut into blocks in memory order; rows of sparse tables are assigned one by one. A fixed hash
maps both to slots. The numbers of processes and workers do not enter, so they cannot affect the result. The
number of slots does, and is fixed with the job.

Blocks begin at multiples of a power of two of elements, so that a cut never divides a vector register:
kernels may compute the last few elements of a tensor differently, which would change an optimizer's bits.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from elastane_shards.errors import InvalidRequest, InvalidSettings
from elastane_slots.mixing import below, drawn, text_key

#: Default number of slots of a job.
SLOTS: Final = 64
SLOTS_MAX: Final = 4096
#: Size of a block, in bytes; the last block of a tensor may be smaller.
BLOCK_BYTES: Final = 2**20
#: Largest id of a row: ids are signed 64-bit integers on the wire.
ID_MAX: Final = 2**63 - 1
_ELEMENT_BYTES: Final = (1, 2, 4, 8, 16)


class Block(msgspec.Struct, frozen=True):
    """Elements [start, end) of a dense tensor, in the order of its memory."""

    tensor: str
    number: int
    start: int
    end: int
    slot: int


def check_slots(slots: int) -> None:
    """Raise InvalidSettings unless a model can be divided into this many slots."""
    if not 1 <= slots <= SLOTS_MAX:
        raise InvalidSettings(f"{slots} slots", hint=f"between 1 and {SLOTS_MAX}", slots=slots)


def blocks(tensor: str, elements: int, element_bytes: int, slots: int) -> Iterator[Block]:
    """Yield the blocks of a dense tensor in order; none for an empty tensor.

    Raises InvalidSettings for an impossible size.
    """
    check_slots(slots)
    if elements < 0 or element_bytes not in _ELEMENT_BYTES:
        raise InvalidSettings(
            f"a tensor of {elements} elements of {element_bytes} bytes cannot be cut", tensor=tensor
        )
    step = BLOCK_BYTES // element_bytes
    for number, start in enumerate(range(0, elements, step)):
        slot = slot_of_block(tensor, number, slots)
        yield Block(tensor, number, start, min(start + step, elements), slot)


def slot_of_block(tensor: str, number: int, slots: int) -> int:
    """Return the slot of a block of a dense tensor."""
    return below(drawn(text_key("block", tensor), number), slots)


class RowPlacement:
    """Slots of the rows of one table.

    key: of the table, for callers that compute slots of arrays of ids as `slot` does:
    ((mixed(key + (id + 1) * GOLDEN) >> 32) * slots) >> 32, modulo 2**64.
    """

    __slots__ = ("key", "slots")

    def __init__(self, table: str, slots: int) -> None:
        check_slots(slots)
        self.key = text_key("row", table)
        self.slots = slots

    def slot(self, row: int) -> int:
        """Return the slot of a row. Raises InvalidRequest for an id that is negative or above ID_MAX."""
        if not 0 <= row <= ID_MAX:
            raise InvalidRequest(f"row {row} is not in [0, 2**63)", row=row)
        return below(drawn(self.key, row), self.slots)
