"""A small training script into which faults can be put, by name: what `elastane doctor` must find."""

import argparse
import random
import sys
import time
from collections.abc import Iterator

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

import elastane

jitter = random.Random(7)


class Points(Dataset):
    def __init__(self, own: bool, clock: bool) -> None:
        self.clock = clock
        self.x = torch.randn(24, 4, generator=torch.Generator().manual_seed(1))
        self.rng = np.random.default_rng(2) if own else None

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> torch.Tensor:
        noise = self.rng.random() if self.rng is not None else random.random()
        if self.clock:
            noise = time.perf_counter()
        return self.x[index] + 0.01 * noise


class Stream(IterableDataset):
    """Without states; all data workers give the same."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        return (torch.full((4,), float(number)) for number in range(200))


class FickleStream(IterableDataset):
    """Draws another number of random numbers every time it is gone through."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        torch.rand(1 + time.perf_counter_ns() % 100_000)
        return (torch.full((4,), float(number)) for number in range(200))


class Net(nn.Module):
    def __init__(self, faults: list[str]) -> None:
        super().__init__()
        self.faults = faults
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2))
        self.head = nn.Linear(8, 1)
        if "unused" in faults:
            self.spare = nn.Linear(8, 1)
        if "sparse" in faults:
            self.codes = nn.Embedding(5, 8, sparse=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.layers(x)
        if "sparse" in self.faults:
            hidden = hidden + self.codes(torch.zeros(len(x), dtype=torch.long))
        if "put" in self.faults:
            hidden = hidden + torch.zeros(8).put_(torch.tensor([1]), torch.tensor([0.5]))
        if "grid" in self.faults:
            image, grid = hidden.reshape(1, 1, len(x), 8), torch.zeros(1, len(x), 8, 2)
            hidden = hidden + nn.functional.grid_sample(image, grid, align_corners=False)[0, 0]
        return self.head(hidden)


class Handle:
    """State that cannot be carried: an open file."""

    def state_dict(self) -> dict[str, object]:
        return {"stream": sys.stdout}

    def load_state_dict(self, state: dict[str, object]) -> None: ...


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("faults", nargs="*")
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--data-workers", type=int, default=0)
    args = parser.parse_args()
    faults = args.faults

    job = elastane.init(seed=3)
    noise = np.random.default_rng(0)
    if "registered" in faults:
        job.register("noise", noise)
    net = Net(faults)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.0 if "sparse" in faults else 0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    data = Points("dataset" in faults, "clock" in faults)
    if "stream" in faults:
        stream = FickleStream() if "fickle" in faults else Stream()
        loader = DataLoader(stream, 4, num_workers=args.data_workers)
    else:
        loader = DataLoader(
            data, 4, shuffle=True, num_workers=args.data_workers, in_order="in_order" not in faults
        )
    objects = [net, optimizer, loader, scheduler, *([Handle()] if "handle" in faults else [])]
    options = {"bucket_limit": 3} if "option" in faults else {"accumulation_steps": args.accumulate}
    if "stream" in faults:
        options["steps_per_epoch"] = 6
    model, optimizer, loader, scheduler, *_ = job.prepare(*objects, **options)

    if "no_loop" in faults:
        return
    turns, mean = 0, 0.0
    for _ in job.epochs(2):
        for x in loader:
            optimizer.zero_grad()
            loss = model(x).square().mean()
            if "local" in faults or "registered" in faults:
                loss = loss * (1 + 0.1 * noise.random())
            if "global" in faults:
                loss = loss * (1 + 0.1 * jitter.random())
            if "counter" in faults:
                loss = loss * (1 + 0.01 * turns)
            if "crash" in faults and turns == 1:
                raise ValueError("the data is bad")
            turns += 1
            if "leaves" in faults and turns == 1:
                break
            mean = 0.9 * mean + 0.1 * loss.item()
            job.log(loss=loss)
            loss.backward()
            if "late" in faults:
                job.log(after=torch.rand(()))
            if "no_step" not in faults:
                optimizer.step()
                scheduler.step()
    raise AssertionError("the doctor ends the script within its loop")


if __name__ == "__main__":
    main()
