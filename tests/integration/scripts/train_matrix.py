"""The matrix's training script: everything that draws random numbers or keeps state between steps.

Convolution, BatchNorm, dropout, augmentation from torch, NumPy and Python in the data set, mixup in
the main process, clipping, a scheduler per step and one per epoch.
"""

import argparse
import os
import random
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import elastane


class Images(Dataset):
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


def build_model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(0.2),
        nn.Conv2d(8, 16, 3, stride=2), nn.BatchNorm2d(16), nn.ReLU(),
        nn.Flatten(), nn.Linear(16 * 9, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 5),
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--size", type=int, default=200)
    parser.add_argument("--batch-size", type=int, default=5)
    parser.add_argument("--optimizer", choices=["sgd", "adamw"], default="adamw")
    parser.add_argument("--data-workers", type=int, default=0)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--width", type=int, default=0, help="add a wide layer: large buckets")
    parser.add_argument("--busy-seconds", type=float, default=0.0, help="what a mini-batch costs besides")
    args = parser.parse_args()
    busy_seconds = float(os.environ.get("BUSY_SECONDS", args.busy_seconds))  # for one worker alone
    after_seconds = float(os.environ.get("AFTER_SECONDS", "0"))  # what follows optimizer.step(), in each turn
    slowed = Path(os.environ.get("SLOWED_BY", "/nowhere"))  # while it is there, a mini-batch costs twice

    job = elastane.init(seed=args.seed)
    if args.seed is None:
        random.seed(5), np.random.seed(5), torch.manual_seed(5)
    net = build_model()
    if args.width:
        net.append(
            nn.Sequential(
                nn.Linear(5, args.width), nn.Linear(args.width, args.width), nn.Linear(args.width, 5)
            )
        )
    if args.optimizer == "sgd":
        optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    else:
        optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=0.05)
    warmup = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, 1.0, total_iters=20)
    decay = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.7)
    loader = DataLoader(Images(args.size), args.batch_size, shuffle=True, num_workers=args.data_workers)
    model, optimizer, loader, warmup, decay = job.prepare(net, optimizer, loader, warmup, decay)

    for _ in job.epochs(args.epochs):
        for images, labels in loader:
            # Stands for computing on a device.
            time.sleep(2 * busy_seconds if slowed.exists() else busy_seconds)
            mix = random.random()
            order = torch.randperm(len(images))
            images = mix * images + (1 - mix) * images[order]
            loss = nn.functional.cross_entropy(model(images), labels)
            job.log(loss=loss)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 0.5)
            optimizer.step()
            warmup.step()
            time.sleep(after_seconds)
        decay.step()


if __name__ == "__main__":
    main()
