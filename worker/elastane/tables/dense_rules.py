"""Optimizers of dense blocks: torch.optim's functions applied to parts of the model's tensors.

These work element by element, and blocks begin at multiples of a vector register, so a tensor divided into
blocks gets the same bits as the whole tensor under the stock optimizer. This holds for the single-tensor
implementations on one thread. Each block counts its own steps, as its tensor may lack a gradient in some
tasks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor
from torch.optim.adagrad import adagrad
from torch.optim.adam import adam
from torch.optim.adamw import adamw
from torch.optim.sgd import sgd

#: Names of a rule's states; each has the shape and dtype of the block.
STATES: Final = {"sgd": 1, "adagrad": 1, "adam": 2, "adamw": 2}


class BlockState:
    """Values and optimizer state of one block. states: empty before the first step."""

    __slots__ = ("states", "steps", "values")

    def __init__(self, values: Tensor) -> None:
        self.values = values
        self.states: list[Tensor] = []
        self.steps = 0

    def prepare(self, rule: str, numbers: Sequence[float]) -> None:
        """Allocate the states for the first step. `step` creates SGD's momentum, a copy of the gradient."""
        if self.states or rule == "sgd":
            return
        if rule == "adagrad":
            self.states = [torch.full_like(self.values, numbers[3])]
        else:
            self.states = [torch.zeros_like(self.values), torch.zeros_like(self.values)]

    def step(self, rule: str, gradient: Tensor, numbers: Sequence[float]) -> None:
        """Apply a gradient. numbers: in the order of `rates.NAMES`."""
        if rule == "sgd":
            self._sgd(gradient, numbers)
            self.steps += 1
            return
        steps = torch.tensor(float(self.steps))
        if rule == "adagrad":
            adagrad(
                [self.values],
                [gradient],
                self.states,
                [steps],
                foreach=False,
                lr=numbers[0],
                lr_decay=numbers[1],
                weight_decay=numbers[2],
                eps=numbers[4],
                maximize=bool(numbers[5]),
            )
        else:
            lr, beta1, beta2, eps, weight_decay, maximize = numbers
            (adam if rule == "adam" else adamw)(
                [self.values],
                [gradient],
                self.states[:1],
                self.states[1:],
                [],
                [steps],
                foreach=False,
                amsgrad=False,
                beta1=beta1,
                beta2=beta2,
                lr=lr,
                weight_decay=weight_decay,
                eps=eps,
                maximize=bool(maximize),
            )
        self.steps += 1

    def _sgd(self, gradient: Tensor, numbers: Sequence[float]) -> None:
        lr, momentum, dampening, weight_decay, nesterov, maximize = numbers
        buffers: list[Tensor | None] = [self.states[0] if self.states else None]
        sgd(
            [self.values],
            [gradient],
            buffers,
            foreach=False,
            weight_decay=weight_decay,
            momentum=momentum,
            lr=lr,
            dampening=dampening,
            nesterov=bool(nesterov),
            maximize=bool(maximize),
        )
        self.states = [buffers[0]] if buffers[0] is not None else []
