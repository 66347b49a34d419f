"""An endless stream (IterableDataset) that shards itself by rank and data worker.

--state says how it can be continued in the middle, with state_dict and load_state_dict as torchdata's
StatefulDataLoader asks for them:

    iterator    the iterator has them
    position    the dataset has them; its position is its own, and a new iterator goes on from it
    resume      the dataset has them; a new iterator begins at the start, but after load_state_dict
    none        nobody has them: an epoch is gone through again from its start
"""

import argparse
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

import elastane

parser = argparse.ArgumentParser()
parser.add_argument("--state", choices=["none", "iterator", "position", "resume"], default="none")
parser.add_argument("--data-workers", type=int, default=0)
args = parser.parse_args()

STEPS = 5


class Shard:
    """The samples of one rank's data worker."""

    def __init__(self, first: int, stride: int) -> None:
        self.next, self.stride = first, stride

    def __iter__(self) -> Iterator[torch.Tensor]:
        return self

    def __next__(self) -> torch.Tensor:
        place, self.next = self.next, self.next + self.stride
        sample = torch.sin(torch.arange(12.0) * (1 + place % 17)) + 0.1 * torch.randn(12)
        return sample * float(np.random.uniform(0.9, 1.1)) + random.random() * 0.01


class StatefulShard(Shard):
    def state_dict(self) -> dict[str, Any]:
        return {"next": self.next}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.next = state["next"]


class Stream(IterableDataset):
    """Rank r of N and data worker j of W take every (N * W)-th sample."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        info = get_worker_info()
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        kind = StatefulShard if args.state == "iterator" else Shard
        return kind(job.rank * workers + worker, job.num_ests * workers)


class PositionedStream(Stream):
    place: int | None = None

    def __iter__(self) -> Iterator[torch.Tensor]:
        shard = super().__iter__()
        assert isinstance(shard, Shard)
        if self.place is not None:
            shard.next = self.place
        for sample in shard:
            self.place = shard.next
            yield sample

    def state_dict(self) -> dict[str, Any]:
        return {"place": self.place}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.place = state["place"]


class ResumedStream(PositionedStream):
    loaded = False

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.loaded = True

    def __iter__(self) -> Iterator[torch.Tensor]:
        if not self.loaded:
            self.place = None
        self.loaded = False
        yield from super().__iter__()


job = elastane.init(seed=10)
stream = {"position": PositionedStream, "resume": ResumedStream}.get(args.state, Stream)()
loader = DataLoader(stream, 4, num_workers=args.data_workers, drop_last=True)
net = nn.Sequential(nn.Linear(12, 24), nn.Tanh(), nn.Dropout(0.1), nn.Linear(24, 12))
optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
model, optimizer, loader = job.prepare(net, optimizer, loader, steps_per_epoch=STEPS)

for _ in job.epochs(3):
    for samples in loader:
        loss = nn.functional.mse_loss(model(samples), samples)
        job.log(loss=loss)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
