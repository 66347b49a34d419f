"""A small CNN in units, with what a pipeline could get wrong: BatchNorm, dropout, random data, clipping, a
scheduler, accumulation, evaluation after every epoch. Writes what it evaluates to ELASTANE_REPORT_DIR."""

import argparse
import fcntl
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import elastane


class Pictures(Dataset):
    """Pictures, by default with noise that is drawn when they are loaded."""

    def __init__(self, size: int, noise: float = 0.1) -> None:
        generator = torch.Generator().manual_seed(5)
        self.values = torch.randn(size, 2, 6, 6, generator=generator)
        self.noise = noise
        self.labels = (self.values.mean((1, 2, 3)) > 0).long()

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.values[index] + self.noise * torch.randn(2, 6, 6), self.labels[index]


def units(modules: bool) -> list:
    builders = [
        lambda: nn.Conv2d(2, 4, 3, padding=1),
        lambda: nn.BatchNorm2d(4),
        nn.ReLU,
        lambda: nn.Dropout(0.2),
        lambda: nn.Sequential(nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4), nn.ReLU()),
        nn.Flatten,
        lambda: nn.Linear(64, 2),
    ]
    return [build() for build in builders] if modules else builders


def disturbed(batches: Any, epoch: int, dies: str, gate: str) -> Iterator[Any]:
    """Yield mini-batches; after some of them in epoch 1, end a worker, or wait while a file is locked."""
    for index, batch in enumerate(batches):
        if epoch == 1 and index == 4:
            if dies and os.environ.get("ELASTANE_WORKER_ID") == dies:
                os.kill(os.getpid(), signal.SIGKILL)
            if gate and "ELASTANE_WORKER_ID" in os.environ:
                with Path(gate).open() as file:
                    fcntl.flock(file, fcntl.LOCK_SH)
        yield batch


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--size", type=int, default=96)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--accumulation", type=int, default=1)
    parser.add_argument("--data-workers", type=int, default=0)
    parser.add_argument("--modules", action="store_true", help="give units as modules")
    parser.add_argument("--evaluate", default="all", help="all workers, the leader alone, or none")
    parser.add_argument("--dies", default="", help="the worker that dies while it evaluates")
    parser.add_argument("--gate", default="", help="file; workers wait for its lock while they evaluate")
    parser.add_argument("--noise", type=float, default=0.0, help="in what is evaluated")
    args = parser.parse_args()

    job = elastane.init(seed=3)
    loader = DataLoader(
        Pictures(args.size), args.batch_size, shuffle=True, drop_last=True, num_workers=args.data_workers
    )
    tested = DataLoader(Pictures(30, args.noise), 5)
    pipe, optimizer, loader, scheduler = job.prepare_pipeline(
        units(args.modules),
        lambda parameters: torch.optim.AdamW(parameters, lr=0.01),
        loader,
        loss_fn=nn.functional.cross_entropy,
        scheduler=lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 5, gamma=0.5),
        accumulation_steps=args.accumulation,
    )
    found: dict[int, list[float]] = {}
    for epoch in job.epochs(args.epochs):
        for batch in loader:
            loss = pipe(batch)
            norm = pipe.clip_grad_norm_(0.5)
            job.log(loss=loss, norm=norm)
            optimizer.step()
            scheduler.step()
        if args.evaluate == "all" or (args.evaluate == "leader" and job.is_leader):
            found[epoch] = pipe.evaluate(
                disturbed(tested, epoch, args.dies, args.gate),
                lambda logits, batch: nn.functional.cross_entropy(logits, batch[1]).item(),
            )
            name = os.environ.get("ELASTANE_WORKER_ID") or f"rank{job.rank}"
            folder = Path(os.environ["ELASTANE_REPORT_DIR"])
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"evaluated-{name}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
