"""Processes that run pipelines, for benchmarks and tests: the executor over its ring, without a master.

`together` starts a process for each worker and returns what each found; `Worker` is a worker in one of them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor

from elastane.collective.rendezvous import RendezvousStore
from elastane.collective.transport import RingTransport
from elastane.pipeline.executor import MicroBatch, StepExecutor
from elastane.pipeline.ring_links import RingLinks
from elastane.pipeline.units import Units
from elastane.rng import Generators, seed_all
from elastane_planner.plan import Plan
from elastane_planner.schedule import Block

MEETING_SECONDS = 120.0

Order = Mapping[int, tuple[Block, ...]]


def together(count: int, run: Callable[..., dict[str, Any]], *arguments: Any) -> list[dict[str, Any]]:
    """Call `run(me, address, *arguments)` in `count` processes; return their results.

    address: of the store through which their rings are formed. The processes also form torch's default
    group, over gloo. Raises RuntimeError if a process fails.
    """
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    context = mp.get_context("spawn")
    results = context.SimpleQueue()
    processes = [
        context.Process(target=_process, args=(me, count, store.port, run, arguments, results))
        for me in range(count)
    ]
    for process in processes:
        process.start()
    found: dict[int, dict[str, Any]] = {}
    while len(found) < count:
        if results.empty():
            if any(process.exitcode for process in processes):
                break
            threading.Event().wait(0.01)
            continue
        me, value = results.get()
        found[me] = value
    if len(found) < count:
        for process in processes:
            process.kill()
    for process in processes:
        process.join()
    if len(found) < count:
        raise RuntimeError(f"workers ended with {[process.exitcode for process in processes]}")
    return [found[me] for me in range(count)]


def _process(
    me: int, count: int, port: int, run: Callable[..., dict[str, Any]], arguments: Sequence[Any], results: Any
) -> None:
    torch.set_num_threads(1)
    meeting = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=MEETING_SECONDS))
    dist.init_process_group("gloo", store=dist.PrefixStore("torch", meeting), rank=me, world_size=count)
    own = RendezvousStore("127.0.0.1") if me == 0 else None
    if own is not None:
        meeting.set("address", own.address)
    found = run(me, meeting.get("address").decode(), *arguments)
    dist.barrier()
    dist.destroy_process_group()
    results.put((me, found))


class Worker:
    """Worker `me` of a pipeline. units: modules or constructors; batch: of an EST, (input, target).

    ESTs are divided into even ranges by home, as in a job. prefix: of the ring's keys in the store; unique.
    """

    def __init__(
        self,
        me: int,
        address: str,
        size: int,
        units: Sequence[Any],
        plan: Plan,
        micro_batches: int,
        batch: Callable[[int], tuple[Any, Any]],
        loss_fn: Callable[[Any, Any], Tensor],
        *,
        prefix: str = "ring",
    ) -> None:
        self._me, self._plan = me, plan
        self._units = Units.build(list(units))
        held = [unit for unit in range(self._units.count) if me in plan.holders(unit)]
        self._units.hold(held)
        for unit in held:
            self._units.initialise(unit)
        self._units.started()
        self._generators = Generators()
        self._ranges = tuple(
            (micro_batches * member // size, micro_batches * (member + 1) // size) for member in range(size)
        )
        seed_all(1)
        parts = self._generators.capture()
        self._batches = {est: MicroBatch(*batch(est), parts) for est in range(*self._ranges[me])}
        params = [p for unit in held for p in self._units.module(unit).parameters()]
        self._optimizer = torch.optim.SGD(params, lr=0.01, momentum=0.9) if params else None
        self.executor = StepExecutor(self._units, loss_fn, micro_batches, self._generators)
        self._transport = RingTransport.form(
            store_address=address, prefix=prefix, rank=me, size=size, cancel=threading.Event()
        )
        self._links = RingLinks(self._transport)
        self._step = self._generation = 0

    def set_order(self, order: Order | None = None) -> None:
        """Run the blocks in this order from now on; None: in the planner's."""
        self._generation += 1
        own = None if order is None else dict(order)
        self.executor.set_ring(
            self._plan, self._me, self._ranges, self._links, self._generation, None, order=own
        )

    def step(self) -> float:
        """Train a step; returns the mean loss."""
        executor = self.executor
        executor.begin_step(self._step)
        executor.run_wave(0, self._batches, last=True)
        executor.sum_gradients()
        if self._optimizer is not None:
            self._optimizer.step()
        executor.end_step(True)
        self._step += 1
        return float(sum(executor.losses)) / len(executor.losses)

    def close(self) -> None:
        """Leave the ring."""
        self.executor.close()
        self._links.settle()
        self._links.close()
        self._transport.close()
