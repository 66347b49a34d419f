"""Trains with parameter servers, and writes what came out of it.

count: every push subtracts 1 from every dense value, and from a row as often as its task uses it: the result
says how often each gradient counted. deep: embeddings and layers, for the digest.
"""

import argparse
import hashlib
import json
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import elastane

TASK_SIZE = 8
ROWS = 400


class Deep(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.users = nn.EmbeddingBag(ROWS, 8, mode="sum", sparse=True)
        self.items = nn.Embedding(ROWS, 8, sparse=True, padding_idx=0)
        self.layers = nn.Sequential(
            nn.Linear(16, 600), nn.ReLU(), nn.Dropout(0.1), nn.Linear(600, 600), nn.ReLU(), nn.Linear(600, 1)
        )

    def forward(self, users: Tensor, items: Tensor) -> Tensor:
        return self.layers(torch.cat([self.users(users), self.items(items)], 1)).squeeze(1)

    def loss(self, users: Tensor, items: Tensor, clicked: Tensor) -> Tensor:
        return nn.functional.binary_cross_entropy_with_logits(self(users, items), clicked)

    def optimizers(self, name: str) -> list[torch.optim.Optimizer]:
        rows = [*self.users.parameters(), *self.items.parameters()]
        return [
            torch.optim.Adam(self.layers.parameters(), lr=1e-3),
            elastane.RowOptimizer(rows, name, lr=0.05),
        ]


class Count(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Parameter(torch.zeros(300_000))
        self.users = nn.Embedding(ROWS, 4, sparse=True)

    def loss(self, users: Tensor, items: Tensor, clicked: Tensor) -> Tensor:
        return self.dense.sum() + self.users(users).sum()

    def optimizers(self, name: str) -> list[torch.optim.Optimizer]:
        return [torch.optim.SGD(self.parameters(), lr=1.0)]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model", choices=["count", "deep"], default="count")
    parser.add_argument("--tasks", type=int, default=20)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--prefetch", type=int, default=0)
    parser.add_argument("--busy-seconds", type=float, default=0.0)
    parser.add_argument("--rule", default="rowwise_adagrad")
    parser.add_argument("--not-finite", type=int, default=-1, help="this task's loss is infinite")
    parser.add_argument("--skip", type=int, default=-1, help="this task is skipped")
    parser.add_argument("--dataset", default="clicks")
    parser.add_argument(
        "--leave-at", type=int, default=-1, help="before this task: another data set comes first"
    )
    parser.add_argument("--ahead", action="store_true", help="say which rows a task uses")
    parser.add_argument("--loss-scale", type=float, default=1.0)
    parser.add_argument("--worker-scale", type=float, default=1.0, help="--loss-scale of workers")
    args = parser.parse_args()

    job = elastane.init(seed=3)
    model = Deep() if args.model == "deep" else Count()
    generator = torch.Generator().manual_seed(0)
    samples = args.tasks * TASK_SIZE
    users = torch.randint(0, ROWS, (samples, 5), generator=generator)
    items = torch.randint(0, ROWS, (samples,), generator=generator)
    clicked = torch.rand(samples, generator=generator)

    def rows(indices: range) -> Mapping[str, Tensor]:
        part = slice(indices.start, indices.stop)
        found = {"users": users[part]}
        return found if args.model == "count" else {**found, "items": items[part]}

    job.prepare_ps(
        model,
        model.optimizers(args.rule),
        rows=rows if args.ahead else None,
        initial=("zeros", 1.0) if args.model == "count" else None,
    )
    seen = []
    leave_at, passes = args.leave_at, 1

    def tasks() -> Iterator[Any]:
        nonlocal leave_at, passes
        size = {"size": samples, "task_size": TASK_SIZE, "epochs": args.epochs}
        for task in job.tasks(args.dataset, max_attempts=10, prefetch=args.prefetch, **size):
            if task.index == leave_at:
                leave_at, passes = -1, 2
                break
            yield task
        if passes == 2:
            yield from job.tasks("others", prefetch=args.prefetch, **size)
            yield from job.tasks(args.dataset, max_attempts=10, prefetch=args.prefetch, **size)

    for task in tasks():
        if task.index == args.skip:
            job.skip(task)
            continue
        part = slice(task.indices.start, task.indices.stop)
        with job.push(task) as push:
            loss = model.loss(users[part], items[part], clicked[part]) * args.loss_scale
            loss = loss * (args.worker_scale if "ELASTANE_WORKER_ID" in os.environ else 1.0)
            if task.index == args.not_finite:
                loss = loss * torch.inf
            loss.backward()
        time.sleep(args.busy_seconds)
        seen.append((task.epoch, task.index, push.applied, push.staleness))

    every = torch.arange(ROWS)
    with job.evaluate():
        table = model.users(every[:, None]) if args.model == "deep" else model.users(every)
        values = [*model.state_dict().values(), table]
        digest = hashlib.sha256(b"".join(value.numpy().tobytes() for value in values)).hexdigest()
        result = {"digest": digest, "tasks": seen}
        if args.model == "count":
            used = torch.bincount(users.reshape(-1), minlength=ROWS) * args.epochs * passes
            dense = {float(value) for value in model.dense.unique()}
            wrong = (table[:, 0] != -used).nonzero().reshape(-1).tolist()
            result |= {"dense": sorted(dense), "wrong_rows": wrong, "columns": len(table.unique(dim=1).T)}
    name = os.environ.get("ELASTANE_WORKER_ID", "plain")
    draft = args.out / f"{name}-{os.getpid()}.draft"
    draft.write_text(json.dumps(result))
    draft.rename(args.out / f"{name}.json")


if __name__ == "__main__":
    main()
