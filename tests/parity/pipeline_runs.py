"""One training run of a model of the pipeline matrix: by stock DDP, or by executors in this process.

Both return a `Trace`: digests after every step of all state that must be equal.
"""

from __future__ import annotations

import copy
import ctypes
import hashlib
import random
import tempfile
from collections.abc import Callable, Generator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from elastane.pipeline.executor import MicroBatch, StepExecutor
from elastane.pipeline.frames import Frame
from elastane.pipeline.local_links import LocalHub, run_together
from elastane.pipeline.units import Units
from elastane.rng import Generators, Parts, seed_all
from elastane_planner.plan import Plan
from elastane_planner.schedule import Block
from parity.pipeline_models import MODELS, PipelineModel

ESTS = 4


def digest(tensors: Sequence[Tensor]) -> str:
    """Return the sha256 of the tensors' types, shapes and values."""
    hashed = hashlib.sha256()
    for tensor in tensors:
        whole = tensor.detach().cpu().contiguous()
        hashed.update(f"{whole.dtype}{tuple(whole.shape)}".encode())
        hashed.update(ctypes.string_at(whole.data_ptr(), whole.nbytes))
    return hashed.hexdigest()


@dataclass
class Trace:
    """Trace of a run, one line per step. generators: of each EST, at the end."""

    weights: list[str] = field(default_factory=list)
    optimizer: list[str] = field(default_factory=list)
    buffers: list[str] = field(default_factory=list)
    losses: list[list[str]] = field(default_factory=list)
    norms: list[str] = field(default_factory=list)
    generators: list[str] = field(default_factory=list)

    def differences(self, other: Trace) -> list[str]:
        """Return what differs, with the first step in which it does."""
        found = []
        for name in ("weights", "optimizer", "buffers", "losses", "norms", "generators"):
            mine, theirs = getattr(self, name), getattr(other, name)
            if len(mine) != len(theirs):
                found.append(f"{name}: {len(mine)} and {len(theirs)} lines")
            for step, (a, b) in enumerate(zip(mine, theirs, strict=False)):
                if a != b:
                    found.append(f"{name} in step {step}")
                    break
        return found


def _state(optimizer: torch.optim.Optimizer, params: Sequence[nn.Parameter]) -> list[Tensor]:
    return [
        value
        for param in params
        for _, value in sorted(optimizer.state[param].items())
        if isinstance(value, Tensor)
    ]


def _generators(parts: Parts) -> str:
    return hashlib.sha256(b"".join(parts[name] for name in sorted(parts))).hexdigest()


# ---------------------------------------------------------------------- stock


def stock(names: Sequence[str], ests: int = ESTS) -> dict[str, Trace]:
    """Train these models of `MODELS` with stock DDP, in real processes over gloo."""
    with tempfile.TemporaryDirectory() as folder:
        mp.start_processes(_rank, (ests, tuple(names), folder), ests, start_method="forkserver")
        saved = [torch.load(Path(folder, f"{rank}.pt"), weights_only=False) for rank in range(ests)]
    traces = {}
    for name in names:
        trace = traces[name] = saved[0][name][0]
        trace.losses = [[one[name][1][step] for one in saved] for step in range(MODELS[name].steps)]
        trace.generators = [one[name][2] for one in saved]
    return traces


def _rank(rank: int, ests: int, names: Sequence[str], folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=ests)
    torch.save({name: _train_rank(rank, MODELS[name]) for name in names}, Path(folder, f"{rank}.pt"))
    dist.barrier()
    dist.destroy_process_group()


def _train_rank(rank: int, job: PipelineModel) -> tuple[Trace, list[str], str]:
    """Train one rank's part; returns its trace, the digests of its losses, and of its generators."""
    ddp = DistributedDataParallel(job.build())
    params = [param for param in ddp.parameters() if param.requires_grad]
    optimizer = job.optimizer(params)
    seed_all(1000 + rank)
    trace, losses = Trace(), []
    for step in range(job.steps):
        optimizer.zero_grad()
        told = []
        for micro in range(job.waves):
            value, target = job.batch(step, micro)
            ddp.require_backward_grad_sync = micro == job.waves - 1
            with torch.autocast("cpu", torch.bfloat16, enabled=job.autocast):
                loss = job.loss(ddp(value), target)
            loss.backward()
            told.append(loss.detach())
        losses.append(digest(told))
        if job.clip is not None:
            trace.norms.append(digest([torch.nn.utils.clip_grad_norm_(params, job.clip)]))
        optimizer.step()
        trace.weights.append(digest(list(ddp.module.parameters())))
        trace.optimizer.append(digest(_state(optimizer, params)))
        trace.buffers.append(digest(list(ddp.module.buffers())))
    return trace, losses, _generators(Generators().capture())


# ---------------------------------------------------------------------- a pipeline in one process


class DiedError(Exception):
    """A worker died in a step."""


@dataclass
class Member:
    """A worker of the pipeline in this process."""

    units: Units
    executor: StepExecutor
    optimizer: Any = None
    links: Any = None


#: Units of finished jobs by model and device, for reuse: building them takes longer than a step.
_IDLE: dict[tuple[str, str], list[Units]] = {}


class LocalJob:
    """A job with all workers in this process; its plan may change between steps.

    changed: maps each frame to the one delivered. made: builds each executor (negative controls). device: of
    all workers.
    """

    def __init__(
        self,
        model: PipelineModel,
        *,
        ests: int = ESTS,
        seed: int = 0,
        changed: Callable[[Frame], Frame] = lambda frame: frame,
        made: Callable[..., StepExecutor] = StepExecutor,
        device: str = "cpu",
    ) -> None:
        self.model, self.ests, self._changed, self._made = model, ests, changed, made
        self.device = torch.device(device)
        self.trace = Trace()
        self._idle = _IDLE.setdefault((model.name, device), [])
        self._generators = Generators(self.device)
        present = self._generators.capture()
        self.contexts = []
        for est in range(ests):
            seed_all(1000 + est)
            self.contexts.append(self._generators.capture())
        self._generators.restore(present)
        self._draw = random.Random(seed)
        self.members: list[Member] = []
        self.ranges: list[tuple[int, int]] = []
        self.plan: Plan | None = None
        self.step = self.generation = 0
        self.ready_order: list[int] | None = None
        self.hub = LocalHub(changed, self.device)
        #: Number of waits after which each worker dies.
        self._lives: dict[int, int] = {}
        self._gone: Set[int] = frozenset()

    def set_plan(
        self,
        plan: Plan,
        members: int,
        order: dict[int, tuple[Block, ...]] | None = None,
        *,
        gone: Set[int] = frozenset(),
    ) -> None:
        """Form a ring of this many workers. gone: workers that have died and are replaced.

        State is handed over by unit; workers that stay keep their units and executors.
        """
        old, self._gone = self.members, gone
        values, state = self._values() if old else ({}, {})
        self._gone = frozenset()
        self.generation += 1
        self.hub, self.plan = LocalHub(self._changed, self.device), plan
        self.ranges = [(self.ests * m // members, self.ests * (m + 1) // members) for m in range(members)]
        staying = {me for me in range(min(members, len(old))) if me not in gone}
        for me, member in enumerate(old):
            if me not in staying:
                self._dismiss(member)
        self.members = [old[me] if me in staying else self._newcomer() for me in range(members)]
        for me, member in enumerate(self.members):
            units = member.units
            held = [unit for unit in range(units.count) if me in plan.holders(unit)]
            units.hold(held)
            for unit in held:
                if not old:
                    units.initialise(unit)
                    continue
                module = units.module(unit)
                tensors = [*module.parameters(), *module.buffers()]
                with torch.no_grad():
                    for tensor, value in zip(tensors, values[unit], strict=True):
                        tensor.copy_(value)
            params = [p for unit in held for p in units.module(unit).parameters() if p.requires_grad]
            member.optimizer = self.model.optimizer(params or [nn.Parameter(torch.zeros(0))])
            for unit in held if old else ():
                for param, saved in zip(units.module(unit).parameters(), state[unit], strict=True):
                    if saved is not None:
                        member.optimizer.state[param] = copy.deepcopy(saved)
            member.links = self.hub.links(me)
            member.executor.set_ring(
                plan, me, self.ranges, member.links, self.generation, self.ready_order, order=order
            )

    def _newcomer(self) -> Member:
        """Return a worker whose units hold no values; reuses units of an earlier job if possible."""
        units = self._idle.pop() if self._idle else Units.build(list(self.model.build().to(self.device)))
        return Member(
            units, self._made(units, self.model.loss, self.ests, self._generators, device=self.device)
        )

    def run(self, steps: int | None = None) -> Trace:
        """Train so many steps."""
        for _ in range(self.model.steps if steps is None else steps):
            self.train_step()
        return self.trace

    def train_step(self, *, applied: bool = True) -> None:
        """Train one step; without `applied`, run it and discard it."""
        contexts = list(self.contexts)
        for member in self.members:
            member.executor.begin_step(self.step)
        told: list[list[Tensor]] = [[] for _ in range(self.ests)]
        for micro in range(self.model.waves):
            batches: list[dict[int, MicroBatch]] = []
            for start, end in self.ranges:
                batches.append({})
                for est in range(start, end):
                    self._generators.restore(contexts[est])
                    value, target = (one.to(self.device) for one in self.model.batch(self.step, micro))
                    batches[-1][est] = MicroBatch(value, target, self._generators.capture())
            last = micro == self.model.waves - 1
            with torch.autocast(self.device.type, torch.bfloat16, enabled=self.model.autocast):
                ends = self._together(
                    lambda member, me, micro=micro, batches=batches, last=last: member.executor.wave(
                        micro, batches[me], last=last
                    )
                )
            for end in ends:
                for est, one in end.items():
                    contexts[est] = one.parts
                    told[est].append(one.loss)
        self._together(lambda member, me: member.executor.sums())
        first = self.members[0].executor
        if applied and first.ready_order is not None:
            self.ready_order = first.ready_order
        told_digests = [digest(losses) for losses in told]
        for member in self.members:
            for est in range(self.ests):
                shown = [losses[est] for losses in member.executor.wave_losses]
                assert digest(shown) == told_digests[est]
        if self.model.clip is not None:
            totals = self._together(lambda member, me: member.executor.clip(self.model.clip))
            assert len({digest([total]) for total in totals}) == 1
            if applied:
                self.trace.norms.append(digest([totals[0]]))
        for member in self.members:
            if applied:
                member.optimizer.step()
            member.executor.end_step(applied)
            if applied:
                member.executor.set_layout(self.ready_order)
        if not applied:
            return
        self.contexts = contexts
        self.step += 1
        self.trace.losses.append(told_digests)
        units = range(self.members[0].units.count)
        modules = [self._module(unit) for unit in units]
        self.trace.weights.append(digest([p for module in modules for p in module.parameters()]))
        self.trace.optimizer.append(
            digest(
                [
                    value
                    for unit, module in zip(units, modules, strict=True)
                    for value in _state(self._optimizer(unit), list(module.parameters()))
                ]
            )
        )
        self.trace.buffers.append(digest([b for module in modules for b in module.buffers()]))
        self.trace.generators = [_generators(parts) for parts in self.contexts]

    def die(self, lives: Mapping[int, int]) -> bool:
        """Run a step in which workers die, each after its number of waits, and replace them by new workers.

        The new ones get the units that others hold. Returns False if all reach the end of the step, which is
        then discarded.
        """
        self._lives = dict(lives)
        try:
            self.train_step(applied=False)
            return False
        except DiedError:
            for member in self.members:
                member.executor.drop()
        finally:
            self._lives = {}
        assert self.plan is not None
        self.set_plan(self.plan, len(self.members), gone=lives.keys())
        return True

    def digest_of(self, unit: int) -> str:
        """Return the digest of a unit's parameters and buffers; all its holders have the same."""
        module = self._module(unit)
        return digest([*module.parameters(), *module.buffers()])

    def close(self) -> None:
        """Remove the executors' hooks, and keep the units for later jobs."""
        for member in self.members:
            self._dismiss(member)
        self.members = []

    def _dismiss(self, member: Member) -> None:
        member.executor.close()
        member.units.hold(())
        self._idle.append(member.units)

    def _together(self, step: Callable[[Member, int], Any]) -> list[Any]:
        return run_together(
            [(member.links, self._mortal(me, step(member, me))) for me, member in enumerate(self.members)],
            self._draw.choice,
        )

    def _mortal(self, me: int, step: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
        """Yield the step's waits while the worker lives. Raises DiedError."""
        arrived = None
        while True:
            try:
                wait = step.send(arrived)
            except StopIteration as end:
                return end.value
            if me in self._lives:
                self._lives[me] -= 1
                if self._lives[me] < 0:
                    raise DiedError(f"worker {me}")
            arrived = yield wait

    def _holders(self, unit: int) -> tuple[int, ...]:
        assert self.plan is not None
        return tuple(member for member in self.plan.holders(unit) if member not in self._gone)

    def _optimizer(self, unit: int) -> torch.optim.Optimizer:
        """Return the optimizer of the unit's first holder."""
        optimizer: torch.optim.Optimizer = self.members[self._holders(unit)[0]].optimizer
        return optimizer

    def _module(self, unit: int) -> nn.Module:
        """Return the unit's module at its first holder; all holders have the same."""
        modules = [self.members[member].units.module(unit) for member in self._holders(unit)]
        if len(modules) > 1:
            digests = {digest([*module.parameters(), *module.buffers()]) for module in modules}
            assert len(digests) == 1, f"holders of unit {unit} differ"
        return modules[0]

    def _values(self) -> tuple[dict[int, list[Tensor]], dict[int, list[Any]]]:
        values, state = {}, {}
        for unit in range(self.members[0].units.count):
            module = self._module(unit)
            values[unit] = [t.detach().clone() for t in (*module.parameters(), *module.buffers())]
            saved = self._optimizer(unit).state
            state[unit] = [copy.deepcopy(saved.get(param)) for param in module.parameters()]
        return values, state
