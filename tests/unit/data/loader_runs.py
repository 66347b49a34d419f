"""Stock ranks beside ESTs: the same training loop, once with stock DataLoaders, once with a BatchSource."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from elastane.context import EstContext
from elastane.data import BatchInfo, BatchSource, stock_loader
from elastane.rng import Generators, Parts, seed_all

SEED = 100


class DrawingDataset(Dataset[tuple[torch.Tensor, int, Any]]):
    """Each sample draws from all three generators; every third draws differently often."""

    def __init__(self, size: int = 37, floats: int = 5) -> None:
        self.size = size
        self.floats = floats
        self.offset = 0

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int, Any]:
        for _ in range(index % 3):
            random.gauss(0.0, 1.0)
        noise = torch.randn(self.floats) + random.random() + self.offset
        return noise, index, np.random.randn(2)


def draw_in_loop() -> tuple[float, float, float]:
    """What a script draws between batches (mixup, dropout)."""
    return random.gauss(0.0, 1.0), float(np.random.beta(0.4, 0.4)), float(torch.rand(()))


@dataclass
class Record:
    """What one rank saw: per step the batch, the loop's draws and its generators after the step."""

    batches: list[Any] = field(default_factory=list)
    draws: list[Any] = field(default_factory=list)
    states: list[Parts] = field(default_factory=list)

    def assert_equals(self, other: Record, start: int = 0) -> None:
        assert len(self.batches) == len(other.batches) - start
        for step, batch in enumerate(self.batches):
            assert_same(batch, other.batches[start + step])
        assert self.draws == other.draws[start:]
        assert self.states == other.states[start:]


def assert_same(left: Any, right: Any) -> None:
    """Equal bit for bit, in structure, type and dtype."""
    assert type(left) is type(right)
    if isinstance(left, torch.Tensor):
        assert left.dtype == right.dtype and torch.equal(left, right)
    elif isinstance(left, np.ndarray):
        assert left.dtype == right.dtype and left.tobytes() == right.tobytes()
    elif isinstance(left, (list, tuple)):
        assert len(left) == len(right)
        for a, b in zip(left, right, strict=True):
            assert_same(a, b)
    elif isinstance(left, dict):
        assert_same(list(left.items()), list(right.items()))
    else:
        assert left == right


def run_stock(loader: DataLoader[Any], ranks: int, epochs: int) -> list[Record]:
    """Each rank as stock runs it, with its own seed."""
    records = []
    for rank in range(ranks):
        record = Record()
        seed_all(SEED + rank)
        own = stock_loader(loader, ranks, rank)
        for epoch in range(epochs):
            own.sampler.set_epoch(epoch)  # type: ignore[attr-defined]
            for batch in own:
                record.batches.append(batch)
                record.draws.append(draw_in_loop())
                record.states.append(Generators().capture())
        records.append(record)
    return records


def initial_contexts(ranks: int) -> dict[int, EstContext]:
    contexts = {}
    for rank in range(ranks):
        seed_all(SEED + rank)
        contexts[rank] = EstContext.initial(rank, Generators().capture())
    return contexts


def run_ests(
    source: BatchSource, contexts: dict[int, EstContext], steps: int, records: dict[int, Record]
) -> tuple[dict[int, EstContext], list[BatchInfo]]:
    """`steps` steps of the ESTs in `contexts`, from where the source is positioned."""
    generators = Generators()
    infos = []
    for _ in range(steps):
        for rank, context in contexts.items():
            generators.exchange(context.rng)
            batch, info = source.begin(rank)
            record = records.setdefault(rank, Record())
            record.batches.append(batch)
            record.draws.append(draw_in_loop())
            parts = source.finish(rank)
            states = generators.capture()
            record.states.append(states)
            infos.append(info)
            contexts = {**contexts, rank: context.next(parts, states)}
    return contexts, infos


def through_the_wire(contexts: Iterable[EstContext]) -> dict[int, EstContext]:
    return {context.virtual_rank: EstContext.from_proto(context.to_proto()) for context in contexts}
