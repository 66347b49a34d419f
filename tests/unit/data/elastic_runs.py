"""A script's data side, run as stock ranks run it and as ESTs that move between workers; both must agree.

A stock rank is a process that has run the script's setup for itself. So `Setup`s are made anew for every
rank, and for every worker that joins an elastic run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils.data import DataLoader

from elastane.context import EstContext
from elastane.data import BatchSource, current, set_epoch, stock_loader
from elastane.registry import Registry
from elastane.rng import Generators, Parts, seed_all
from unit.data.loader_runs import SEED, Record, draw_in_loop, through_the_wire


@dataclass
class Setup:
    """What a script has made before `prepare`, and what its loop does beside the batch."""

    loader: DataLoader[Any]
    registered: dict[str, Any] = field(default_factory=dict)
    steps_per_epoch: int | None = None
    draw: Callable[[], Any] = draw_in_loop
    before_epoch: Callable[[int], None] = lambda epoch: None

    def registry(self) -> Registry:
        registry = Registry()
        for name, value in self.registered.items():
            registry.register(name, value)
        registry.freeze()
        return registry


Build = Callable[[], Setup]


def _states(setup: Setup, registry: Registry) -> Parts:
    """All that the loop can see of generators and items."""
    states = {**Generators().capture(), **registry.capture()}
    if setup.loader.generator is not None:
        states["loader"] = bytes(setup.loader.generator.get_state().tolist())
    return states


def run_stock_ranks(build: Build, ranks: int, epochs: int) -> list[Record]:
    records = []
    for rank in range(ranks):
        setup, record = build(), Record()
        registry = setup.registry()
        own = stock_loader(setup.loader, ranks, rank, steps_per_epoch=setup.steps_per_epoch)
        seed_all(SEED + rank)
        with current.making_for(rank):
            for epoch in range(epochs):
                setup.before_epoch(epoch)
                set_epoch(own, epoch)
                for batch in own:
                    record.batches.append(batch)
                    record.draws.append(setup.draw())
                    record.states.append(_states(setup, registry))
        records.append(record)
    return records


class Worker:
    """One worker of an elastic run: the script's setup and a source of batches."""

    def __init__(self, build: Build, ests: int, accumulation_steps: int = 1) -> None:
        self.setup = build()
        self.registry = self.setup.registry()
        self.source = BatchSource(
            self.setup.loader,
            ests,
            registry=self.registry,
            accumulation_steps=accumulation_steps,
            steps_per_epoch=self.setup.steps_per_epoch,
        )
        self.items = self.registry.capture()
        self.source.start()

    def initial_contexts(self, ests: int) -> dict[int, EstContext]:
        contexts = {}
        for rank in range(ests):
            seed_all(SEED + rank)
            contexts[rank] = EstContext.initial(rank, {**Generators().capture(), **self.items})
        return contexts

    def run(
        self,
        contexts: Mapping[int, EstContext],
        steps: int,
        records: dict[int, Record],
        infos: list[Any],
        guests: Mapping[int, EstContext] | None = None,
    ) -> list[dict[int, EstContext]]:
        """So many steps; the contexts after each. guests: of an EST at the start of each step, run beside."""
        generators, after = Generators(), []
        present = dict(contexts)
        for _ in range(steps):
            step = next(iter(present.values())).step
            if step % self.source.steps_per_epoch == 0:
                self.setup.before_epoch(step // self.source.steps_per_epoch)
            taken = [guests[step]] if guests else []
            for context in taken:
                self.source.take_in(context, step)
            for rank, context in [*((guest.virtual_rank, guest) for guest in taken), *present.items()]:
                generators.exchange(context.rng)
                self.registry.exchange(context.parts)
                record = records.setdefault(rank, Record())
                parts: Parts = {}
                for _ in range(self.source.batches_in_step(step)):
                    batch, info = self.source.begin(rank)
                    record.batches.append(batch)
                    record.draws.append(self.setup.draw())
                    parts.update(self.source.finish(rank))
                    record.states.append(_states(self.setup, self.registry))
                    infos.append((step, rank, info))
                if context in taken:
                    self.source.forget(rank)
                else:
                    present[rank] = context.next(parts, generators.capture(), self.registry.capture())
            after.append(dict(present))
        return after

    def close(self) -> None:
        self.source.close()


def check_elastic(
    build: Build, *, ests: int = 3, epochs: int = 2, accumulation_steps: int = 1, resume_at: Any = None
) -> list[Record]:
    """A whole run, and runs that go on in the middle, give what stock ranks get."""
    stock = run_stock_ranks(build, ests, epochs)
    worker = Worker(build, ests, accumulation_steps)
    try:
        source = worker.source
        steps = epochs * source.steps_per_epoch
        stored = [worker.initial_contexts(ests)]
        source.position(stored[0], 0)
        records: dict[int, Record] = {}
        infos: list[Any] = []
        stored += worker.run(stored[0], steps, records, infos)
        for rank, record in records.items():
            record.assert_equals(stock[rank])
        _check_positions(infos, source, epochs)
        last = source.steps_per_epoch - 1
        places = resume_at or sorted({1, last // 2, last, last + 1, steps - 2} & set(range(1, steps)))
        for step in places:
            _go_on(build, worker, stored, step, stock)
    finally:
        worker.close()
    return stock


def _go_on(
    build: Build, worker: Worker, stored: list[dict[int, EstContext]], step: int, stock: list[Record]
) -> None:
    """From `step` on: the worker itself keeps the first EST, a newcomer takes the others.

    As for the sentinel, the worker runs the last EST beside its own, from its context at each step's start.
    """
    source = worker.source
    ests, epochs = source.num_ests, len(stored) // source.steps_per_epoch
    newcomer = Worker(build, ests, source.accumulation_steps)
    try:
        first = through_the_wire([stored[step][0]])
        others = through_the_wire([stored[step][rank] for rank in range(1, ests)])
        guests = {at: contexts[ests - 1] for at, contexts in enumerate(stored)}
        for member, contexts, beside in ((worker, first, guests), (newcomer, others, None)):
            epoch = step // source.steps_per_epoch
            member.setup.before_epoch(epoch)
            seed_all(3)  # whatever the process has drawn meanwhile
            member.source.position(contexts, step)
            records: dict[int, Record] = {}
            member.run(contexts, len(stored) - 1 - step, records, [], beside)
            done = epoch * source.batches_per_epoch
            done += step % source.steps_per_epoch * source.accumulation_steps
            for rank, record in records.items():
                record.assert_equals(stock[rank], start=done)
        assert epochs >= 1
    finally:
        newcomer.close()


def _check_positions(infos: list[Any], source: BatchSource, epochs: int) -> None:
    """Positions lie end to end in an epoch, and those of a task (step, EST) make one range."""
    per_epoch = source.batches_per_epoch * source.num_ests
    assert len(infos) == epochs * per_epoch
    for epoch in range(epochs):
        reached = 0
        for _, _, info in infos[epoch * per_epoch : (epoch + 1) * per_epoch]:
            assert info.start == reached and info.end > info.start
            assert not info.samples or len(info.samples) == info.end - info.start
            reached = info.end


def tensor_bytes(value: torch.Tensor) -> bytes:
    return bytes(value.numpy().tobytes())
