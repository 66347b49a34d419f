"""Units that sleep: three times as long in a worker of whose name SLOW_DIR has a file."""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import elastane


def sleep(seconds: float) -> None:
    slow = Path(os.environ.get("SLOW_DIR", "/nonexistent")) / os.environ.get("ELASTANE_WORKER_ID", "-")
    time.sleep(seconds * (3 if slow.exists() else 1))


class Sleep(torch.autograd.Function):
    """Sleeps in forward, and twice as long in backward."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, seconds: float) -> Tensor:
        ctx.seconds = seconds
        sleep(seconds)
        return value.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        sleep(2 * ctx.seconds)
        return gradient, None


class Slow(nn.Module):
    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.linear, self.seconds = nn.Linear(8, 8), seconds

    def forward(self, value: Tensor) -> Tensor:
        return Sleep.apply(self.linear(value), self.seconds)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=140)
    parser.add_argument("--seconds", type=float, default=0.004)
    args = parser.parse_args()

    job = elastane.init(seed=3)
    data = TensorDataset(torch.randn(8 * args.steps, 8), torch.randn(8 * args.steps, 8))
    pipe, optimizer, loader = job.prepare_pipeline(
        [lambda: Slow(args.seconds)] * 8,
        lambda parameters: torch.optim.SGD(parameters, lr=0.01),
        DataLoader(data, 2),
        loss_fn=nn.functional.mse_loss,
    )
    for _ in job.epochs(1):
        for batch in loader:
            pipe(batch)
            optimizer.step()


if __name__ == "__main__":
    main()
