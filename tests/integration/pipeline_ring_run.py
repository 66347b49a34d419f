"""Trains pipelines over real rings, as a worker of `test_pipeline_rings.py`.

The test compares the steps with the same steps in one process.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
from torch._C._distributed_c10d import TCPStore

from elastane.collective.rendezvous import RendezvousStore
from elastane.collective.ring_errors import RingError
from elastane.collective.transport import RingTransport
from elastane.pipeline.executor import MicroBatch, StepExecutor
from elastane.pipeline.frames import Frame, FrameKey
from elastane.pipeline.ring_links import RingLinks
from elastane.pipeline.units import Units
from elastane.rng import Generators, seed_all
from elastane_planner.plan import Plan
from parity.pipeline_models import MODELS, PipelineModel
from parity.pipeline_runs import digest


@dataclass(frozen=True)
class RingCase:
    """Settings of a test's training.

    aborts: (step, member): the member ends the ring in that step, and all repeat the step in a new ring.
    """

    model: str
    plan: Plan
    ranges: tuple[tuple[int, int], ...]
    aborts: tuple[int, int] | None = None


class _Links(RingLinks):
    """Links that abort their ring at the second wait of a step, on request."""

    ends_in = 0

    def receive(self, key: FrameKey, peer: int) -> Frame:
        self.ends_in -= 1
        if self.ends_in == 0:
            self._transport.abort()
        return super().receive(key, peer)


def worker(me: int, port: int, cases: Sequence[RingCase], folder: Path) -> None:
    """Train every case as member `me`, and write what it observed to a file."""
    torch.set_num_threads(1)
    meeting = TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=60))
    if me == 0:
        own = RendezvousStore("127.0.0.1")
        meeting.set("address", own.address)
    address = meeting.get("address").decode()
    seen = [_Worker(me, address, number, case).train() for number, case in enumerate(cases)]
    torch.save(seen, folder / f"{me}.pt")
    meeting.add("done", 1)
    if me == 0:
        while meeting.add("done", 0) < len(cases[0].ranges):
            threading.Event().wait(0.01)  # the store must outlive its users


class _Worker:
    def __init__(self, me: int, address: str, number: int, case: RingCase) -> None:
        self.me, self.address, self.number, self.case = me, address, number, case
        self.model: PipelineModel = MODELS[case.model]
        self.units = Units.build(list(copy.deepcopy(self.model.build())))
        held = [unit for unit in range(self.units.count) if me in case.plan.holders(unit)]
        self.units.hold(held)
        for unit in held:
            self.units.initialise(unit)
        self.held = held
        params = [p for unit in held for p in self.units.module(unit).parameters()]
        self.optimizer = self.model.optimizer(params or [torch.nn.Parameter(torch.zeros(0))])
        self.generators = Generators()
        ests = case.ranges[-1][1]
        self.executor = StepExecutor(self.units, self.model.loss, ests, self.generators)
        self.contexts = {}
        for est in range(*case.ranges[me]):
            seed_all(1000 + est)
            self.contexts[est] = self.generators.capture()
        self.generation = 0
        self.order: list[int] | None = None

    def train(self) -> dict[str, object]:
        """Train all steps; return digests of this member's state and of what it received."""
        self.form()
        seen: dict[str, object] = {"losses": []}
        for step in range(self.model.steps):
            aborts = self.case.aborts is not None and self.case.aborts[0] == step
            self.links.ends_in = 2 if self.case.aborts == (step, self.me) else 0
            try:
                self.run(step)
                assert not aborts
            except RingError as error:
                assert aborts, error
                self.executor.drop()
                self.links.close()
                self.form()
                self.run(step)
            if self.model.clip is not None:
                self.executor.clip_grad_norm_(self.model.clip)
            self.optimizer.step()
            self.executor.end_step(True)
            seen["losses"].append([digest([losses[est] for losses in self.executor.wave_losses])
                                   for est in range(self.case.ranges[-1][1])])  # fmt: skip
            if step == 0:
                self.share_order()
        for unit in self.held:
            module = self.units.module(unit)
            seen[f"unit {unit}"] = digest([*module.parameters(), *module.buffers()])
        seen["seconds"] = self.executor.unit_seconds
        self.executor.close()
        self.links.settle()
        self.links.close()
        self.transport.close()
        return seen

    def form(self) -> None:
        """Form a new generation."""
        self.generation += 1
        self.transport = RingTransport.form(
            store_address=self.address,
            prefix=f"{self.number}/{self.generation}",
            rank=self.me,
            size=len(self.case.ranges),
            cancel=threading.Event(),
        )
        self.links = _Links(self.transport)
        self.executor.set_ring(
            self.case.plan, self.me, self.case.ranges, self.links, self.generation, self.order
        )

    def run(self, step: int) -> None:
        """One step up to its sums."""
        contexts = dict(self.contexts)
        self.executor.begin_step(step)
        for micro in range(self.model.waves):
            batches = {}
            for est, parts in contexts.items():
                self.generators.restore(parts)
                value, target = self.model.batch(step, micro)
                batches[est] = MicroBatch(value, target, self.generators.capture())
            last = micro == self.model.waves - 1
            contexts = {
                est: end.parts for est, end in self.executor.run_wave(micro, batches, last=last).items()
            }
        self.executor.sum_gradients()
        self.contexts = contexts

    def share_order(self) -> None:
        """The job's state carries the ready order to all; here it is a message."""
        order = torch.zeros(sum(spec.requires_grad for spec in self.units.specs), dtype=torch.int64)
        if self.me == 0:
            assert self.executor.ready_order is not None
            order.copy_(torch.tensor(self.executor.ready_order))
            for peer in range(1, len(self.case.ranges)):
                self.transport.send(order, peer, 77).wait()
        else:
            self.transport.recv(order, 0, 77).wait()
        self.order = order.tolist()
        self.executor.set_layout(self.order)
