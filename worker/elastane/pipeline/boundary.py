"""Where a micro-batch enters a stage: what it brought takes part in autograd as it would in the uncut model.

The next unit sees tensors that some function computed, not leaves: it may write to them in place, and the
gradients that autograd computed for them are handed out as they are. A leaf's `.grad` would be laid out like
the leaf, and the stage before would continue with other strides, and so with other bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


class Gradients:
    """Gradients with respect to what entered, in the order of those tensors that want one; None: no use."""

    def __init__(self) -> None:
        self.values: tuple[Tensor | None, ...] = ()


class _Entrance(torch.autograd.Function):
    """Gives tensors, which are no inputs of it, a place in the graph."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, tensors: list[Tensor], gradients: Gradients) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.gradients = gradients
        return tuple(tensors)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[None, None, None]:
        ctx.gradients.values = gradients
        return None, None, None


def enter(tensors: Sequence[Tensor], wants_gradient: Sequence[bool]) -> tuple[list[Tensor], Gradients]:
    """Return the tensors as a stage's units get them, and where their gradients will be after backward.

    tensors: new ones, that nobody else uses.
    """
    gradients = Gradients()
    wanting = [tensor for tensor, wants in zip(tensors, wants_gradient, strict=True) if wants]
    if not wanting:
        return list(tensors), gradients
    gradients.values = (None,) * len(wanting)
    anchor = torch.empty(0, requires_grad=True)
    entered = iter(_Entrance.apply(anchor, wanting, gradients))
    given = [
        next(entered) if wants else tensor for tensor, wants in zip(tensors, wants_gradient, strict=True)
    ]
    return given, gradients
