"""Weights and optimizer state of one slot: pulls, updates, copies.

    prepare    does everything that can fail: adds rows, allocates states; changes nothing visible
    apply      applies the gradients
    mark, changed_since, pieces, read    changes since a mark, read in pieces
    load       loads pieces into another process's slot, in the order in which they were read

Not thread-safe: callers hold the owner's lock. The lock may be released between pieces; the next
`changed_since` includes changes made meanwhile.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from elastane.tables import table_rows
from elastane.tables.by_slot import TaskGradients, joined
from elastane.tables.dense_rules import STATES, BlockState
from elastane.tables.layout import Ids, PushPart, SlotLayout, SlotTable
from elastane.tables.rates import Rates, scaled
from elastane.tables.row_arena import RowArenas
from elastane.tables.row_index import Places
from elastane.tables.sections import Section, SectionHeader
from elastane.tables.spec import ModelSpec
from elastane.tables.table_rows import Absent, Part, TableRows, fill_absent
from elastane_shards.errors import IllegalTransition, InvalidSnapshot

#: Approximate size of a piece of rows.
PIECE_BYTES: Final = 2**20


@dataclass(frozen=True)
class SlotBytes:
    """Memory of a slot in bytes: values, optimizer states, row indexes. rows: its number of rows."""

    weights: int
    optimizer: int
    index: int
    rows: int

    @property
    def total(self) -> int:
        return self.weights + self.optimizer + self.index


@dataclass(frozen=True)
class Changes:
    """Changed blocks by position, and ids and positions of changed rows by table."""

    blocks: tuple[int, ...]
    rows: tuple[tuple[int, Ids, Places], ...]
    bytes: int


@dataclass(frozen=True)
class Piece:
    """A unit of copying: a block, or rows of one table."""

    block: int = -1
    table: int = -1
    ids: Ids | None = None
    places: Places | None = None


@dataclass(frozen=True)
class PreparedPush:
    """A push to slots, prepared. rows: of each step, the table, the slots' parts, positions of their rows,
    gradients."""

    weights: Mapping[int, SlotWeights]
    gradients: TaskGradients
    rows: list[tuple[int, list[Part], Places, torch.Tensor]]


class SlotWeights:
    """The weights of slot `slot` of a model. A slot without blocks counts as initialised.

    arenas: of the process, if it has several slots of the model.
    """

    def __init__(self, spec: ModelSpec, slot: int, arenas: RowArenas | None = None) -> None:
        self.layout: SlotLayout = spec.layout(slot)
        self._spec = spec
        self._blocks: list[BlockState | None] = [None] * len(self.layout.blocks)
        self._block_marks = [0] * len(self._blocks)
        self._mark = 1
        self._rows = [
            TableRows(
                slot,
                table,
                spec.initial_rows(number),
                spec.tables[number].rule,
                arenas.tables[number] if arenas is not None else None,
            )
            for number, table in enumerate(self.layout.tables)
        ]

    @property
    def initialised(self) -> bool:
        """True once all blocks have values."""
        return None not in self._blocks

    @property
    def bytes(self) -> SlotBytes:
        blocks = [block for block in self._blocks if block is not None]
        return SlotBytes(
            sum(block.values.nbytes for block in blocks) + sum(rows.weight_bytes for rows in self._rows),
            sum(state.nbytes for block in blocks for state in block.states)
            + sum(rows.state_bytes for rows in self._rows),
            sum(rows.index_bytes for rows in self._rows),
            sum(map(len, self._rows)),
        )

    def initialise(self, dense: Sequence[memoryview]) -> None:
        """Set the initial values of all blocks, one section each. Raises IllegalTransition if set."""
        if self._blocks and self.initialised:
            raise IllegalTransition(f"slot {self.layout.slot} is initialised", slot=self.layout.slot)
        self._blocks = [
            BlockState(torch.frombuffer(part, dtype=dtype).clone())
            for part, dtype in zip(dense, self.layout.dtypes, strict=True)
        ]
        self._block_marks = [self._mark] * len(self._blocks)

    def most_bytes(self, gradients: TaskGradients) -> int:
        """Return the memory that the rows of a push, in any slots, take if all are new, in bytes."""
        return sum(len(rows.ids) * self._rows[rows.table].row_bytes for rows in gradients.rows)

    def new_bytes(self, part: PushPart) -> dict[int, int]:
        """Return the memory that the new rows of a push take, in bytes by table."""
        tables = self._rows
        return {
            one.table: tables[one.table].new_count(one.ids) * tables[one.table].row_bytes for one in part.rows
        }

    # ------------------------------------------------------------------ pulls and pushes

    def pull_dense(self, into: Sequence[memoryview]) -> None:
        """Copy the blocks into memory, one section each, in the type that is sent."""
        for position, (block, part) in enumerate(zip(self._blocks, into, strict=True)):
            assert block is not None
            torch.frombuffer(part, dtype=self.layout.block_dtype(position)).copy_(block.values)

    def pull_rows(self, table: int, ids: Ids, into: memoryview) -> None:
        """Copy rows into memory, in the order of ids, in the type that is sent."""
        if len(ids):
            told = self.layout.tables[table]
            rows, absent = empty_rows(told, len(ids))
            table_rows.read([(self._rows[table], 0, len(ids))], ids, rows, absent)
            fill_absent(told, self._spec.initial_rows(table), ids, rows, absent)
            values = torch.from_numpy(rows)
            torch.frombuffer(into, dtype=self.layout.row_dtype(table)).copy_(values.view(-1))

    def prepare(self, part: PushPart, rates: Rates) -> PreparedPush:
        """`prepare_all` of one slot."""
        slot = self.layout.slot
        return prepare_all({slot: self}, joined({slot: part}, self._spec.slots), rates)

    def apply(self, prepared: PreparedPush, rates: Rates, scale: float = 1.0) -> None:
        """`apply_all` of one slot."""
        apply_all(prepared, rates, scale)

    # ------------------------------------------------------------------ copies

    def mark(self) -> int:
        """Return a mark; later changes have this mark or a later one."""
        self._mark += 1
        for rows in self._rows:
            rows.mark = self._mark
        return self._mark

    def changed_since(self, mark: int = 0) -> Changes:
        """Return the changes since a mark; 0: everything."""
        if not self.initialised:
            return Changes((), (), 0)
        blocks = tuple(p for p, touched in enumerate(self._block_marks) if touched >= mark)
        size, rows = 0, []
        for position in blocks:
            block = self._blocks[position]
            assert block is not None
            size += block.values.nbytes * (1 + len(block.states))
        for number, table in enumerate(self._rows):
            ids, places = table.touched(mark)
            if len(ids):
                rows.append((number, ids, places))
                size += len(ids) * (8 + sum(table.column_row_bytes))
        return Changes(blocks, tuple(rows), size)

    def pieces(self, changes: Changes) -> Iterator[Piece]:
        """Divide changes into pieces of about PIECE_BYTES."""
        for position in changes.blocks:
            yield Piece(block=position)
        for table, ids, places in changes.rows:
            step = max(1, PIECE_BYTES // (8 + sum(self._rows[table].column_row_bytes)))
            for start in range(0, len(ids), step):
                yield Piece(-1, table, ids[start : start + step], places[start : start + step])

    def read(self, piece: Piece) -> Section:
        """Copy the present state of a piece."""
        if piece.ids is None or piece.places is None:
            block = self._blocks[piece.block]
            assert block is not None
            header = SectionHeader(-1, piece.block, len(block.states), block.steps)
            return Section(header, [_bytes_of(tensor.clone()) for tensor in (block.values, *block.states)])
        columns = self._rows[piece.table].columns(piece.places)
        header = SectionHeader(piece.table, len(piece.ids))
        return Section(header, [_flat(piece.ids), *map(_flat, columns)])

    def sections(self, changes: Changes | None = None) -> Iterator[Section]:
        """Yield sections of the changes, or of everything."""
        return map(self.read, self.pieces(self.changed_since() if changes is None else changes))

    def section_sizes(self, header: SectionHeader) -> list[int]:
        """Bytes of a section's parts. Raises InvalidSnapshot for one that this slot cannot have."""
        if header.table < 0:
            if not 0 <= header.number < len(self._blocks) or header.steps < 0 or header.table != -1:
                raise InvalidSnapshot(f"slot {self.layout.slot} has no such section", slot=self.layout.slot)
            rule = self._spec.tensors[self.layout.tensors[header.number]].rule
            if header.states not in (0, STATES[rule]):
                raise InvalidSnapshot(f"{header.states} states of {rule}", slot=self.layout.slot)
            return [self.layout.initial_sections[header.number]] * (1 + header.states)
        if header.table >= len(self._rows) or header.number < 1:
            raise InvalidSnapshot(f"slot {self.layout.slot} has no such section", slot=self.layout.slot)
        return [8 * header.number, *(n * header.number for n in self._rows[header.table].column_row_bytes)]

    def load(self, section: Section) -> None:
        """Load a section with the sizes of `section_sizes`. Raises InvalidSnapshot, MemoryError."""
        header, parts = section.header, section.parts
        if header.table >= 0:
            ids = np.frombuffer(parts[0], np.int64)
            self.layout.check_ids(header.table, ids, ascending=True)
            self._rows[header.table].load(ids, parts[1:])
            return
        dtype = self.layout.dtypes[header.number]
        values, *states = (torch.frombuffer(part, dtype=dtype).clone() for part in parts)
        block = BlockState(values)
        block.states, block.steps = states, header.steps
        self._blocks[header.number] = block
        self._block_marks[header.number] = self._mark

    def digest(self) -> str:
        """Return SHA-256 of everything, independent of the order in which rows were added; for audits."""
        digest = hashlib.sha256()
        for number, block in enumerate(self._blocks):
            if block is not None:
                digest.update(b"block %d %d" % (number, block.steps))
                for tensor in (block.values, *block.states):
                    digest.update(_bytes_of(tensor))
        for number, table in enumerate(self._rows):
            ids, places = table.touched(0)
            digest.update(b"table %d" % number)
            for part in (ids, *table.columns(places)):
                digest.update(_flat(part))
        return digest.hexdigest()

    def _block_rule(self, position: int, rates: Rates) -> tuple[str, Sequence[float]]:
        tensor = self._spec.tensors[self.layout.tensors[position]]
        return tensor.rule, rates[tensor.group]


def prepare_all(weights: Mapping[int, SlotWeights], gradients: TaskGradients, rates: Rates) -> PreparedPush:
    """Allocate all rows and states that a push to slots needs.

    weights: of slots, ascending, among them all with gradients. Call `check_gradients` and `rates.check`
    first. Raises MemoryError and changes nothing visible.
    """
    for slot, blocks in gradients.blocks.items():
        own = weights[slot]
        for position in blocks:
            block = own._blocks[position]
            assert block is not None
            block.prepare(*own._block_rule(position, rates))
    steps = []
    for rows in gradients.rows:
        numbers = rates[next(iter(weights.values()))._spec.tables[rows.table].group]
        for parts in together(weights.items(), rows.table, rows.bounds):
            values = rows.values[parts[0][1] : parts[-1][2]]
            steps.append((rows.table, parts, table_rows.born(parts, rows.ids, numbers), values))
    return PreparedPush(weights, gradients, steps)


@torch.no_grad()
def apply_all(prepared: PreparedPush, rates: Rates, scale: float = 1.0) -> None:
    """Apply a push to slots, each table's rows in one step.

    scale: factor of learning rates. After an exception the slots are unusable.
    """
    rates = scaled(rates, scale)
    for slot, blocks in prepared.gradients.blocks.items():
        own = prepared.weights[slot]
        for position, gradient in blocks.items():
            block = own._blocks[position]
            assert block is not None
            rule, numbers = own._block_rule(position, rates)
            block.step(rule, gradient, numbers)
            own._block_marks[position] = own._mark
    for table, parts, places, gradients in prepared.rows:
        numbers = rates[next(iter(prepared.weights.values()))._spec.tables[table].group]
        table_rows.step(parts, places, gradients.numpy(), numbers)


def together(
    weights: Iterable[tuple[int, SlotWeights]], table: int, bounds: Sequence[int]
) -> Iterator[list[Part]]:
    """Yield the parts of a table's rows that are read or updated in one step.

    weights: by place in `bounds`, ascending. Parts that do not follow one another, or are in several arenas,
    are not together.
    """
    parts = [
        (own._rows[table], bounds[place], bounds[place + 1])
        for place, own in weights
        if bounds[place] < bounds[place + 1]
    ]
    start = 0
    for number in range(1, len(parts)):
        if parts[number][1] != parts[number - 1][2] or parts[number][0].arena is not parts[start][0].arena:
            yield parts[start:number]
            start = number
    if parts:
        yield parts[start:]


def read_rows(
    weights: Iterable[tuple[int, SlotWeights]],
    table: int,
    bounds: Sequence[int],
    ids: Ids,
    rows: NDArray[Any],
    absent: Absent,
) -> None:
    """Copy the rows of slots, as `table_rows.read` does. weights: by place in `bounds`, ascending."""
    for parts in together(weights, table, bounds):
        table_rows.read(parts, ids, rows, absent)


def empty_rows(table: SlotTable, count: int) -> tuple[NDArray[Any], Absent]:
    """Return memory for `count` rows and for which of them are absent, with no row read yet."""
    dtype = str(table.dtype).removeprefix("torch.")
    return np.empty((count, table.width), dtype), np.ones(count, np.bool_)


def load_all(weights: SlotWeights, sections: Iterable[Section]) -> None:
    """Load sections in their order."""
    for section in sections:
        weights.load(section)


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    return _flat(tensor.view(torch.uint8).numpy())


def _flat(array: NDArray[Any]) -> memoryview:
    if not array.size:
        return memoryview(b"")  # an empty array cannot be cast
    return np.ascontiguousarray(array).data.cast("B")
