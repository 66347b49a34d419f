"""State of the script's own, registered by name: generators of every kind, and an object with state_dict.

The data set's generators are used where samples are made (in data workers, if there are any), the
others in the loop.
"""

import argparse
import random
from typing import Any

import numpy as np
import torch
from parts import Images
from torch import nn
from torch.utils.data import DataLoader

import elastane

parser = argparse.ArgumentParser()
parser.add_argument("--data-workers", type=int, default=0)
parser.add_argument("--unregistered", default="", help="leave this one out")
args = parser.parse_args()


class Smoothing:
    """A running mean of the loss, and how often it was asked for: each rank has its own."""

    def __init__(self) -> None:
        self.mean, self.count = 1.0, 0

    def update(self, loss: float) -> float:
        self.mean, self.count = 0.9 * self.mean + 0.1 * loss, self.count + 1
        return self.mean

    def state_dict(self) -> dict[str, Any]:
        return {"mean": self.mean, "count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.mean, self.count = state["mean"], state["count"]


class Noisy(Images):
    """Has generators of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.rng = np.random.default_rng(21)
        self.choice = random.Random(22)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        image, label = super().__getitem__(index)
        noise = torch.from_numpy(self.rng.normal(size=image.shape).astype("float32"))
        return image + self.choice.choice((0.01, 0.1)) * noise, label


job = elastane.init(seed=11)
data = Noisy()
noise = np.random.default_rng(23)
legacy = np.random.RandomState(24)
own = torch.Generator().manual_seed(25)
smoothing = Smoothing()
named = {
    "dataset.rng": data.rng, "dataset.choice": data.choice, "noise": noise, "legacy": legacy, "own": own,
    "smoothing": smoothing,
}  # fmt: skip
for name, one in named.items():
    if name != args.unregistered:
        job.register(name, one)

net = nn.Sequential(nn.Flatten(), nn.Linear(192, 24), nn.ReLU(), nn.Dropout(0.1), nn.Linear(24, 5))
optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
loader = DataLoader(data, 4, shuffle=True, num_workers=args.data_workers)
model, optimizer, loader = job.prepare(net, optimizer, loader)

for _ in job.epochs(2):
    for images, labels in loader:
        images = images + 0.1 * torch.from_numpy(noise.normal(size=images.shape).astype("float32"))
        images = images * float(legacy.uniform(0.9, 1.1))
        images = images + 0.1 * torch.randn(images.shape, generator=own)
        loss = nn.functional.cross_entropy(model(images), labels)
        weight = smoothing.update(loss.item())
        job.log(loss=loss, weight=weight)
        optimizer.zero_grad()
        (loss * weight).backward()
        optimizer.step()
