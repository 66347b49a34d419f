"""What a loop body may do only once a step: done right (no case), and each slip by its name.

Written for one rank, as under DDP, each slip trains; in a worker of several logical workers, and in replays,
it would give other bits.
"""

import argparse
import copy
import itertools

import torch
from parts import Images
from torch import nn
from torch.utils.data import DataLoader

import elastane

SLIPS = (
    "counter", "clamp", "data-clamp", "average", "module-counter", "running-mean", "optimizer-counter",
    "every-second-turn", "second-forward", "criterion-counter", "hook",
)  # fmt: skip
parser = argparse.ArgumentParser()
parser.add_argument("slip", nargs="?", choices=SLIPS)
slip = parser.parse_args().slip


class Net(nn.Module):
    """Its temperature falls with the steps: a buffer counts them. One part of it has running statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 4, 3, stride=2), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten()
        )
        self.head = nn.Linear(36, 5)
        self.register_buffer("count", torch.zeros((), dtype=torch.long))
        self.calls = 0

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.count.add_(1)
            self.calls += 1
        scores = self.head(self.features(images)) / (1 + 0.01 * self.count)
        return scores / self.calls if slip == "module-counter" else scores


class Lookahead(torch.optim.SGD):
    """Every third step halves the way; the count is in its state, or in an attribute."""

    def __init__(self, params, **options) -> None:
        super().__init__(params, **options)
        self.k = 0
        self.param_groups[0]["k"] = 0

    @torch.no_grad()
    def step(self, closure=None):
        super().step(closure)
        group = self.param_groups[0]
        group["k"] += 1
        self.k += 1
        if (self.k if slip == "optimizer-counter" else group["k"]) % 3 == 0:
            for parameter in group["params"]:
                parameter.mul_(0.9)


class Warming(nn.Module):
    """A loss that smooths labels the more, the more it has seen; or only counts them."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = 0

    def forward(self, scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        self.seen += len(labels)
        smooths = min(0.2, self.seen / 100) if slip == "criterion-counter" else 0.1
        return nn.functional.cross_entropy(scores, labels, label_smoothing=smooths)


job = elastane.init(seed=9)
criterion = Warming()
net = Net()
average = copy.deepcopy(net).requires_grad_(False).eval()
optimizer = Lookahead(net.parameters(), lr=0.05, momentum=0.9)
loader = DataLoader(Images(), 4, shuffle=True)
if slip == "hook":
    calls = itertools.count(1)
    net.head.register_forward_hook(lambda module, inputs, scores: scores / next(calls))
if slip == "average":
    model, optimizer, loader = job.prepare(net, optimizer, loader)
else:
    model, optimizer, loader, average = job.prepare(net, optimizer, loader, average)

turns, mean, total = 0, 1.0, 0.0
for _ in job.epochs(2):
    for images, labels in loader:
        turns += 1
        factor = turns if slip == "counter" else job.step
        for group in optimizer.param_groups:
            group["lr"] = 0.05 / (1 + factor)
        loss = criterion(model(images), labels)
        if slip == "second-forward":
            loss = loss + model(images.flip(3)).square().mean() * (1 + net.features[1].running_mean.sum())
        if slip == "running-mean":
            loss = loss / mean
        mean = 0.9 * mean + 0.1 * loss.item()
        total += loss.item()
        job.log(loss=loss)
        loss.backward()
        if slip == "every-second-turn" and turns % 2:
            continue
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            if slip == "clamp":
                net.head.weight.clamp_(-0.1, 0.1)
            if slip == "data-clamp":
                net.head.weight.data.clamp_(-0.1, 0.1)
            if job.stepped or slip == "average":
                for kept, new in zip(average.parameters(), net.parameters(), strict=True):
                    kept.data.lerp_(new.data, 0.2)
            if job.stepped:
                net.head.weight.clamp_(-0.3, 0.3)
        if turns % 5 == 0:
            print(f"turn {turns}: mean {mean:.3f}, total {total:.3f}, {criterion.seen} labels")
            with job.isolated_rng(), torch.no_grad():
                model.eval()
                model(images), model(images.flip(2))
                model.train()
