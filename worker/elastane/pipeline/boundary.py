"""Stage boundary: makes received tensors behave in autograd as they would in the undivided model.

A stage's first unit gets tensors that are results of a function, not leaves. So it may write to them in
place, and their gradients are passed on with the strides that autograd gave them. The `.grad` of a leaf would
have the leaf's strides; the stage before would then compute with other strides, and so with other bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


class Gradients:
    """Gradients of a stage's inputs, in the order of the inputs that need one; None for an unused input."""

    def __init__(self) -> None:
        self.values: tuple[Tensor | None, ...] = ()


class _Entrance(torch.autograd.Function):
    """Autograd function that returns given tensors as non-leaf outputs and collects their gradients."""

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
    """Return the tensors for a stage's units, and the object that holds their gradients after backward.

    tensors: must not be shared with anything else.
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
