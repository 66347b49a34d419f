"""A model with everything that makes state hard, and runs of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from elastane.state.train_state import TrainState


class Net(nn.Module):
    """Convolution (channels_last), BatchNorm, tied linear weights, a buffer that is not persistent."""

    def __init__(self, *, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.first = nn.Linear(4, 4, bias=False)
        self.second = nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64), persistent=False)
        self.to(dtype)
        self.to(memory_format=torch.channels_last)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        x = torch.relu(self.norm(self.convolution(x))).mean((2, 3))
        return self.second(torch.tanh(self.first(x)))


OptimizerFactory = Callable[[Any], torch.optim.Optimizer]

OPTIMIZERS: dict[str, OptimizerFactory] = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
    "adamw_amsgrad_tensor_lr": lambda p: torch.optim.AdamW(
        p, lr=torch.tensor(0.01), amsgrad=True, foreach=False
    ),
    "adam_fused": lambda p: torch.optim.Adam(p, lr=0.01, fused=True),
    "sgd": lambda p: torch.optim.SGD(p, lr=0.01),
    "sgd_momentum": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9, nesterov=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.01),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.9, centered=True),
}


def build(
    optimizer: OptimizerFactory = OPTIMIZERS["adamw"],
    scheduler: Callable[[torch.optim.Optimizer], Any] | None = None,
    *,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
) -> TrainState:
    """Fresh objects, as a script builds them; other seeds give other weights."""
    torch.manual_seed(seed)
    model = Net(dtype=dtype)
    parameters = list(model.parameters())
    groups = [{"params": parameters[:2]}, {"params": parameters[2:], "weight_decay": 0.3}]
    built = optimizer(groups)
    return TrainState(model, [built], [scheduler(built)] if scheduler else [])


def train(state: TrainState, steps: range) -> list[float]:
    """Those steps on data that depends on the step alone; returns the losses."""
    losses = []
    for step in steps:
        generator = torch.Generator().manual_seed(step)
        dtype = state.model.convolution.weight.dtype
        x = torch.randn(5, 3, 6, 6, generator=generator).to(dtype)
        loss = state.model(x).float().pow(2).mean()
        state.optimizers[0].zero_grad()
        loss.backward()
        state.optimizers[0].step()
        for scheduler in state.schedulers:
            if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
                scheduler.step(loss.item())
            else:
                scheduler.step()
        losses.append(loss.item())
    return losses
