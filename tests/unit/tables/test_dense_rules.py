"""A tensor that is cut into blocks gets the bits of torch.optim on the whole."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from elastane.tables.layout import PushPart
from elastane.tables.slot_weights import SlotWeights
from elastane.tables.spec import DTYPES, DenseTensor, ModelSpec
from unit.tables.models import rates

OPTIMIZERS: dict[str, tuple[type[torch.optim.Optimizer], dict[str, Any]]] = {
    "sgd": (torch.optim.SGD, {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.01, "nesterov": True}),
    "adagrad": (torch.optim.Adagrad, {"lr": 0.05, "lr_decay": 0.01, "initial_accumulator_value": 0.1}),
    "adam": (torch.optim.Adam, {"lr": 0.01, "weight_decay": 0.01}),
    "adamw": (torch.optim.AdamW, {"lr": 0.01}),
}


def cut(spec: ModelSpec, tensor: torch.Tensor, slot: int) -> list[torch.Tensor]:
    return [tensor.view(-1)[block.start : block.end] for block in spec.layout(slot).blocks]


def whole(
    spec: ModelSpec, slots: list[SlotWeights], shape: tuple[int, ...], dtype: torch.dtype
) -> torch.Tensor:
    result = torch.empty(shape, dtype=dtype)
    for slot, weights in enumerate(slots):
        parts = [torch.empty(block.end - block.start, dtype=dtype) for block in spec.layout(slot).blocks]
        weights.pull_dense([memoryview(part.view(torch.uint8).numpy()) for part in parts])
        for piece, part in zip(cut(spec, result, slot), parts, strict=True):
            piece.copy_(part)
    return result


@pytest.mark.parametrize("rule", OPTIMIZERS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_blocks_have_the_bits_of_the_whole_tensor(rule: str, dtype: str) -> None:
    shape = (701, 1003)  # odd ends, several blocks
    spec = ModelSpec((DenseTensor("weight", shape, dtype=dtype, rule=rule),), slots=5)
    spec.check()
    generator = torch.Generator().manual_seed(1)
    start = torch.randn(shape, generator=generator).to(DTYPES[dtype])
    stock = torch.nn.Parameter(start.clone())
    kind, options = OPTIMIZERS[rule]
    optimizer = kind([stock], **options)
    slots = [SlotWeights(spec, slot) for slot in range(5)]
    for slot, weights in enumerate(slots):
        if spec.layout(slot).blocks:
            weights.initialise([memoryview(p.view(torch.uint8).numpy()) for p in cut(spec, start, slot)])
    for _ in range(4):
        gradient = torch.randn(shape, generator=generator).to(DTYPES[dtype])
        stock.grad = gradient
        optimizer.step()
        for slot, weights in enumerate(slots):
            part = PushPart(dict(enumerate(cut(spec, gradient.clone(), slot))))
            weights.apply(weights.prepare(part, rates(spec)), rates(spec))
        now = whole(spec, slots, shape, DTYPES[dtype])
        assert torch.equal(now.view(torch.uint8), stock.data.view(torch.uint8))


def test_a_block_without_a_gradient_counts_no_step() -> None:
    spec = ModelSpec((DenseTensor("a", (10,), rule="adam"), DenseTensor("b", (10,), rule="adam")), slots=1)
    parameters = [torch.nn.Parameter(torch.ones(10)), torch.nn.Parameter(torch.ones(10))]
    optimizer = torch.optim.Adam(parameters, lr=0.01, weight_decay=0.01)
    weights = SlotWeights(spec, 0)
    weights.initialise([memoryview(torch.ones(10).view(torch.uint8).numpy())] * 2)
    for turn in range(4):
        gradients = {which: torch.full((10,), 0.3 + turn) for which in range(2) if turn != 1 or which}
        for which, parameter in enumerate(parameters):
            parameter.grad = gradients.get(which)
        optimizer.step()
        weights.apply(weights.prepare(PushPart(gradients), rates(spec)), rates(spec))
    out = [bytearray(40), bytearray(40)]
    weights.pull_dense(list(map(memoryview, out)))
    assert [bytes(part) for part in out] == [p.detach().numpy().tobytes() for p in parameters]
