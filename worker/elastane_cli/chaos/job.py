"""The job that `elastane chaos` trains by default: small, with every kind of state that must survive a fault.

Convolution with BatchNorm and dropout, augmentation drawn from Python, NumPy and torch, a scheduler per step.
"""

from __future__ import annotations

import argparse
import random

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import elastane


class Images(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """`size` images (3, 8, 8) with labels 0..4, with random noise."""

    def __init__(self, size: int) -> None:
        generator = torch.Generator().manual_seed(11)
        self.images = torch.randn(size, 3, 8, 8, generator=generator)
        self.labels = torch.randint(0, 5, (size,), generator=generator)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        image = self.images[index] + 0.1 * torch.randn(3, 8, 8)
        image = image * float(np.random.uniform(0.9, 1.1))
        return (image.flip(2) if random.random() < 0.5 else image), self.labels[index]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--size", type=int, default=400)
    parser.add_argument("--batch-size", type=int, default=5)
    args = parser.parse_args()

    job = elastane.init(seed=3)
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(0.2),
        nn.Flatten(), nn.Linear(8 * 64, 32), nn.ReLU(), nn.Linear(32, 5),
    )  # fmt: skip
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=0.05)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=500)
    loader = DataLoader(Images(args.size), args.batch_size, shuffle=True)
    model, optimizer, loader, scheduler = job.prepare(net, optimizer, loader, scheduler)
    for _ in job.epochs(args.epochs):
        for images, labels in loader:
            loss = nn.functional.cross_entropy(model(images), labels)
            job.log(loss=loss)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()


if __name__ == "__main__":
    main()
