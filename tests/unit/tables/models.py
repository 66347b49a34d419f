"""Models, pushes and rates for the tests of slots' weights."""

from __future__ import annotations

import numpy as np
import torch

from elastane.tables.layout import Ids, PushPart, RowGradients, slots_of
from elastane.tables.rates import packed
from elastane.tables.slot_weights import SlotWeights
from elastane.tables.spec import DTYPES, DenseTensor, ModelSpec, RowTable

RATES = {
    "sgd": {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.01, "nesterov": 1},
    "adagrad": {"lr": 0.05, "lr_decay": 0.01, "initial_accumulator_value": 0.1, "eps": 1e-10},
    "adam": {"lr": 0.01, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.01},
    "adamw": {"lr": 0.01, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.01},
    "row_sgd": {"lr": 0.1},
    "rowwise_adagrad": {"lr": 0.1, "initial_accumulator_value": 0.1, "eps": 1e-10},
    "lazy_adam": {"lr": 0.01, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8},
}


def rates(spec: ModelSpec) -> list[list[float]]:
    """Rates of all groups."""
    return [packed(rule, **RATES[rule]) for rule in spec.rules]


def small(
    slots: int = 3, dense: str = "adam", row: str = "lazy_adam", wire: str = "float32", rows: int = 1000
) -> ModelSpec:
    """Two dense tensors and two tables, of which one has a padding row."""
    return ModelSpec(
        (DenseTensor("weight", (700, 1000), rule=dense), DenseTensor("bias", (7,), rule=dense)),
        (
            RowTable("users", rows, 16, rule=row, group=1),
            RowTable("items", rows, 3, padding_row=5, distribution="uniform", scale=0.1, rule=row, group=1),
        ),
        slots=slots,
        seed=3,
        wire="bfloat16" if wire == "bfloat16" else "float32",
    )


def ids_of(spec: ModelSpec, table: int, slot: int, count: int = 10**9, padding: bool = False) -> Ids:
    """The first ids of a table that are in a slot; padding: also the padding row's."""
    layout = spec.layout(slot)
    told = layout.tables[table]
    ids = np.arange(min(told.rows, 10**6))
    ids = ids[slots_of(told.placement, ids) == slot]
    if told.padding_row is not None and not padding:
        ids = ids[ids != told.padding_row]
    return ids[:count]


def initial(spec: ModelSpec, slot: int, seed: int = 0) -> list[memoryview]:
    """Initial values of the blocks of a slot."""
    generator = torch.Generator().manual_seed(seed)
    return [
        memoryview(
            torch.randn(size // dtype.itemsize, generator=generator).to(dtype).view(torch.uint8).numpy()
        )
        for size, dtype in zip(spec.layout(slot).initial_sections, spec.layout(slot).dtypes, strict=True)
    ]


def weights_of(spec: ModelSpec, slot: int, seed: int = 0) -> SlotWeights:
    """A slot that is initialised."""
    weights = SlotWeights(spec, slot)
    if spec.layout(slot).blocks:
        weights.initialise(initial(spec, slot, seed))
    return weights


def part_of(spec: ModelSpec, slot: int, generator: torch.Generator, rows: int = 20) -> PushPart:
    """Gradients for all blocks of a slot and for some rows."""
    layout = spec.layout(slot)
    blocks = {
        position: torch.randn(block.end - block.start, generator=generator).to(dtype)
        for position, (block, dtype) in enumerate(zip(layout.blocks, layout.dtypes, strict=True))
    }
    parts = []
    for table, told in enumerate(spec.tables):
        known = ids_of(spec, table, slot)
        if not len(known):
            continue
        chosen = torch.randperm(len(known), generator=generator)[:rows].sort().values.numpy()
        values = torch.randn(len(chosen), told.width, generator=generator).to(DTYPES[told.dtype])
        parts.append(RowGradients(table, known[chosen], values))
    return PushPart(blocks, tuple(parts))


def push(spec: ModelSpec, weights: SlotWeights, part: PushPart, scale: float = 1.0) -> None:
    """Check, prepare and apply."""
    weights.layout.check_part(part)
    weights.apply(weights.prepare(part, rates(spec)), rates(spec), scale)
