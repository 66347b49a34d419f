"""A pipeline whose result depends on what the script keeps from step to step: one slip at a time."""

import os
import sys
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import elastane

slip = sys.argv[1]


class Annealed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x * (1 + 0.5**self.calls)


class Smoothed:
    """A loss with more smoothing at each call."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, output: Tensor, target: Tensor) -> Tensor:
        self.calls += 1
        return functional.cross_entropy(output, target, label_smoothing=self.calls / 1000)


torch.manual_seed(1)
data = TensorDataset(torch.randn(48, 4), torch.randint(0, 2, (48,)))
job = elastane.init(seed=1)
units: list[Any] = [lambda: nn.Linear(4, 4), nn.Tanh, lambda: nn.Linear(4, 2)]
loss_fn: Any = functional.cross_entropy
if slip == "counter in a unit":
    units[1] = Annealed
if slip == "counter in the loss":
    loss_fn = Smoothed()
pipe, optimizer, loader = job.prepare_pipeline(
    units, lambda parameters: torch.optim.SGD(parameters, lr=0.1), DataLoader(data, 4), loss_fn=loss_fn
)


average = [p.detach().clone() for p in nn.Sequential(*[build() for build in units]).parameters()]
turns = 0
for _epoch in job.epochs(3):
    for batch in loader:
        turns += 1
        if slip == "counter in the loop":
            optimizer.param_groups[0]["lr"] = 0.1 * min(1.0, turns / 10)
        pipe(batch)
        optimizer.step()
        if slip == "average":
            for mean, parameter in zip(average, optimizer.param_groups[0]["params"], strict=True):
                mean.lerp_(parameter.detach(), 0.1)
    if slip == "optimizer saved":
        optimizer.state_dict()
    if slip == "decay" and "ELASTANE_TEST_DRIFTS" in os.environ:
        optimizer.param_groups[0]["lr"] = 0.05
