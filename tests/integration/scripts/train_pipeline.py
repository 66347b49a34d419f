"""A small CNN in units, with what a pipeline could get wrong: BatchNorm, dropout, random data, clipping, a
scheduler, accumulation, evaluation after every epoch. Writes what it evaluates to ELASTANE_REPORT_DIR.

With --amp in bfloat16, with a GradScaler whose scale is too large at first; with --split cut by torch; with
--whole as an ordinary script of the same model."""

import argparse
import fcntl
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import elastane


class Pictures(Dataset):
    """Pictures, by default with noise that is drawn when they are loaded."""

    def __init__(self, size: int, noise: float = 0.1, broken: int = -1) -> None:
        generator = torch.Generator().manual_seed(5)
        self.values = torch.randn(size, 2, 6, 6, generator=generator)
        self.noise = noise
        self.labels = (self.values.mean((1, 2, 3)) > 0).long()
        if broken >= 0:
            self.values[broken] = 1e6

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.values[index] + self.noise * torch.randn(2, 6, 6), self.labels[index]


class Checked(nn.Module):
    """Raises for a sample that is broken."""

    def forward(self, x: Tensor) -> Tensor:
        if x.abs().max() > 1e3:
            raise ValueError("a sample is broken")
        return x


class Whole(nn.Module):
    """The same as one model, for torch to split."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList(units(modules=True))

    def forward(self, x: Tensor) -> Tensor:
        for part in self.parts:
            x = part(x)
        return x


def split(batch_size: int) -> Any:
    from torch.distributed.pipelining import SplitPoint, pipeline

    points = {"parts.1": SplitPoint.BEGINNING, "parts.4": SplitPoint.BEGINNING}
    return pipeline(Whole(), mb_args=(torch.zeros(batch_size, 2, 6, 6),), split_spec=points)


class Steep(nn.ReLU):
    """What is before it gets large gradients, and infinite ones if they are scaled too much."""

    def forward(self, x: Tensor) -> Tensor:
        found = super().forward(x)
        if found.requires_grad:
            found.register_hook(lambda gradient: gradient * 512)
        return found


def hooked() -> nn.Module:
    """A layer whose gradient depends on how many this process has seen: no rank of its own has that."""
    module, seen = nn.Linear(64, 2), [0]

    def scaled(gradient: Tensor) -> Tensor:
        seen[0] += 1
        return gradient * (1 + seen[0] / 100)

    module.weight.register_hook(scaled)
    return module


def units(
    modules: bool,
    *,
    checks: bool = False,
    flaw: bool = False,
    steep: bool = False,
) -> list:
    builders = [
        lambda: nn.Conv2d(2, 4, 3, padding=1),
        lambda: nn.BatchNorm2d(4),
        Steep if steep else nn.ReLU,
        lambda: nn.Dropout(0.2),
        lambda: nn.Sequential(nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4), nn.ReLU()),
        nn.Flatten,
        hooked if flaw else lambda: nn.Linear(64, 2),
    ]
    if checks:
        builders.insert(0, Checked)
    return [build() for build in builders] if modules else builders


def disturbed(batches: Any, epoch: int, dies: str, gate: str) -> Iterator[Any]:
    """Yield mini-batches; after some of them in epoch 1, end a worker, or wait while a file is locked."""
    for index, batch in enumerate(batches):
        if epoch == 1 and index == 4:
            if dies and os.environ.get("ELASTANE_WORKER_ID") == dies:
                os.kill(os.getpid(), signal.SIGKILL)
            if gate and "ELASTANE_WORKER_ID" in os.environ:
                with Path(gate).open() as file:
                    fcntl.flock(file, fcntl.LOCK_SH)
        yield batch


def make_optimizer(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.01)


def make_scheduler(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
    return torch.optim.lr_scheduler.StepLR(optimizer, 5, gamma=0.5)


def train_whole(job: Any, loader: Any, epochs: int) -> None:
    """Train as an ordinary script."""
    model = nn.Sequential(*units(modules=True))
    optimizer = make_optimizer(model.parameters())
    scheduler = make_scheduler(optimizer)
    model, optimizer, loader, scheduler = job.prepare(model, optimizer, loader, scheduler)
    for _ in job.epochs(epochs):
        for given, target in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(given), target)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            scheduler.step()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--size", type=int, default=96)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--accumulation", type=int, default=1)
    parser.add_argument("--data-workers", type=int, default=0)
    parser.add_argument("--modules", action="store_true", help="give units as modules")
    parser.add_argument("--evaluate", default="all", help="all workers, the leader alone, or none")
    parser.add_argument("--dies", default="", help="the worker that dies while it evaluates")
    parser.add_argument("--gate", default="", help="file; workers wait for its lock while they evaluate")
    parser.add_argument("--noise", type=float, default=0.0, help="in what is evaluated")
    parser.add_argument("--amp", action="store_true")
    parser.add_argument("--split", action="store_true", help="let torch split the model")
    parser.add_argument("--whole", action="store_true", help="train with job.prepare")
    parser.add_argument("--profile")
    parser.add_argument("--memory")
    parser.add_argument("--broken", type=int, default=-1, help="index of a sample for which a unit raises")
    parser.add_argument("--stop", type=int, default=-1, help="leave the loop after this epoch")
    parser.add_argument("--flaw", action="store_true", help="a unit that keeps something between ESTs")
    args = parser.parse_args()

    job = elastane.init(seed=3)
    loader = DataLoader(
        Pictures(args.size, broken=args.broken),
        args.batch_size,
        shuffle=True,
        drop_last=True,
        num_workers=args.data_workers,
    )
    tested = DataLoader(Pictures(30, args.noise), 5)
    if args.whole:
        train_whole(job, loader, args.epochs)
        return
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**126, growth_interval=3)
    pipe, optimizer, loader, scheduler = job.prepare_pipeline(
        split(args.batch_size)
        if args.split
        else units(args.modules, checks=args.broken >= 0, flaw=args.flaw, steep=args.amp),
        make_optimizer,
        loader,
        *([scaler] if args.amp else []),
        loss_fn=nn.functional.cross_entropy,
        scheduler=make_scheduler,
        accumulation_steps=args.accumulation,
        profile=args.profile,
        memory=args.memory,
    )
    found: dict[int, list[float]] = {}
    best = job.carry(loss=float("inf"))
    for epoch in job.epochs(args.epochs):
        for batch in loader:
            with torch.autocast("cpu", torch.bfloat16, enabled=args.amp):
                loss = pipe(batch)
            if args.amp:
                scaler.unscale_(optimizer)
            norm = pipe.clip_grad_norm_(0.5)
            job.log(loss=loss, norm=norm)
            if args.amp:
                scaler.step(optimizer)
                scaler.update()
            else:
                optimizer.step()
            scheduler.step()
        if args.evaluate == "all" or (args.evaluate == "leader" and job.is_leader):
            with torch.autocast("cpu", torch.bfloat16, enabled=args.amp):
                found[epoch] = pipe.evaluate(
                    disturbed(tested, epoch, args.dies, args.gate),
                    lambda logits, batch: nn.functional.cross_entropy(logits, batch[1]).item(),
                )
            if args.evaluate == "all":
                best.loss = min(best.loss, sum(found[epoch]))
                found[epoch].append(best.loss)
            name = os.environ.get("ELASTANE_WORKER_ID") or f"rank{job.rank}"
            folder = Path(os.environ["ELASTANE_REPORT_DIR"])
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"evaluated-{name}.json").write_text(json.dumps(found))
        if epoch == args.stop:
            break


if __name__ == "__main__":
    main()
