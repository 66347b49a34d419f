"""Operators without deterministic kernels: by torch's warnings here, by the table for CUDA."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import nn

from elastane.diagnose.operators import (
    _CUDA_RAISES_IF,
    CUDA_RAISES,
    OperatorWatch,
    raises_on_cuda,
)

F = nn.functional


def image(**options: bool) -> torch.Tensor:
    return torch.randn(1, 1, 4, 4, **options)  # type: ignore[arg-type]


def ctc() -> torch.Tensor:
    scores = torch.randn(5, 1, 4, requires_grad=True).log_softmax(-1)
    return F.ctc_loss(scores, torch.tensor([[1]]), torch.tensor([5]), torch.tensor([1]))


def bag(mode: str) -> torch.Tensor:
    return nn.EmbeddingBag(10, 3, mode=mode)(torch.tensor([[1, 2]])).sum()


def product() -> torch.Tensor:
    places = torch.tensor([0, 1, 1])
    return torch.zeros(3, requires_grad=True).scatter_reduce(0, places, torch.ones(3), reduce="prod").sum()


LOSSES = {
    "AdaptiveAvgPool2d": lambda: nn.AdaptiveAvgPool2d(3)(image(requires_grad=True)).sum(),
    "AdaptiveMaxPool2d": lambda: nn.AdaptiveMaxPool2d(2)(image(requires_grad=True)).sum(),
    "AvgPool3d": lambda: nn.AvgPool3d(2)(torch.randn(1, 1, 2, 2, 2, requires_grad=True)).sum(),
    "ReflectionPad2d": lambda: F.pad(image(requires_grad=True), (1, 1, 1, 1), mode="reflect").sum(),
    "bicubic": lambda: F.interpolate(image(requires_grad=True), scale_factor=2, mode="bicubic").sum(),
    "on images": lambda: F.cross_entropy(
        torch.randn(1, 3, 2, 2, requires_grad=True), torch.zeros(1, 2, 2, dtype=torch.long)
    ),
    "CTCLoss": ctc,
    "grid_sample": lambda: F.grid_sample(
        image(requires_grad=True), torch.zeros(1, 4, 4, 2), align_corners=False
    ).sum(),
    "EmbeddingBag": lambda: bag("max"),
    "scatter_reduce": product,
    "cumsum": lambda: torch.cumsum(image(requires_grad=True), 0).sum(),
    "histc": lambda: image(requires_grad=True).sum() + torch.histc(torch.ones(3), 2).sum(),
    "median": lambda: torch.median(image(requires_grad=True), 0).values.sum(),
}


@pytest.mark.parametrize("name", list(LOSSES))
def test_an_operator_of_the_table_is_seen_with_the_line_of_the_script(name: str) -> None:
    with OperatorWatch() as watch:
        LOSSES[name]().backward()
    assert [words for words in watch.found if name in words], watch.found
    assert all(where.startswith("test_operators.py:") or "/test_operators.py:" in where
               for where in watch.found.values())  # fmt: skip


def test_their_harmless_relatives_are_not() -> None:
    x = image(requires_grad=True)
    with OperatorWatch() as watch:
        loss = nn.AdaptiveAvgPool2d(1)(x).sum() + F.interpolate(x, scale_factor=2, mode="bilinear").sum()
        loss = loss + bag("mean") + F.cross_entropy(torch.randn(2, 3), torch.zeros(2, dtype=torch.long))
        loss = loss + torch.cumsum(torch.arange(3), 0).sum() + torch.median(x)
        loss = loss + torch.bincount(torch.tensor([1])).sum() + nn.Conv2d(1, 1, 3)(x).sum()
        loss.backward()
    assert watch.found == {}
    assert watch.count > 20


def test_every_operator_of_the_tables_exists_in_this_torch() -> None:
    for name in [*CUDA_RAISES, *_CUDA_RAISES_IF]:
        assert hasattr(torch.ops.aten, name), name
    assert raises_on_cuda("add") is None


def test_torch_warns_of_operators_of_this_device() -> None:
    program = """
import warnings
import torch
from elastane.diagnose.operators import DeterminismWarnings
warnings.simplefilter("always")
heard = []
DeterminismWarnings(lambda operator, where: heard.append((operator, where))).install()
for _ in range(2):
    torch.zeros(5).put_(torch.tensor([1]), torch.tensor([2.0]))
warnings.warn("something else")
print(heard)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[('put_', '')]"
    assert "something else" in done.stderr
