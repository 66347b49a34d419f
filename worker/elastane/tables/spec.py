"""Specification of a model for its parameter servers: dense tensors, tables of rows, and their optimizers.

All workers register an equal one, and it never changes. It determines the slots of all parts and the size of
every message, so that a receiver knows the permitted size of a message before reading it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cached_property
from math import prod
from typing import Final, Literal

import msgspec
import torch

from elastane.tables.layout import SlotLayout, SlotTable
from elastane.tables.rates import DENSE_RULES, ROW_RULES
from elastane_common.errors import EXIT_REFUSED, ElastaneError
from elastane_shards.errors import ShardsError
from elastane_slots.initial_rows import WIDTH_MAX, Distribution, InitialRows
from elastane_slots.placement import ID_MAX, SLOTS, Block, RowPlacement, blocks, check_slots

DTYPES: Final[Mapping[str, torch.dtype]] = {
    "float32": torch.float32,
    "float64": torch.float64,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
#: Supported types of table rows.
ROW_DTYPES: Final = ("float32", "float64")
#: Limits of a model.
TENSORS_MAX: Final = 100_000
TABLES_MAX: Final = 10_000
GROUPS_MAX: Final = 1_000
ELEMENTS_MAX: Final = 2**44

Wire = Literal["float32", "bfloat16"]


class PsModelError(ElastaneError):
    """The model, or a part of it, cannot be trained at parameter servers."""

    code = "ELA480"
    exit_code = EXIT_REFUSED


class DenseTensor(msgspec.Struct, frozen=True):
    """A dense parameter. strides: in elements; () for a contiguous one. group: of the optimizer."""

    name: str
    shape: tuple[int, ...]
    strides: tuple[int, ...] = ()
    dtype: str = "float32"
    rule: str = "sgd"
    group: int = 0

    @property
    def elements(self) -> int:
        return prod(self.shape)


class RowTable(msgspec.Struct, frozen=True):
    """A table: rows of `width` elements with ids [0, rows). padding_row: is zero and never updated.

    distribution, scale: of the initial values of rows (`elastane_slots.initial_rows`).
    """

    name: str
    rows: int
    width: int
    dtype: str = "float32"
    padding_row: int | None = None
    distribution: Distribution = "normal"
    scale: float = 1.0
    rule: str = "row_sgd"
    group: int = 0


def weight_of(table: str) -> str:
    """Return torch's name of an embedding's weight; "weight" if the model itself is the embedding."""
    return table if table == "weight" else f"{table}.weight"


class ModelSpec(msgspec.Struct, frozen=True, dict=True):
    """A model. slots: fixed for the job. seed: of initial rows. wire: type of float32 values in messages."""

    tensors: tuple[DenseTensor, ...] = ()
    tables: tuple[RowTable, ...] = ()
    slots: int = SLOTS
    seed: int = 0
    wire: Wire = "float32"

    def check(self) -> None:
        """Raise PsModelError if the model is inconsistent or has an unsupported part."""
        try:
            check_slots(self.slots)
            for table in self.tables:
                self._check_table(table)
        except ShardsError as error:
            raise PsModelError(str(error), hint=error.hint, **error.facts) from error
        for tensor in self.tensors:
            _check_tensor(tensor)
        for names in ([t.name for t in self.tensors], [t.name for t in self.tables]):
            if twice := sorted({name for name in names if names.count(name) > 1} if names else ()):
                raise PsModelError(f"{twice[0]!r} stands twice in the model", name=twice[0])
        if len(self.tensors) > TENSORS_MAX or len(self.tables) > TABLES_MAX:
            raise PsModelError(f"a model of {len(self.tensors)} tensors and {len(self.tables)} tables")
        if self.wire not in ("float32", "bfloat16"):
            raise PsModelError(f"values cannot be sent as {self.wire}", hint="float32 or bfloat16")
        self._check_groups()

    @cached_property
    def digest(self) -> str:
        """Digest of all fields except `wire`."""
        stored = msgspec.structs.replace(self, wire="float32")
        return hashlib.sha256(msgspec.json.encode(stored)).hexdigest()

    @cached_property
    def rules(self) -> tuple[str, ...]:
        """Return the rule of each group of the optimizer."""
        rules = dict(self._groups())
        return tuple(rules[group] for group in sorted(rules))

    @cached_property
    def layouts(self) -> tuple[SlotLayout, ...]:
        """Return the layouts of all slots."""
        parts: list[list[tuple[int, Block]]] = [[] for _ in range(self.slots)]
        for number, tensor in enumerate(self.tensors):
            dtype = DTYPES[tensor.dtype]
            for block in blocks(tensor.name, tensor.elements, dtype.itemsize, self.slots):
                parts[block.slot].append((number, block))
        return tuple(self._layout(slot, part) for slot, part in enumerate(parts))

    def layout(self, slot: int) -> SlotLayout:
        """Return the layout of a slot."""
        return self.layouts[slot]

    def initial_rows(self, table: int) -> InitialRows:
        """Return the distribution of a table's initial rows."""
        told = self.tables[table]
        return InitialRows(told.name, told.distribution, told.scale, self.seed)

    def _layout(self, slot: int, parts: list[tuple[int, Block]]) -> SlotLayout:
        return SlotLayout(
            slot,
            tuple(block for _, block in parts),
            tuple(number for number, _ in parts),
            tuple(DTYPES[self.tensors[number].dtype] for number, _ in parts),
            self._slot_tables,
            self.wire,
        )

    @cached_property
    def _slot_tables(self) -> tuple[SlotTable, ...]:
        return tuple(
            SlotTable(
                table.name,
                table.rows,
                table.width,
                DTYPES[table.dtype],
                table.padding_row,
                RowPlacement(table.name, self.slots),
            )
            for table in self.tables
        )

    def _check_table(self, table: RowTable) -> None:
        if not table.name or not 1 <= table.width <= WIDTH_MAX or not 1 <= table.rows <= ID_MAX:
            raise PsModelError(f"a table of {table.rows} rows of {table.width} elements", table=table.name)
        if table.dtype not in ROW_DTYPES:
            raise PsModelError(
                f"rows of {table.name!r} are {table.dtype}",
                hint=f"{' or '.join(ROW_DTYPES)}",
                table=table.name,
            )
        if table.padding_row is not None and not 0 <= table.padding_row < table.rows:
            raise PsModelError(f"{table.name!r} has no row {table.padding_row} for padding", table=table.name)
        if table.rule not in ROW_RULES:
            raise PsModelError(
                f"rows cannot be updated by {table.rule!r}", hint=f"one of {', '.join(ROW_RULES)}"
            )
        InitialRows(table.name, table.distribution, table.scale, self.seed).check()

    def _groups(self) -> list[tuple[int, str]]:
        return [*((t.group, t.rule) for t in self.tensors), *((t.group, t.rule) for t in self.tables)]

    def _check_groups(self) -> None:
        rules: dict[int, str] = {}
        for group, rule in self._groups():
            if rules.setdefault(group, rule) != rule:
                raise PsModelError(f"group {group} has two rules: {rules[group]} and {rule}")
        if sorted(rules) != list(range(len(rules))) or len(rules) > GROUPS_MAX:
            raise PsModelError(f"the groups of the model are {sorted(rules)[:20]}", hint="0, 1, 2, ...")


def _check_tensor(tensor: DenseTensor) -> None:
    facts = {"tensor": tensor.name}
    if not tensor.name or any(size < 0 for size in tensor.shape) or tensor.elements > ELEMENTS_MAX:
        raise PsModelError(f"a tensor of shape {tensor.shape}", **facts)
    if tensor.dtype not in DTYPES:
        raise PsModelError(f"{tensor.name!r} is {tensor.dtype}", hint=f"one of {', '.join(DTYPES)}", **facts)
    if tensor.rule not in DENSE_RULES:
        raise PsModelError(
            f"dense tensors cannot be updated by {tensor.rule!r}",
            hint=f"one of {', '.join(DENSE_RULES)}",
            **facts,
        )
    if tensor.strides and not _is_dense(tensor.shape, tensor.strides):
        raise PsModelError(
            f"{tensor.name!r} has gaps or overlaps in memory, by its strides {tensor.strides}",
            hint="make it contiguous",
            **facts,
        )


def _is_dense(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """True if the elements fill a contiguous range of memory, with dimensions in any order."""
    if len(shape) != len(strides):
        return False
    size = 1
    for stride, length in sorted((t, n) for t, n in zip(strides, shape, strict=True) if n != 1):
        if stride != size:
            return False
        size *= length
    return True
