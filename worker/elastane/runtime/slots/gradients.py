"""Divides a task's gradients into the parts of its push."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from elastane.runtime.slots.dense import DenseMemory
from elastane.runtime.slots.pulls import BySlot
from elastane.tables.layout import Ids, PushPart, RowGradients, Values, is_finite
from elastane.tables.spec import ModelSpec


def row_gradients(spec: ModelSpec, table: int, used: Sequence[tuple[Ids, Tensor]]) -> tuple[Ids, Values]:
    """Sum a table's gradients over its uses in a task, in order of use; return ascending ids with sums.

    used: ids and leaf of each use; a leaf without a gradient did not contribute to the loss.
    """
    parts = [(ids, leaf.grad.cpu()) for ids, leaf in used if leaf.grad is not None]
    told = spec.layouts[0].tables[table]
    if not parts:
        return np.empty(0, np.int64), torch.empty(0, told.width, dtype=told.dtype)
    ids, values = parts[0]
    if len(parts) > 1:
        every = np.concatenate([part for part, _ in parts])
        ids, inverse = np.unique(every, return_inverse=True)
        values = torch.zeros(len(ids), told.width, dtype=told.dtype)
        values.index_add_(0, torch.from_numpy(inverse), torch.cat([part for _, part in parts]))
    if told.padding_row is not None:
        kept = ids != told.padding_row
        ids, values = ids[kept], values[torch.from_numpy(kept)]
    return ids, values


def non_finite(
    names: Sequence[str], dense: Sequence[Values | None], tables: Mapping[str, tuple[Ids, Values]]
) -> str:
    """Return the name of a parameter or table with NaN or infinity in its gradient; "" if there is none."""
    for name, gradient in zip(names, dense, strict=True):
        if gradient is not None and not is_finite(gradient):
            return name
    return next((name for name, (_, values) in tables.items() if not is_finite(values)), "")


def parts_of(
    spec: ModelSpec,
    memory: DenseMemory,
    dense: Sequence[Values | None],
    tables: Mapping[int, tuple[Ids, Values]],
    divided: Callable[[int, Ids], BySlot],
) -> dict[int, PushPart]:
    """Divide gradients by slot; slots without any are left out. divided: divides a table's ids by slot."""
    rows: dict[int, list[RowGradients]] = {slot: [] for slot in memory.slots}
    for table in sorted(tables):
        ids, values = tables[table]
        found = divided(table, ids)
        ids, values = ids[found.order], values[torch.from_numpy(found.order)]
        for slot, start, end in found.parts:
            rows.setdefault(slot, []).append(RowGradients(table, ids[start:end], values[start:end]))
    with_blocks = set(memory.slots)
    return {
        slot: PushPart(memory.blocks(slot, dense) if slot in with_blocks else {}, tuple(own))
        for slot, own in rows.items()
    }
