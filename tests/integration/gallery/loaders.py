"""Ways to feed a model: samplers, batch samplers, and the DataLoader's other options."""

import argparse
import random
from collections.abc import Iterator

import numpy as np
import torch
from parts import Texts
from torch import nn
from torch.utils.data import (
    DataLoader,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    WeightedRandomSampler,
)

import elastane

SAMPLERS = ("shuffle", "sequential", "distributed", "weighted", "replacement", "random", "lengths", "epochs")
parser = argparse.ArgumentParser()
parser.add_argument("--sampler", choices=SAMPLERS, default="shuffle")
parser.add_argument("--generator", action="store_true", help="give the DataLoader a generator of its own")
parser.add_argument("--drop-last", action="store_true")
parser.add_argument("--data-workers", type=int, default=0)
parser.add_argument("--persistent", action="store_true")
parser.add_argument("--prefetch", type=int, default=None)
parser.add_argument("--pin-memory", action="store_true")
parser.add_argument("--init-fn", action="store_true")
args = parser.parse_args()


def pad(samples: list[tuple[torch.Tensor, int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Pad to the longest, sometimes by more: draws random numbers where batches are made."""
    longest = max(len(text) for text, _ in samples) + random.randint(0, 2)
    texts = torch.zeros(len(samples), longest, dtype=torch.long)
    for row, (text, _) in zip(texts, samples, strict=True):
        row[: len(text)] = text
    return texts, torch.tensor([label for _, label in samples])


def settle_in(worker: int) -> None:
    """What many scripts do: seed NumPy from torch's seed; and draw, so that the order of seeding shows."""
    np.random.seed((torch.initial_seed() + worker) % 2**32)
    random.seed(np.random.randint(1 << 30))


class ByLength(Sampler[list[int]]):
    """Batches of texts of similar length, in random order; their number is the same in every epoch."""

    def __init__(self, texts: Texts, size: int, with_epoch: bool) -> None:
        self.texts, self.size, self.with_epoch, self.epoch = texts, size, with_epoch, 0
        if with_epoch:
            self.set_epoch = self._set_epoch

    def _set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[list[int]]:
        if self.with_epoch:
            order = np.random.Generator(np.random.PCG64(self.epoch)).permutation(len(self.texts))
        else:
            order = np.random.permutation(len(self.texts))
        order = sorted(order.tolist(), key=lambda index: len(self.texts.texts[index]) // 3)
        batches = [order[start : start + self.size] for start in range(0, len(order), self.size)]
        random.shuffle(batches)
        yield from batches

    def __len__(self) -> int:
        return -(-len(self.texts) // self.size)


job = elastane.init(seed=9)
data = Texts()
own = torch.Generator().manual_seed(77)
weights = torch.rand(len(data), generator=torch.Generator().manual_seed(1))
options = {"batch_size": 4, "drop_last": args.drop_last, "shuffle": args.sampler == "shuffle" or None}
if args.sampler in ("lengths", "epochs"):
    options = {"batch_sampler": ByLength(data, 4, args.sampler == "epochs")}
elif args.sampler != "shuffle":
    options["sampler"] = {
        "sequential": lambda: SequentialSampler(data),
        "distributed": lambda: DistributedSampler(data, job.num_ests, 0, seed=5, drop_last=True),
        "weighted": lambda: WeightedRandomSampler(weights.tolist(), 50),
        "replacement": lambda: RandomSampler(data, replacement=True, num_samples=55, generator=own),
        "random": lambda: RandomSampler(data, generator=own),
    }[args.sampler]()
loader = DataLoader(
    data,
    **options,
    collate_fn=pad,
    num_workers=args.data_workers,
    persistent_workers=args.persistent,
    prefetch_factor=args.prefetch,
    pin_memory=args.pin_memory,
    worker_init_fn=settle_in if args.init_fn else None,
    generator=torch.Generator().manual_seed(78) if args.generator else None,
)
net = nn.Sequential(nn.EmbeddingBag(40, 16, padding_idx=0), nn.Dropout(0.1), nn.Linear(16, 5))
optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
model, optimizer, loader = job.prepare(net, optimizer, loader)

for _ in job.epochs(3):
    for texts, labels in loader:
        loss = nn.functional.cross_entropy(model(texts), labels)
        job.log(loss=loss, width=texts.shape[1])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
