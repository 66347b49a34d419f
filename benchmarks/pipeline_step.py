"""A step of a pipeline of two stages in two processes, beside torch's schedules and one process.

The model is a GPT with equal halves, M micro-batches a step, one thread a process. In the same two processes
run by turns: Elastane's executor over its ring, in the order of the peer's schedule; torch's ScheduleGPipe
and Schedule1F1B over gloo; and one process alone that accumulates over all M. Elastane keeps gradients by
micro-batch and adds them in gloo's order, so that the result is stock DDP's of M ranks; the peers add them up
as they come. A time is that of the slowest process, with `optimizer.step()`.

The memory row is the growth of a worker's resident memory, beside the planner's figure for its stage.
"""

from __future__ import annotations

import argparse
import gc
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from harness import Report, Row, Series, run_benchmark
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.nn import functional

from elastane.collective.rendezvous import RendezvousStore
from elastane.collective.transport import RingTransport
from elastane.pipeline.executor import MicroBatch, StepExecutor
from elastane.pipeline.ring_links import RingLinks
from elastane.pipeline.units import Units
from elastane.rng import Generators, seed_all
from elastane_planner.cluster import Cluster, Device
from elastane_planner.costs import Costs
from elastane_planner.memory import MemoryNeeds
from elastane_planner.plan import Plan, Stage
from elastane_planner.profile import Profile, UnitProfile
from elastane_planner.schedule import gpipe, one_f_one_b

VOCABULARY, LENGTH = 64, 64
#: Torch's schedules, by the order of blocks.
PEERS = {"GPipe": "ScheduleGPipe", "1F1B": "Schedule1F1B"}
TARGET_PEER, TARGET_SPEEDUP, TARGET_MEMORY = 1.05, 1.5, 1.10


class Block(nn.Module):
    """A transformer block without dropout: the peers' generators are not the ESTs'."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.first(x)).view(batch, length, 3, 4, -1).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(functional.gelu(self.up(self.second(x))))


@dataclass(frozen=True)
class Settings:
    """Of one run. size: samples of a micro-batch."""

    width: int
    blocks: int
    size: int
    micro_batches: int
    repeats: int

    @property
    def plan(self) -> Plan:
        """Two stages of as many blocks."""
        half, count = self.blocks // 2 + 1, self.blocks + 2
        return Plan((Stage(0, half, (0,)), Stage(half, count, (1,))))

    def constructors(self) -> list[Callable[[], nn.Module]]:
        """Return what builds the units: an embedding, an even number of blocks, and a head."""
        return [
            partial(nn.Embedding, VOCABULARY, self.width),
            *(partial(Block, self.width) for _ in range(self.blocks)),
            partial(nn.Linear, self.width, VOCABULARY),
        ]

    def model(self) -> list[nn.Module]:
        torch.manual_seed(1)
        return [build() for build in self.constructors()]

    def data(self) -> tuple[Tensor, Tensor]:
        """Return tokens and their successors, of all micro-batches."""
        text = torch.randint(
            VOCABULARY,
            (self.micro_batches * self.size, LENGTH + 1),
            generator=torch.Generator().manual_seed(5),
        )
        return text[:, :-1].contiguous(), text[:, 1:].contiguous()


def loss_fn(output: Tensor, target: Tensor) -> Tensor:
    return functional.cross_entropy(output.flatten(0, 1), target.flatten())


def options(parser: argparse.ArgumentParser) -> None:
    """Add options that select other sizes than the table's."""
    parser.add_argument("--micro-batches", type=int, default=8)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--blocks", type=int, default=8)
    parser.add_argument("--size", type=int, default=8, help=f"samples of a micro-batch, {LENGTH} tokens each")
    parser.add_argument("--repeats", type=int, default=0)


def measure(args: argparse.Namespace, report: Report) -> None:
    """Run all in the same two processes, and take the slower one's times."""
    repeats = args.repeats or (5 if args.quick else 20)
    settings = Settings(args.width, args.blocks, args.size, args.micro_batches, repeats)
    needs = planned(settings)
    # Without it a fifth of what is counted is glibc's free memory between what is in use.
    os.environ["MALLOC_MMAP_THRESHOLD_"] = "65536"
    memory = _in_two_processes(_memory, settings)
    del os.environ["MALLOC_MMAP_THRESHOLD_"]
    found = _in_two_processes(_times, settings)
    for name, peer in PEERS.items():
        report.rows.append(
            Row(
                f"step, order of {name}",
                Series(_slower(found, f"ours {name}"), "ms"),
                Series(_slower(found, peer), "ms"),
                peer,
                target=TARGET_PEER,
            )
        )
    ours, alone = _slower(found, "ours 1F1B"), [seconds * 1000 for seconds in found[0]["alone"]]
    report.rows.append(
        Row(
            "steps a second of two workers",
            Series([1000 / value for value in ours], "steps/s"),
            Series([1000 / value for value in alone[-len(ours) :]], "steps/s"),
            "one process that accumulates",
            better="higher",
            target=TARGET_SPEEDUP,
        )
    )
    for me in range(2):
        report.rows.append(
            Row(
                f"memory of worker {me}",
                Series([memory[me]["peak"] / 2**20], "MiB"),
                Series([needs[me] / 2**20], "MiB"),
                "planned",
                target=TARGET_MEMORY,
            )
        )
    difference = abs(found[1]["loss ours GPipe"] - found[1]["loss ScheduleGPipe"])
    report.facts["first losses of Elastane and ScheduleGPipe differ by"] = f"{difference:.1e}"


def planned(settings: Settings) -> list[int]:
    """Return the planner's bytes of each worker, in the order of 1F1B, from a profile taken here."""
    units = []
    value: Any = settings.data()[0][: settings.size]
    modules = settings.model()
    weights = {p.untyped_storage().data_ptr() for unit in modules for p in unit.parameters()}
    for number, unit in enumerate(modules):
        kept: dict[int, int] = {}

        def note(tensor: Tensor, kept: dict[int, int] = kept) -> Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in weights:
                kept[storage.data_ptr()] = storage.nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            output = unit(value)
        parameter_bytes = sum(p.nbytes for p in unit.parameters())
        units.append(
            UnitProfile(
                str(number),
                parameter_bytes=parameter_bytes,
                optimizer_bytes=parameter_bytes,
                boundary_bytes=output.nbytes,
                activation_bytes=sum(kept.values()),
            )
        )
        value = output.detach().requires_grad_()
    cluster = Cluster((Device("0"), Device("1")), ((0.0, 1e9), (1e9, 0.0)))
    plan = settings.plan
    needs = MemoryNeeds(Costs(Profile(tuple(units)), cluster, settings.micro_batches))
    by_device = needs.by_device(plan, one_f_one_b(plan, settings.micro_batches))
    return [by_device[me].total for me in range(2)]


def _slower(found: list[dict[str, Any]], key: str) -> list[float]:
    return [max(pair) * 1000 for pair in zip(found[0][key], found[1][key], strict=True)]


def _in_two_processes(run: Callable[..., dict[str, Any]], settings: Settings) -> list[dict[str, Any]]:
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    context = mp.get_context("spawn")
    results = context.SimpleQueue()
    processes = [
        context.Process(target=_process, args=(me, store.port, run, settings, results)) for me in range(2)
    ]
    for process in processes:
        process.start()
    found = dict(results.get() for _ in processes)
    for process in processes:
        process.join()
    return [found[0], found[1]]


def _process(
    me: int, port: int, run: Callable[..., dict[str, Any]], settings: Settings, results: Any
) -> None:
    torch.set_num_threads(1)
    meeting = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=120))
    dist.init_process_group("gloo", store=dist.PrefixStore("torch", meeting), rank=me, world_size=2)
    own = RendezvousStore("127.0.0.1") if me == 0 else None
    if own is not None:
        meeting.set("address", own.address)
    results.put((me, run(me, meeting.get("address").decode(), settings)))
    dist.barrier()
    dist.destroy_process_group()


def _memory(me: int, address: str, settings: Settings) -> dict[str, Any]:
    """Return by how much a worker's resident memory grows at most, from before it has units."""
    small = Settings(16, 2, 2, 2, 1)  # what a process needs for its first step of any model
    warm = Alone(small)
    warm.step()
    first = Ours(me, address, small, prefix="small")
    first.set_order("1F1B")
    first.step()
    first.close()
    del warm, first
    gc.collect()
    before = _status("VmRSS")
    ours = Ours(me, address, settings, constructed=True)
    ours.set_order("1F1B")
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    for _ in range(4):
        ours.step()
    peak = _status("VmHWM")
    ours.close()
    return {"peak": peak - before}


def _status(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise KeyError(field)


def _times(me: int, address: str, settings: Settings) -> dict[str, Any]:
    """Return seconds of steps, and the first losses, by what was run."""
    found: dict[str, Any] = {}
    ours, alone = Ours(me, address, settings), Alone(settings)
    for name, peer in PEERS.items():
        ours.set_order(name)
        theirs = Torch(me, settings, name)
        for number in range(settings.repeats + 2):
            for what, step in ((f"ours {name}", ours.step), (peer, theirs.step), ("alone", alone.step)):
                dist.barrier()
                if what == "alone" and me == 1:
                    continue
                began = time.perf_counter()
                loss = step()
                seconds = time.perf_counter() - began
                if number == 0:
                    found[f"loss {what}"] = loss
                if number >= 2:
                    found.setdefault(what, []).append(seconds)
            dist.barrier()
    ours.close()
    return found


class Ours:
    """Elastane's executor in one of the two processes. constructed: the units are given as constructors."""

    def __init__(
        self, me: int, address: str, settings: Settings, *, constructed: bool = False, prefix: str = "ours"
    ) -> None:
        self._me, self._settings = me, settings
        given: list[Any] = settings.constructors() if constructed else settings.model()
        self._units = Units.build(given)
        stage = settings.plan.stages[me]
        held = range(stage.first_unit, stage.end_unit)
        self._units.hold(held)
        for unit in held:
            self._units.initialise(unit)
        self._units.started()
        self._generators = Generators()
        half = settings.micro_batches // 2
        self._ranges = ((0, half), (half, settings.micro_batches))
        inputs, targets = settings.data()
        seed_all(1)
        parts = self._generators.capture()
        self._batches = {
            est: MicroBatch(inputs.chunk(settings.micro_batches)[est].clone(),
                            targets.chunk(settings.micro_batches)[est].clone(), parts)
            for est in range(*self._ranges[me])
        }  # fmt: skip
        params = [p for unit in held for p in self._units.module(unit).parameters()]
        self._optimizer = torch.optim.SGD(params, lr=0.01, momentum=0.9)
        self._executor = StepExecutor(self._units, loss_fn, settings.micro_batches, self._generators)
        self._transport = RingTransport.form(
            store_address=address, prefix=prefix, rank=me, size=2, cancel=threading.Event()
        )
        self._links = RingLinks(self._transport)
        self._step = self._generation = 0

    def set_order(self, name: str) -> None:
        """Run the blocks in the order of this schedule from now on."""
        plan, count = self._settings.plan, self._settings.micro_batches
        order = (gpipe if name == "GPipe" else one_f_one_b)(plan, count)
        self._generation += 1
        self._executor.set_ring(
            plan, self._me, self._ranges, self._links, self._generation, None, order=order
        )

    def step(self) -> float:
        """Train a step; returns the mean loss."""
        executor = self._executor
        executor.begin_step(self._step)
        executor.run_wave(0, self._batches, last=True)
        executor.sum_gradients()
        self._optimizer.step()
        executor.end_step(True)
        self._step += 1
        return float(sum(executor.losses)) / len(executor.losses)

    def close(self) -> None:
        self._executor.close()
        self._links.settle()
        self._links.close()
        self._transport.close()


class Torch:
    """One of torch's schedules in one of the two processes."""

    def __init__(self, me: int, settings: Settings, name: str) -> None:
        units = settings.model()
        stage = settings.plan.stages[me]
        module = nn.Sequential(*units[stage.first_unit : stage.end_unit])
        inputs, targets = settings.data()
        width, size = settings.width, settings.size
        hidden = torch.zeros(size, LENGTH, width, requires_grad=True)
        tokens = torch.zeros(size, LENGTH, dtype=torch.int64)
        arguments = (tokens, hidden) if me == 0 else (hidden, torch.zeros(size, LENGTH, VOCABULARY))
        own = PipelineStage(
            module, me, 2, torch.device("cpu"), input_args=arguments[0], output_args=arguments[1]
        )
        kind = ScheduleGPipe if name == "GPipe" else Schedule1F1B
        self._schedule = kind(own, settings.micro_batches, loss_fn=loss_fn)
        self._optimizer = torch.optim.SGD(module.parameters(), lr=0.01, momentum=0.9)
        self._me, self._inputs, self._targets = me, inputs, targets

    def step(self) -> float:
        """Train a step; returns the mean loss, on the last stage."""
        self._optimizer.zero_grad()
        losses: list[Tensor] = []
        if self._me == 0:
            self._schedule.step(self._inputs)
        else:
            self._schedule.step(target=self._targets, losses=losses)
        self._optimizer.step()
        return float(sum(loss.item() for loss in losses)) / max(1, len(losses))


class Alone:
    """The whole model in one process, that accumulates over the micro-batches."""

    def __init__(self, settings: Settings) -> None:
        self._model = nn.Sequential(*settings.model())
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=0.01, momentum=0.9)
        inputs, targets = settings.data()
        count = settings.micro_batches
        self._batches = list(zip(inputs.chunk(count), targets.chunk(count), strict=True))

    def step(self) -> float:
        """Train a step; returns the mean loss."""
        self._optimizer.zero_grad()
        total = 0.0
        for value, target in self._batches:
            loss = loss_fn(self._model(value), target)
            (loss / len(self._batches)).backward()
            total += loss.item()
        self._optimizer.step()
        return total / len(self._batches)


if __name__ == "__main__":
    run_benchmark("pipeline_step", __doc__, measure, options)
