"""Contents of a slot, and the sections of messages with its values.

A message's body is a sequence of sections, each at a multiple of 64 bytes from the start, first the blocks of
its slots and then the rows of each table. A table's rows in all slots of a message are one section, sorted by
slot:

    pull     ids for each requested table: int64, in any order within a slot
    pulled   blocks, then the rows in that order
    push     gradients of the blocks in bitmaps, then for each table ids (int64, ascending within a slot) and
             gradients
    initial  blocks
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray

from elastane_shards.errors import InvalidRequest
from elastane_slots.mixing import GOLDEN
from elastane_slots.placement import Block, RowPlacement

ALIGNMENT_BYTES: Final = 64
ID_BYTES: Final = 8
#: Maximum number of rows of one table in one part of a message.
ROWS_MAX: Final = 2**27

Ids = NDArray[np.int64]
Values = torch.Tensor
#: (table, number of rows), tables ascending.
Rows = Sequence[tuple[int, int]]
#: Bitmap of the blocks, rows, and sections.
PushMessage = tuple[bytes, list[tuple[int, int]], list[memoryview]]


class NonFiniteGradient(InvalidRequest):
    """A gradient contains NaN or infinity."""


@dataclass(frozen=True)
class SlotTable:
    """A table, of which each slot holds a part."""

    name: str
    rows: int
    width: int
    dtype: torch.dtype
    padding_row: int | None
    placement: RowPlacement

    @property
    def row_bytes(self) -> int:
        return self.width * self.dtype.itemsize


class RowGradients(msgspec.Struct, frozen=True):
    """Gradients of rows of one table: ids, ascending, and values of shape (rows, width)."""

    table: int
    ids: Ids
    values: Values


class PushPart(msgspec.Struct, frozen=True):
    """A task's gradients for one slot. blocks: 1-D tensors by position in the slot. Empty: only the name."""

    blocks: dict[int, Values] = {}
    rows: tuple[RowGradients, ...] = ()


@dataclass(frozen=True)
class SlotLayout:
    """Contents of one slot.

    blocks: ordered by (tensor, number). tensors, dtypes: of each block. tables: all tables of the model.
    wire: "bfloat16" if float32 values are sent in that type.
    """

    slot: int
    blocks: tuple[Block, ...]
    tensors: tuple[int, ...]
    dtypes: tuple[torch.dtype, ...]
    tables: tuple[SlotTable, ...]
    wire: str = "float32"

    @cached_property
    def dense_bytes(self) -> int:
        """Size of the blocks' values in bytes."""
        return sum(
            (block.end - block.start) * dtype.itemsize
            for block, dtype in zip(self.blocks, self.dtypes, strict=True)
        )

    @cached_property
    def bitmap_bytes(self) -> int:
        """Size in bytes of a bitmap of the blocks: block i is bit i % 8 (from the lowest) of byte i // 8."""
        return (len(self.blocks) + 7) // 8

    @property
    def initial_sections(self) -> list[int]:
        """Bytes of the sections of the initial values: blocks as they are stored."""
        return [
            (block.end - block.start) * dtype.itemsize
            for block, dtype in zip(self.blocks, self.dtypes, strict=True)
        ]

    def push_bytes(self, bitmap: bytes, rows: Rows) -> int:
        """Bytes of a push, each section padded. Raises InvalidRequest."""
        sizes = self.block_sizes
        total = padded_sum(sizes[position] for position in self.positions(bitmap)) if bitmap else 0
        for table, count in self.check_tables(rows):
            total += padded(count * ID_BYTES) + padded(count * self.wire_rows[table])
        return total

    def push_sections(self, bitmap: bytes, rows: Rows) -> list[int]:
        """Bytes of the sections of a push. Raises InvalidRequest."""
        sizes = self.block_sizes
        sections = [sizes[position] for position in self.positions(bitmap)]
        for table, count in self.check_tables(rows):
            sections += [count * ID_BYTES, count * self.wire_rows[table]]
        return sections

    def positions(self, bitmap: bytes) -> list[int]:
        """Positions of the blocks of a bitmap. Raises InvalidRequest."""
        if not bitmap:
            return []
        number = int.from_bytes(bitmap, "little")
        if len(bitmap) != self.bitmap_bytes or number >> len(self.blocks):
            raise InvalidRequest(f"slot {self.slot} has {len(self.blocks)} blocks", slot=self.slot)
        return [position for position in range(len(self.blocks)) if number >> position & 1]

    def bitmap(self, positions: Iterable[int]) -> bytes:
        """Inverse of `positions`."""
        if not self.blocks:
            return b""
        number = sum(1 << position for position in positions)
        return number.to_bytes(self.bitmap_bytes, "little") if number else b""

    def block_dtype(self, position: int) -> torch.dtype:
        """Return the type of a block's values in messages."""
        return self._wire_dtype(self.dtypes[position])

    def row_dtype(self, table: int) -> torch.dtype:
        """Return the type of a table's values in messages."""
        return self._wire_dtype(self.tables[table].dtype)

    def push_part(self, bitmap: bytes, rows: Rows, sections: Sequence[memoryview]) -> PushPart:
        """Read a push from its sections, whose sizes are those of `push_sections`.

        Values are copied only if they were sent in another type.
        """
        blocks = self.read_blocks(bitmap, sections)
        rest = sections[len(blocks) :]
        found = [
            RowGradients(table, *self.read_rows(table, ids, values))
            for (table, _), ids, values in zip(rows, rest[::2], rest[1::2], strict=True)
        ]
        return PushPart(blocks, tuple(found))

    def read_rows(self, table: int, ids: memoryview, values: memoryview) -> tuple[Ids, Values]:
        """Read ids and values of a table's rows, of any slots."""
        told, count = self.tables[table], len(ids) // ID_BYTES
        if not count:
            return np.empty(0, np.int64), torch.empty(0, told.width, dtype=told.dtype)
        read = torch.frombuffer(values, dtype=self.row_dtype(table))
        return np.frombuffer(ids, np.int64), read.to(told.dtype).view(count, told.width)

    def push_message(self, part: PushPart) -> PushMessage:
        """Inverse of `push_part`: return bitmap, rows and sections, with values in the type that is sent."""
        rows, sections = [], self.block_sections(part.blocks)
        for one in part.rows:
            rows.append((one.table, len(one.ids)))
            sections += [bytes_of(one.ids), values_of(one.values, self.row_dtype(one.table))]
        return self.bitmap(part.blocks), rows, sections

    def read_blocks(self, bitmap: bytes, sections: Sequence[memoryview]) -> dict[int, Values]:
        """Read the gradients of the blocks in a bitmap from the first sections."""
        return {
            position: torch.frombuffer(section, dtype=self.block_dtype(position)).to(self.dtypes[position])
            for position, section in zip(self.positions(bitmap), sections, strict=False)
        }

    def block_sections(self, blocks: Mapping[int, Values]) -> list[memoryview]:
        """Inverse of `read_blocks`."""
        return [values_of(values, self.block_dtype(position)) for position, values in sorted(blocks.items())]

    def check_part(self, part: PushPart, *, finite: bool = True) -> None:
        """Raise InvalidRequest unless a push can be applied to this slot.

        finite: also raise NonFiniteGradient for NaN and infinity.
        """
        for position, gradient in part.blocks.items():
            if not 0 <= position < len(self.blocks):
                raise InvalidRequest(f"slot {self.slot} has no block {position}", slot=self.slot)
            block = self.blocks[position]
            if gradient.shape != (block.end - block.start,) or gradient.dtype != self.dtypes[position]:
                raise InvalidRequest(f"a gradient of {block.tensor!r} has another shape", tensor=block.tensor)
        for rows in part.rows:
            self.check_ids(rows.table, rows.ids, ascending=True)
            table = self.tables[rows.table]
            if rows.values.shape != (len(rows.ids), table.width) or rows.values.dtype != table.dtype:
                raise InvalidRequest(f"gradients of {table.name!r} have another shape", table=table.name)
        if finite:
            self._check_finite(part)

    def check_ids(self, table: int, ids: Ids, *, ascending: bool) -> None:
        """Raise InvalidRequest unless these are ids of the table in this slot.

        ascending: require ascending order without repeats and padding, as in a push.
        """
        told = self.tables[table]
        if not len(ids):
            return
        low, high = int(ids.min()), int(ids.max())
        if low < 0 or high >= told.rows:
            raise InvalidRequest(
                f"{told.name!r} has no row {low if low < 0 else high}: it has {told.rows}", table=told.name
            )
        if ascending and not bool((ids[1:] > ids[:-1]).all()):
            raise InvalidRequest(f"ids of {told.name!r} are not ascending", table=told.name)
        if ascending and told.padding_row is not None and low <= told.padding_row <= high:
            place = int(np.searchsorted(ids, told.padding_row))
            if ids[place] == told.padding_row:
                raise InvalidRequest(f"a gradient of the padding row of {told.name!r}", table=told.name)
        if not bool((slots_of(told.placement, ids) == self.slot).all()):
            raise InvalidRequest(f"rows of {told.name!r} are not in slot {self.slot}", table=told.name)

    def _check_finite(self, part: PushPart) -> None:
        for position, gradient in part.blocks.items():
            if not is_finite(gradient):
                raise NonFiniteGradient(
                    f"a gradient of {self.blocks[position].tensor!r} is not finite",
                    tensor=self.blocks[position].tensor,
                )
        for rows in part.rows:
            if not is_finite(rows.values):
                name = self.tables[rows.table].name
                raise NonFiniteGradient(f"a gradient of {name!r} is not finite", table=name)

    def check_tables(self, rows: Rows) -> Rows:
        """Return rows. Raises InvalidRequest unless tables are ascending, with possible numbers of rows."""
        before = -1
        for table, count in rows:
            if not before < table < len(self.tables) or not 0 <= count <= ROWS_MAX:
                raise InvalidRequest(f"{count} rows of table {table}", table=table, rows=count)
            before = table
        return rows

    def _wire_dtype(self, dtype: torch.dtype) -> torch.dtype:
        return torch.bfloat16 if self.wire == "bfloat16" and dtype == torch.float32 else dtype

    @cached_property
    def block_sizes(self) -> list[int]:
        """Bytes of the blocks in messages, without padding."""
        return [
            (block.end - block.start) * self._wire_dtype(dtype).itemsize
            for block, dtype in zip(self.blocks, self.dtypes, strict=True)
        ]

    @cached_property
    def padded_blocks_bytes(self) -> int:
        """Bytes of all blocks in messages, each section padded."""
        return padded_sum(self.block_sizes)

    @cached_property
    def wire_rows(self) -> list[int]:
        """Bytes of a row of each table in messages."""
        return [table.width * self._wire_dtype(table.dtype).itemsize for table in self.tables]


def are_ids(table: SlotTable, slots: NDArray[np.int64], ids: Ids) -> bool:
    """Return True if these are ids of the table, each in its slot."""
    if not len(ids):
        return True
    if int(ids.min()) < 0 or int(ids.max()) >= table.rows:
        return False
    return bool((slots_of(table.placement, ids) == slots).all())


def slots_of(placement: RowPlacement, ids: Ids) -> NDArray[np.int64]:
    """Return the slots of rows: `RowPlacement.slot` for arrays."""
    return (
        (drawn(placement.key, ids) >> np.uint64(32)) * np.uint64(placement.slots) >> np.uint64(32)
    ).astype(np.int64)


def drawn(
    key: int | NDArray[np.uint64], numbers: NDArray[np.int64] | NDArray[np.uint64]
) -> NDArray[np.uint64]:
    """`elastane_slots.mixing.drawn` for arrays."""
    value = numbers.astype(np.uint64)
    value += np.uint64(1)
    value *= np.uint64(GOLDEN)
    value = value + (np.uint64(key) if isinstance(key, int) else key)
    shifted = value >> np.uint64(30)
    value ^= shifted
    value *= np.uint64(0xBF58476D1CE4E5B9)
    value ^= np.right_shift(value, np.uint64(27), out=shifted)
    value *= np.uint64(0x94D049BB133111EB)
    value ^= np.right_shift(value, np.uint64(31), out=shifted)
    return value


def bytes_of(ids: Ids) -> memoryview:
    """Return the bytes of ids."""
    return np.ascontiguousarray(ids).data.cast("B") if len(ids) else memoryview(b"")


def values_of(values: Values, dtype: torch.dtype) -> memoryview:
    """Return the bytes of values in a type; copied only if the type differs."""
    if not values.numel():
        return memoryview(b"")
    if values.dtype != dtype or dtype == torch.bfloat16:
        values = values.to(dtype).contiguous().view(torch.uint8)  # numpy has no bfloat16
    return np.ascontiguousarray(values.numpy()).reshape(-1).view(np.uint8).data


def is_finite(values: torch.Tensor) -> bool:
    """Return True if there is neither NaN nor infinity. One pass if the sum of magnitudes is finite."""
    if not values.numel():
        return True
    # x - x is 0 for finite x and NaN for others; a sum of these cannot overflow.
    return bool(torch.isfinite(values.sum()) or torch.isfinite(values).all())


def padded(size: int) -> int:
    """Return the next multiple of the alignment."""
    return size + -size % ALIGNMENT_BYTES


def padded_sum(sections: Iterable[int]) -> int:
    """Return the bytes of sections, each padded to the alignment."""
    return sum(map(padded, sections))


def cut(body: memoryview, sections: Sequence[int]) -> list[memoryview]:
    """Divide a body into its sections."""
    parts, at = [], 0
    for size in sections:
        parts.append(body[at : at + size])
        at += padded(size)
    return parts
