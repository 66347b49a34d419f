"""Sums a task's gradients, and divides them by slot for its push."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from elastane.runtime.slots.dense import DenseMemory
from elastane.runtime.slots.pulls import Division
from elastane.tables.by_slot import TableGradients, TaskGradients
from elastane.tables.layout import Ids, Values, is_finite
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


def task_gradients(
    spec: ModelSpec,
    memory: DenseMemory,
    dense: Sequence[Values | None],
    tables: Mapping[int, tuple[Ids, Values]],
    divided: Callable[[int, Ids], Division],
) -> TaskGradients:
    """Divide gradients by slot. divided: divides a table's ids by slot."""
    rows = []
    for table in sorted(tables):
        ids, values = tables[table]
        if len(ids):
            found = divided(table, ids)
            by_slot, values = found.by_slot, values.index_select(0, found.order)
            rows.append(TableGradients(table, by_slot.ids, by_slot.bounds, values))
    blocks = {slot: own for slot in memory.slots if (own := memory.blocks(slot, dense))}
    return TaskGradients(blocks, tuple(rows))
