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


class Counting(TensorDataset):
    """Samples that depend on how many were read before."""

    read = 0

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        self.read += 1
        x, y = super().__getitem__(index)
        return x * self.read, y


def hooked() -> nn.Module:
    """A unit whose output depends on how many mini-batches it has seen."""
    module, seen = nn.Linear(4, 4), [0]

    def scaled(_module: nn.Module, _given: Any, output: Tensor) -> Tensor:
        seen[0] += 1
        return output * seen[0]

    module.register_forward_hook(scaled)
    return module


torch.manual_seed(1)
data = TensorDataset(torch.randn(48, 4), torch.randint(0, 2, (48,)))
if slip == "counter in the dataset":
    data = Counting(*data.tensors)
job = elastane.init(seed=1)
units: list[Any] = [lambda: nn.Linear(4, 4), nn.Tanh, lambda: nn.Linear(4, 2)]
loss_fn: Any = functional.cross_entropy
if slip == "counter in a unit":
    units[1] = Annealed
if slip == "counter in a hook":
    units[0] = hooked
calls: list[int] = []
if slip == "counter in a closure":
    loss_fn = lambda output, target: (  # noqa: E731
        calls.append(0) or functional.cross_entropy(output, target) * len(calls)
    )
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
        if slip == "norm in a hook":

            def clip(one: Any, *_: Any) -> None:
                given = [p for group in one.param_groups for p in group["params"]]
                total = sum(p.grad.pow(2).sum() for p in given) ** 0.5
                torch._foreach_mul_([p.grad for p in given], float((0.05 / total).clamp(max=1.0)))

            optimizer.register_step_pre_hook(clip)
        pipe(batch)
        if slip == "held units" and 2 in pipe.held:
            optimizer.param_groups[0]["lr"] = 0.05
        optimizer.step()
        if slip == "average":
            for mean, parameter in zip(average, optimizer.param_groups[0]["params"], strict=True):
                mean.lerp_(parameter.detach(), 0.1)
    if slip == "optimizer saved":
        optimizer.state_dict()
    if slip == "decay" and "ELASTANE_TEST_DRIFTS" in os.environ:
        optimizer.param_groups[0]["lr"] = 0.05
