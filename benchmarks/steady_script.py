"""The training loop that steady_step.py times: one script for stock DDP, Elastane and plain accumulation.

Writes the seconds between global steps, as seen by the leader, to --out.
"""

import argparse
import itertools
import json
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import elastane


def digits_model() -> tuple[nn.Module, tuple[int, ...]]:
    model = nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Dropout(0.3), nn.Linear(64 * 16, 128), nn.ReLU(), nn.Linear(128, 10),
    )  # fmt: skip
    return model, (1, 8, 8)


def wide_model() -> tuple[nn.Module, tuple[int, ...]]:
    """25 million parameters in linear layers."""
    layers: list[nn.Module] = [nn.Flatten(), nn.Linear(64, 2048)]
    for _ in range(6):
        layers += [nn.ReLU(), nn.Linear(2048, 2048)]
    return nn.Sequential(*layers, nn.ReLU(), nn.Linear(2048, 10)), (1, 8, 8)


MODELS = {"digits": digits_model, "25m": wide_model}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=MODELS, default="digits")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--accumulate", type=int, default=1, help="plain mode: micro-batches in a step")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()

    job = elastane.init(seed=1)
    net, shape = MODELS[args.model]()
    samples = args.steps * args.batch_size * (job.num_ests if job.num_ests > 1 else args.accumulate)
    data = TensorDataset(torch.randn(samples, *shape), torch.randint(0, 10, (samples,)))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    loader = DataLoader(data, args.batch_size)
    model, optimizer, loader = job.prepare(net, optimizer, loader)

    marks: list[float] = []
    for _ in job.epochs(1):
        for turn, (x, y) in enumerate(loader):
            if args.accumulate > 1:
                if turn % args.accumulate == 0:
                    marks.append(time.perf_counter())
                    optimizer.zero_grad()
                (nn.functional.cross_entropy(model(x), y) / args.accumulate).backward()
                if (turn + 1) % args.accumulate == 0:
                    optimizer.step()
                continue
            if job.rank == 0:
                marks.append(time.perf_counter())
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    if job.is_leader:
        args.out.write_text(json.dumps([after - before for before, after in itertools.pairwise(marks)]))


if __name__ == "__main__":
    main()
