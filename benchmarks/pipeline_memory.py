"""Memory of pipeline workers beside the planner's figures for them.

    python benchmarks/pipeline_memory.py [--quick] [--only NAME] [--json [FILE]]

For each case the units are profiled as by `elastane profile`, and trained in two processes in the planner's
order of blocks. Measured: the peak growth of a worker's resident memory over four steps, from before it has
units. Planned: `MemoryNeeds` of the profile. These runs make glibc return freed memory at once
(MALLOC_MMAP_THRESHOLD_); otherwise a fifth of the measured memory would be fragmentation.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from harness import Report, Row, Series, run_benchmark
from pipeline_models import VOCABULARY, Block, token_loss, tokens
from pipeline_processes import Worker, together
from torch import Tensor, nn
from torch.nn import functional

from elastane.pipeline.profiling import profile_units
from elastane.pipeline.units import Units
from elastane.state.unit_optimizer import UnitOptimizer
from elastane_planner.cluster import Cluster, Device
from elastane_planner.costs import Costs
from elastane_planner.memory import MemoryNeeds, Need
from elastane_planner.plan import Memory, Plan, Stage
from elastane_planner.planner import make_plan
from elastane_planner.profile import Profile
from elastane_planner.schedule import blocks

TARGET = 1.10
STEPS = 4
Constructors = list[Callable[[], nn.Module]]


class Normed(nn.Module):
    """Convolution, BatchNorm, ReLU."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(before, after, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(after)

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.norm(self.convolution(x)))


class Pooled(nn.Module):
    """The mean of each channel, and a linear layer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x.mean((2, 3)))


def gpt(width: int, blocks: int) -> Constructors:
    """Return an embedding, blocks, and a head."""
    return [
        partial(nn.Embedding, VOCABULARY, width),
        *(partial(Block, width) for _ in range(blocks)),
        partial(nn.Linear, width, VOCABULARY),
    ]


def mlp(width: int, layers: int) -> Constructors:
    """Return linear layers, each with its activation."""
    middle = [lambda: nn.Sequential(nn.Linear(width, width), nn.GELU())] * layers
    return [lambda: nn.Linear(64, width), *middle, lambda: nn.Linear(width, 10)]


def cnn(width: int, layers: int) -> Constructors:
    """Return convolutions of the same size, with BatchNorm."""
    return [
        partial(Normed, 3, width),
        *(partial(Normed, width, width) for _ in range(layers)),
        partial(Pooled, width),
    ]


def _classes(*shape: int) -> Callable[[int], tuple[Tensor, Tensor]]:
    def batch(est: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(est)
        return (
            torch.randn(*shape, generator=generator),
            torch.randint(10, shape[:1], generator=generator),
        )

    return batch


def _momentum(params: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(params, lr=0.01, momentum=0.9)


@dataclass(frozen=True)
class Model:
    """units, small: constructors, and those of a model of the same kind that costs next to nothing."""

    units: Callable[[], Constructors]
    small: Callable[[], Constructors]
    batch: Callable[[int], tuple[Tensor, Tensor]]
    loss: Callable[[Any, Any], Tensor]


MODELS = {
    "GPT of width 192": Model(partial(gpt, 192, 8), partial(gpt, 16, 2), partial(tokens, 8), token_loss),
    "GPT of width 384": Model(partial(gpt, 384, 8), partial(gpt, 16, 2), partial(tokens, 8), token_loss),
    "MLP of width 1024": Model(
        partial(mlp, 1024, 6), partial(mlp, 16, 2), _classes(512, 64), functional.cross_entropy
    ),
    "CNN of width 32": Model(
        partial(cnn, 32, 8), partial(cnn, 4, 2), _classes(16, 3, 32, 32), functional.cross_entropy
    ),
}


@dataclass(frozen=True)
class Case:
    """A model on two workers. replicas: of its only stage; else two equal stages, or the planner's plan."""

    model: str
    memory: Memory = "plain"
    replicas: int = 1
    micro_batches: int = 8
    made: Plan | None = None

    def __str__(self) -> str:
        if self.made is not None:
            return f"{self.model} in three workers of half the memory that it takes in one"
        shape = "2 stages" if self.replicas == 1 else f"{self.replicas} replicas"
        return f"{self.model}, {shape}, {self.memory}, {self.micro_batches} micro-batches"

    @property
    def workers(self) -> int:
        """Processes in which it runs."""
        return 2 if self.made is None else len(self.made.devices)

    def plan(self, units: int) -> Plan:
        """Return the plan for so many units."""
        if self.made is not None:
            stages, count = self.made.stages, len(self.made.stages)
            if units == stages[-1].end_unit:
                return self.made
            bounds = [units * place // count for place in range(count + 1)]
            pairs = zip(stages, pairwise(bounds), strict=True)
            return Plan(tuple(Stage(*ends, stage.devices, stage.memory) for stage, ends in pairs))
        if self.replicas > 1:
            return Plan((Stage(0, units, tuple(range(self.replicas)), self.memory),))
        half = units // 2
        return Plan((Stage(0, half, (0,), self.memory), Stage(half, units, (1,), self.memory)))


CASES = (
    *(Case(model) for model in MODELS),
    Case("GPT of width 192", memory="checkpoint"),
    Case("CNN of width 32", memory="checkpoint"),
    Case("GPT of width 192", replicas=2),
    Case("MLP of width 1024", replicas=2),
)


HALVED = Case("GPT of width 192")


def planned(case: Case) -> list[Need]:
    """Return the planner's figures for each worker, from a profile taken here."""
    profile = _profile(case)
    by_device = _needs(case, profile, case.plan(len(profile.units)))
    return [by_device[me] for me in range(case.workers)]


def _profile(case: Case) -> Profile:
    model = MODELS[case.model]
    units = Units.build(model.units())
    optimizer = UnitOptimizer.build(units, _momentum)
    return profile_units(units, [model.batch(0)], model.loss, steps=1, optimizer=optimizer).profile


def _needs(case: Case, profile: Profile, plan: Plan) -> dict[int, Need]:
    cluster = Cluster.uniform([Device(str(me)) for me in plan.devices], 1e9)
    needs = MemoryNeeds(Costs(profile, cluster, case.micro_batches))
    return dict(needs.by_device(plan, blocks(plan, case.micro_batches)))


def halved(case: Case) -> tuple[Case, int]:
    """Return the case planned for three workers with half the memory that one needs; that limit, in bytes."""
    profile = _profile(case)
    alone = _needs(case, profile, Plan((Stage(0, len(profile.units), (0,)),)))[0].total
    limit = int(alone) // 2
    devices = [Device(str(me), memory_bytes=limit) for me in range(3)]
    answer = make_plan(profile, Cluster.uniform(devices, 1e9), case.micro_batches)
    return replace(case, made=answer.plan), limit


def _worker(me: int, address: str, case: Case) -> dict[str, Any]:
    """Return the peak growth of worker `me`'s memory, in bytes, from before it has units."""
    model = MODELS[case.model]

    def built(units: Constructors, prefix: str) -> Worker:
        plan = case.plan(len(units))
        worker = Worker(
            me, address, case.workers, units, plan, case.micro_batches, model.batch, model.loss, prefix=prefix
        )
        worker.set_order(blocks(plan, case.micro_batches))
        return worker

    small = built(model.small(), "small")  # allocates what a process needs for its first step of any model
    for _ in range(2):
        small.step()
    small.close()
    del small
    gc.collect()
    before = _status("VmRSS")
    worker = built(model.units(), "real")
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    for _ in range(STEPS):
        worker.step()
    peak = _status("VmHWM")
    worker.close()
    return {"peak": peak - before}


def _status(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise KeyError(field)


def real(case: Case) -> list[int]:
    """Return the peak memory of each worker, in bytes."""
    os.environ["MALLOC_MMAP_THRESHOLD_"] = "65536"
    try:
        return [found["peak"] for found in together(case.workers, _worker, case)]
    finally:
        del os.environ["MALLOC_MMAP_THRESHOLD_"]


def measure(options: argparse.Namespace, report: Report) -> None:
    """Compare all cases."""
    cases: Sequence[Case] = [case for case in CASES if options.only in str(case)]
    for case in cases[:3] if options.quick else cases:
        print(case, file=sys.stderr)
        needs, peaks = planned(case), real(case)
        for me, (need, peak) in enumerate(zip(needs, peaks, strict=True)):
            parts = ", ".join(f"{name} {size / 2**20:.1f}" for name, size in need._asdict().items() if size)
            report.rows.append(
                Row(
                    f"{case}, worker {me}",
                    Series([peak / 2**20], "MiB"),
                    Series([need.total / 2**20], "MiB"),
                    "planned",
                    target=TARGET,
                    note=f"planned MiB: {parts}",
                )
            )
    if options.only in HALVED.model:
        case, limit = halved(HALVED)
        assert case.made is not None
        stages = ", ".join(f"{s.end_unit - s.first_unit} units {s.memory}" for s in case.made.stages)
        for me, peak in enumerate(real(case)):
            ours, peer = Series([peak / 2**20], "MiB"), Series([limit / 2**20], "MiB")
            report.rows.append(
                Row(f"{case}, worker {me}", ours, peer, "the limit", target=1.0, note=f"stages: {stages}")
            )


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add what this benchmark alone takes."""
    parser.add_argument("--only", default="", metavar="TEXT", help="cases with this in their names")


if __name__ == "__main__":
    run_benchmark("pipeline_memory", __doc__ or "", measure, add_options)
