"""Digit recognition: conv + BatchNorm + Dropout on scikit-learn's bundled digits, with augmentation.

    elastane run --ests 4 --workers 1:3 examples/digits_cnn.py      elastic, on this machine
    python examples/digits_cnn.py                                   plain single process

Everything is stock PyTorch but the three lines marked `(elastane)`: init, prepare, epochs.
"""

import argparse
import random

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, Dataset

import elastane


class Digits(Dataset):
    """8x8 grey images; training images are shifted, scaled and made noisy at random."""

    def __init__(self, train: bool) -> None:
        images, labels = load_digits(return_X_y=True)
        part = slice(0, 1536) if train else slice(1536, None)
        self.images = torch.tensor(images[part], dtype=torch.float32).reshape(-1, 1, 8, 8) / 16
        self.labels = torch.tensor(labels[part])
        self.train = train

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        image = self.images[index]
        if self.train:
            image = torch.roll(image, (random.randint(-1, 1), random.randint(-1, 1)), dims=(1, 2))
            image = image * float(np.random.uniform(0.8, 1.2)) + 0.05 * torch.randn_like(image)
        return image, self.labels[index]


def build_model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Dropout(0.3), nn.Linear(64 * 16, 128), nn.ReLU(), nn.Linear(128, 10),
    )  # fmt: skip


@torch.no_grad()
def accuracy(net: nn.Module, data: Digits) -> float:
    net.eval()
    correct = (net(data.images).argmax(1) == data.labels).float().mean().item()
    net.train()
    return correct


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=32, help="of each logical worker")
    parser.add_argument("--data-workers", type=int, default=2)
    args = parser.parse_args()

    job = elastane.init(seed=7)  # (elastane)
    net = build_model()
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=200)
    loader = DataLoader(Digits(True), args.batch_size, shuffle=True, num_workers=args.data_workers)
    model, optimizer, loader, scheduler = job.prepare(net, optimizer, loader, scheduler)  # (elastane)

    for epoch in job.epochs(args.epochs):  # (elastane)
        for images, labels in loader:
            loss = nn.functional.cross_entropy(model(images), labels)
            job.log(loss=loss)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
        if job.is_leader:
            print(f"epoch {epoch}: accuracy {accuracy(net, Digits(False)):.4f}", flush=True)


if __name__ == "__main__":
    main()
