"""The training script of the GPU benchmarks: one for Elastane, stock DDP and plain accumulation.

It uses everything that could make k logical workers in one process differ from k processes: dropout on the
device, BatchNorm, augmentation that draws from torch, NumPy and Python in the data workers, mixing in the
main process. It writes `<out>/<process id>.json`: seconds of every step as measured by the leader, and the
process's own peak of memory.

With --share-gpu, `elastane verify` trains on one GPU with several workers that are killed and replaced:

    elastane verify --ests 4 --kills 2 benchmarks/gpu/train_script.py --share-gpu --out /tmp/measured
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import resource
import time
from pathlib import Path

import numpy as np
import torch
from models import MODELS
from torch import nn
from torch.utils.data import DataLoader, Dataset

import elastane

CLASSES = 10


class SecondHead(nn.Module):
    """A network with a second output that some batches do not use: they leave its gradients out."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net
        self.second = nn.Linear(CLASSES, CLASSES)

    def forward(self, pictures: torch.Tensor, both: bool) -> torch.Tensor:
        found: torch.Tensor = self.net(pictures)
        return found + self.second(found) if both else found


class Pictures(Dataset[tuple[torch.Tensor, int]]):
    """Synthetic pictures of shape (3, size, size), augmented anew at every read."""

    def __init__(self, samples: int, size: int) -> None:
        self.samples, self.size = samples, size

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if index >= self.samples:
            raise IndexError(index)
        own = torch.Generator().manual_seed(index)
        picture = torch.randn(3, self.size, self.size, generator=own)
        picture = picture * float(np.random.uniform(0.8, 1.2)) + 0.1 * torch.randn(3, 1, 1)
        return (picture.flip(2) if random.random() < 0.5 else picture), index % CLASSES


def main() -> None:
    """Train. Started by the benchmarks of this folder in every mode of `elastane.init`."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--share-gpu", action="store_true", help="several workers on one GPU, over NCCL")
    parser.add_argument("--model", choices=list(MODELS), default="resnet50")
    parser.add_argument("--picture-size", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=32, help="of one logical worker")
    parser.add_argument("--steps", type=int, default=20, help="global steps, in one epoch")
    parser.add_argument("--data-workers", type=int, default=2)
    parser.add_argument(
        "--find-unused-parameters",
        action="store_true",
        help="train a second head that some batches do not use",
    )
    parser.add_argument("--accumulate", type=int, default=1, help="plain mode: mini-batches of a step")
    parser.add_argument("--out", type=Path, required=True, help="folder for what each process measured")
    args = parser.parse_args()

    if args.share_gpu:
        # NCCL refuses two ranks on one GPU of a host, so each process poses as a host of its own. What its
        # ranks then send each other goes through sockets: good for bits, not for times.
        os.environ |= {"NCCL_HOSTID": str(os.getpid()), "NCCL_SOCKET_IFNAME": "lo", "LOCAL_RANK": "0"}
    device = torch.device(args.device, 0) if args.device == "cuda" else torch.device("cpu")
    job = elastane.init(seed=5)
    net = MODELS[args.model](args.picture_size, CLASSES)
    if args.find_unused_parameters:
        net = SecondHead(net)
    net = net.to(device)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    per_step = args.batch_size * max(job.num_ests, args.accumulate)
    loader = DataLoader(
        Pictures(args.steps * per_step, args.picture_size),
        args.batch_size,
        shuffle=True,
        num_workers=args.data_workers,
    )
    model, optimizer, loader = job.prepare(
        net, optimizer, loader, find_unused_parameters=args.find_unused_parameters
    )

    marks: list[float] = []

    def mark() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize()
        marks.append(time.perf_counter())

    for _ in job.epochs(1):
        for turn, (pictures, labels) in enumerate(loader):
            first = turn % args.accumulate == 0
            if first and job.rank == 0:
                mark()
            pictures, labels = pictures.to(device, non_blocking=True), labels.to(device, non_blocking=True)
            pictures = pictures + random.random() * pictures[torch.randperm(len(pictures)).to(device)]
            further = (random.random() < 0.5,) if args.find_unused_parameters else ()
            loss = nn.functional.cross_entropy(model(pictures, *further), labels)
            job.log(loss=loss)
            if first:
                optimizer.zero_grad()
            (loss if args.accumulate == 1 else loss / args.accumulate).backward()
            if (turn + 1) % args.accumulate == 0:
                optimizer.step()
    if job.rank == 0:
        mark()

    measured = {
        "leader": bool(job.is_leader),
        "step_seconds": [after - before for before, after in itertools.pairwise(marks)],
        "parameters": sum(parameter.numel() for parameter in net.parameters()),
        "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "peak_allocated_bytes": torch.cuda.max_memory_allocated() if device.type == "cuda" else 0,
        "peak_reserved_bytes": torch.cuda.max_memory_reserved() if device.type == "cuda" else 0,
    }
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / f"{os.getpid()}.json").write_text(json.dumps(measured))


if __name__ == "__main__":
    main()
