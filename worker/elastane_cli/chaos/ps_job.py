"""The default job of `elastane chaos --ps`: its weights count how often each gradient was applied.

Every task subtracts 1 from one half of the values in every slot, and its own number from the other half, so
that a missing gradient and a duplicate of another do not cancel out.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from typing import Final

import torch
from torch import nn

import elastane

DATASET: Final = "counts"
#: Enough for a few in each of 64 slots.
ROWS: Final = 1024
_NUMBER_MAX: Final = 1009
_PRIME: Final = 7919


class Counts(nn.Module):
    """Dense values in separate blocks, and a table of which each task uses all rows."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.ParameterList(nn.Parameter(torch.zeros(200, 2)) for _ in range(4))
        self.rows = nn.Embedding(ROWS, 2, sparse=True)

    def forward(self, epoch: int, index: int) -> torch.Tensor:
        gradient = torch.tensor([1.0, float(number_of(epoch, index))])
        values = [*self.dense, self.rows(torch.arange(ROWS))]
        return torch.stack([(value * gradient).sum() for value in values]).sum()


def number_of(epoch: int, index: int) -> int:
    """Return a task's own number."""
    return 1 + (index * _PRIME + epoch * 31) % _NUMBER_MAX


def miscounted(state: Mapping[str, torch.Tensor], done: Iterable[tuple[int, int]]) -> list[str]:
    """Compare weights with those that result from each DONE task (epoch, index) once; return differences."""
    tasks = list(done)
    expected = torch.tensor([-float(len(tasks)), -float(sum(number_of(*task) for task in tasks))])
    found = []
    for name, values in state.items():
        wrong = (values != expected).any(1)
        if wrong.any():
            counts = sorted({-int(count) for count in values[wrong, 0].tolist()})
            found.append(
                f"{int(wrong.sum())} rows of {name} have other gradients than those of {len(tasks)} DONE "
                f"tasks, each once: they count {', '.join(map(str, counts[:5]))}"
            )
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--tasks", type=int, default=1500, help="in an epoch")
    parser.add_argument("--prefetch", type=int, default=0)
    args = parser.parse_args()

    job = elastane.init(seed=3)
    model = Counts()
    job.prepare_ps(model, torch.optim.SGD(model.parameters(), lr=1.0), initial=("zeros", 1.0))
    tasks = job.tasks(
        DATASET,
        size=args.tasks,
        task_size=1,
        epochs=args.epochs,
        max_attempts=1000,
        prefetch=args.prefetch,
    )
    for task in tasks:
        with job.push(task):
            model(task.epoch, task.index).backward()


if __name__ == "__main__":
    main()
