"""The job that `elastane chaos --pipeline` trains by default: the model of `job`, in units.

It has BatchNorm, dropout, augmentation, a scheduler and clipping, too; no worker has to hold all of it.
"""

from __future__ import annotations

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader

import elastane
from elastane_cli.chaos.job import Images


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--size", type=int, default=400)
    parser.add_argument("--batch-size", type=int, default=5)
    args = parser.parse_args()

    job = elastane.init(seed=3)
    units = [
        lambda: nn.Conv2d(3, 8, 3, padding=1), lambda: nn.BatchNorm2d(8), nn.ReLU, lambda: nn.Dropout(0.2),
        nn.Flatten, lambda: nn.Linear(8 * 64, 32), nn.ReLU, lambda: nn.Linear(32, 5),
    ]  # fmt: skip
    pipe, optimizer, loader, scheduler = job.prepare_pipeline(
        units,
        lambda parameters: torch.optim.AdamW(parameters, lr=2e-3, weight_decay=0.05),
        DataLoader(Images(args.size), args.batch_size, shuffle=True),
        loss_fn=nn.functional.cross_entropy,
        scheduler=lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=500),
    )
    for _ in job.epochs(args.epochs):
        for batch in loader:
            pipe(batch)
            pipe.clip_grad_norm_(1.0)
            optimizer.step()
            scheduler.step()


if __name__ == "__main__":
    main()
