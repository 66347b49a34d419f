"""The same few training steps under stock DistributedDataParallel and with `Reducer` on any ring.

Run by `test_collective_reducer.py` in spawned processes; every process leaves what it saw in a file.
"""

from __future__ import annotations

import threading
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import TCPStore
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from elastane.collective.order import Ranges
from elastane.collective.reducer import Reducer
from elastane.collective.rendezvous import RendezvousStore
from elastane.collective.ring_errors import RingAborted
from elastane.collective.transport import RingTransport

STEPS = 6
WIDTH = 640
"""Of the hidden layer, whose weights are larger than DDP's first bucket of 1 MiB."""


@dataclass(frozen=True)
class Variant:
    """One way to write the training loop, and DDP's options."""

    name: str
    adam: bool = True
    clip: bool = True
    set_to_none: bool = True
    zero_at_end: bool = False
    channels_last: bool = False
    bfloat16: bool = False
    accumulation: int = 1
    #: What the model does besides: a branch that some ranks take, a layer nobody uses, reentrant checkpoints.
    branch: bool = False
    checkpoint: bool = False
    ddp: dict[str, Any] = field(default_factory=dict)


VARIANTS = [
    Variant("plain"),
    Variant(
        "strided", adam=False, clip=False, set_to_none=False, channels_last=True, ddp={"bucket_cap_mb": 0.2}
    ),
    Variant("view", set_to_none=False, ddp={"gradient_as_bucket_view": True}),
    Variant("view_none", adam=False, clip=False, ddp={"gradient_as_bucket_view": True}),
    Variant("accumulate", accumulation=3, zero_at_end=True),
    Variant(
        "accumulate_view",
        adam=False,
        accumulation=3,
        set_to_none=False,
        zero_at_end=True,
        ddp={"gradient_as_bucket_view": True, "bucket_cap_mb": 0.2},
    ),
    Variant("unused", branch=True, ddp={"find_unused_parameters": True}),
    Variant(
        "unused_view",
        branch=True,
        adam=False,
        set_to_none=False,
        ddp={"find_unused_parameters": True, "gradient_as_bucket_view": True, "bucket_cap_mb": 0.2},
    ),
    Variant("unused_accumulate", branch=True, accumulation=2, ddp={"find_unused_parameters": True}),
    Variant("static", checkpoint=True, ddp={"static_graph": True}),
    Variant("reentrant", checkpoint=True, set_to_none=False),
    Variant("bfloat16", bfloat16=True, adam=False),
]


class Net(nn.Module):
    """Convolution, BatchNorm, a linear layer that outgrows the first bucket, and a second dtype."""

    def __init__(self, variant: Variant) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.hidden = nn.Linear(8 * 8 * 8, WIDTH)
        self.out = nn.Linear(WIDTH, 5)
        if variant.branch:
            self.extra = nn.Linear(WIDTH, WIDTH)
            self.never = nn.Linear(3, 3)
        self.gain = nn.Parameter(torch.ones(5, dtype=torch.float64))
        self.checkpoint = variant.checkpoint

    def forward(self, x: torch.Tensor, take_branch: bool = False) -> torch.Tensor:
        x = torch.relu(self.norm(self.conv(x))).flatten(1)
        if self.checkpoint:
            x = torch.relu(checkpoint(self.hidden, x, use_reentrant=True))
        else:
            x = torch.relu(self.hidden(x))
        if take_branch:
            x = torch.relu(self.extra(x))
        x = self.out(x)
        return x.double() * self.gain if self.gain.dtype == torch.float64 else x * self.gain


def build(variant: Variant) -> tuple[nn.Module, torch.optim.Optimizer]:
    """The model as every rank builds it, and its optimizer."""
    torch.manual_seed(11)
    model = Net(variant)
    if variant.channels_last:
        model = model.to(memory_format=torch.channels_last)
    if variant.bfloat16:
        model = model.bfloat16()
    if variant.adam:
        return model, torch.optim.AdamW(model.parameters(), lr=1e-3)
    return model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=0.01)


def backward(
    model: nn.Module, optimizer: torch.optim.Optimizer, variant: Variant, step: int, rank: int, micro: int
) -> float:
    """The loop body up to the optimizer: batch of `rank` at `step`, loss, gradients."""
    generator = torch.Generator().manual_seed(step * 100 + rank + 1000 * micro)
    x = torch.randn(6, 3, 8, 8, generator=generator)
    y = torch.randint(0, 5, (6,), generator=generator)
    if variant.channels_last:
        x = x.to(memory_format=torch.channels_last)
    if variant.bfloat16:
        x = x.bfloat16()
    # The branch: nobody's in steps 0 and 3, in the others some ranks' and some mini-batches'.
    branch = variant.branch and step % 3 > 0 and (rank + step + micro) % 2 == 0
    loss = nn.functional.cross_entropy(model(x, branch), y)
    if micro == 0 and not variant.zero_at_end:
        optimizer.zero_grad(set_to_none=variant.set_to_none)
    loss.backward()
    if variant.clip and micro == variant.accumulation - 1:
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    return loss.item()


def zero_at_end(optimizer: torch.optim.Optimizer, variant: Variant) -> None:
    """After the optimizer's step, and after the turns in which it does nothing."""
    if variant.zero_at_end:
        optimizer.zero_grad(set_to_none=variant.set_to_none)


def gradients(model: nn.Module) -> list[torch.Tensor]:
    """Copies; an empty tensor stands for None."""
    return [torch.empty(0) if p.grad is None else p.grad.detach().clone() for p in model.parameters()]


def snapshot(tensors: Any) -> list[torch.Tensor]:
    """Copies to compare."""
    return [tensor.detach().clone() for tensor in tensors]


def reference(rank: int, ranks: int, port: int, folder: Path) -> None:
    """Process `rank` of stock DDP over gloo, all variants; saves what it saw of every step.

    Gradients and weights: rank 0 alone.
    """
    torch.set_num_threads(1)
    store = TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=60))
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks)
    seen: dict[str, Any] = {}
    for variant in VARIANTS:
        model, optimizer = build(variant)
        ddp = DistributedDataParallel(model, **variant.ddp)
        for step in range(STEPS):
            for micro in range(variant.accumulation):
                with ddp.no_sync() if micro < variant.accumulation - 1 else nullcontext():
                    loss = backward(ddp, optimizer, variant, step, rank, micro)
            seen[f"{variant.name} {step} loss"] = loss
            seen[f"{variant.name} {step} buffers"] = snapshot(model.buffers())
            if rank == 0:  # those of all ranks are the same
                seen[f"{variant.name} {step} grads"] = gradients(model)
            optimizer.step()
            zero_at_end(optimizer, variant)
            if rank == 0:
                seen[f"{variant.name} {step} params"] = snapshot(model.parameters())
    torch.save(seen, folder / f"reference-{rank}.pt")
    dist.destroy_process_group()


@dataclass(frozen=True)
class Phase:
    """From `step` on, the ring has these ranges; members beyond them have left."""

    step: int
    ranges: Ranges
    #: The member that aborts the ring at the end of its first backward in this phase: the step is replayed.
    aborts: int | None = None


def elastic(host: int, port: int, phases: list[Phase], folder: Path) -> None:
    """Member `host` of the rings of `phases`; saves what it saw, by EST."""
    torch.set_num_threads(1)
    meeting = TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=60))
    if host == 0:
        own = RendezvousStore("127.0.0.1")
        meeting.set("address", own.address)
    address = meeting.get("address").decode()
    seen: dict[str, Any] = {}
    for variant in VARIANTS:
        _Member(host, address, variant, phases, seen).train()
    torch.save(seen, folder / f"elastic-{host}.pt")
    meeting.add("done", 1)
    if host == 0:
        while meeting.add("done", 0) < len(phases[0].ranges):
            threading.Event().wait(0.01)  # the store must outlive its users


class _Member:
    def __init__(
        self, host: int, address: str, variant: Variant, phases: list[Phase], seen: dict[str, Any]
    ) -> None:
        self.host, self.address, self.variant, self.seen = host, address, variant, seen
        self.phases = {phase.step: phase for phase in phases}
        self.model, self.optimizer = build(variant)
        self.buffers = list(self.model.buffers())
        self.base = snapshot(self.buffers)
        names, params = zip(*self.model.named_parameters(), strict=True)
        self.reducer = Reducer(
            params,
            names,
            phases[0].ranges[-1][1],
            self.buffers,
            **variant.ddp,
        )
        self.model.register_forward_hook(self.reducer.watch_outputs)
        self.order: list[int] | None = None
        self.captured: list[torch.Tensor] | None = None
        self.generation = 0
        self.aborts = False

    def train(self) -> None:
        """All steps for which this host is a member."""
        for step in range(STEPS):
            phase = self.phases.get(step)
            if phase is not None:
                if self.host >= len(phase.ranges):
                    break
                self.form(phase)
            self.run(step)
            if phase is not None and phase.aborts is not None:
                if self.host == phase.aborts:
                    assert isinstance(self.reducer.failure, RingAborted)
                    assert all(g.isfinite().all() for g in gradients(self.model))
                zero_at_end(self.optimizer, self.variant)
                self.reducer.drop()
                self.form(phase)
                self.run(step)
            self.apply(step)
        self.reducer.close()

    def form(self, phase: Phase) -> None:
        """A new generation."""
        self.generation += 1
        self.ranges = phase.ranges
        self.transport = RingTransport.form(
            store_address=self.address,
            prefix=f"{self.variant.name}/{self.generation}",
            rank=self.host,
            size=len(phase.ranges),
            cancel=threading.Event(),
            shared_memory=(len(self.variant.name) + self.generation) % 3
            > 0,  # by turns, and both over and over
        )
        self.reducer.set_ring(self.transport, phase.ranges, self.host)
        self.aborts = phase.aborts == self.host and not self.aborts

    def run(self, step: int) -> None:
        """Each of my ESTs' turn."""
        start, end = self.ranges[self.host]
        for slot, rank in enumerate(range(start, end)):
            with torch.no_grad():
                for buffer, base in zip(self.buffers, self.base, strict=True):
                    buffer.copy_(base)
            last = rank == end - 1
            self.rank = rank
            record = step == self.reducer.order_step and rank == 0
            for micro in range(self.variant.accumulation):
                sync = micro == self.variant.accumulation - 1
                self.reducer.begin_backward(slot, last, record, first=micro == 0, sync=sync, report=self)
                loss = backward(self.model, self.optimizer, self.variant, step, rank, micro)
            if not last:
                zero_at_end(self.optimizer, self.variant)
                self.keep_buffers()
            self.seen[f"{self.variant.name} {step} loss {rank}"] = loss
            self.seen[f"{self.variant.name} {step} buffers {rank}"] = snapshot(self.buffers)

    def keep_buffers(self) -> None:
        if self.rank == 0:
            self.reducer.collectives.keep_buffers(self.buffers)

    def first_gradient(self) -> bool:
        return False

    def last_gradient(self) -> str:
        self.keep_buffers()
        self.reducer.collectives.broadcast_buffers()
        if self.aborts:
            self.transport.abort()
        return ""

    def apply(self, step: int) -> None:
        """What follows backward on the last turn."""
        assert self.reducer.failure is None
        params = list(self.model.parameters())
        self.seen[f"{self.variant.name} {step} grads"] = gradients(self.model)
        self.optimizer.step()
        zero_at_end(self.optimizer, self.variant)
        self.seen[f"{self.variant.name} {step} params"] = snapshot(params)
        self.base = snapshot(self.reducer.collectives.buffers)
        self.reducer.end_step()
        if step == self.reducer.order_step:
            # The job's state carries it to the workers that do not host EST 0; here it is the same code.
            self.order = self.share_order()
            self.reducer.set_layout(self.order)

    def share_order(self) -> list[int]:
        count = len(list(self.model.parameters()))
        order = torch.zeros(count, dtype=torch.int64)
        if self.host == 0:
            order.copy_(torch.tensor(self.reducer.ready_order))
            for peer in range(1, len(self.ranges)):
                self.transport.send(order, peer, 77).wait()
        else:
            self.transport.recv(order, 0, 77).wait()
        return [int(index) for index in order]
