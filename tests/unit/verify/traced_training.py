"""A tiny data-parallel training in one process that writes the traces of one process of a run.

It stands for either side: a stock rank owns one virtual rank, an elastic worker several. All ranks'
gradients are computed everywhere, so that no process group is needed; only the owned ones are traced.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import nn

from elastane.rng import Generators, seed_all
from elastane.runtime.step_trace import StepTrace
from elastane_cli.verify.compare import RunTrace, read_traces

RANKS, STEPS = 2, 4


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 3)
        self.norm = nn.BatchNorm1d(3)
        self.drop = nn.Dropout(0.25)
        self.last = nn.Linear(3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.drop(self.norm(self.first(x))))


@dataclass
class Twist:
    """What goes wrong, and where: each is called with (step, rank) or (step), and changes something."""

    batch: Callable[[int, int, torch.Tensor], torch.Tensor] = lambda step, rank, batch: batch
    loss: Callable[[int, int, torch.Tensor], torch.Tensor] = lambda step, rank, loss: loss
    logged: Callable[[int, int, float], float] = lambda step, rank, value: value
    before: Callable[[int, int], None] = lambda step, rank: None
    after: Callable[[int, int], None] = lambda step, rank: None
    applied: Callable[[int, Net], None] = lambda step, net: None
    averaged: Callable[[int, nn.Linear], None] = lambda step, average: None
    built: Callable[[Net], None] = lambda net: None
    roots: dict[str, object] = field(default_factory=dict)


def write_trace(folder: Path, name: str, owned: Sequence[int], twist: Twist | None = None) -> None:
    """Train and write the trace of a process that owns the ranks `owned`."""
    twist = twist or Twist()
    seed_all(5)
    net = Net()
    twist.built(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    generators = Generators()
    average = copy.deepcopy(net.last)
    trace = StepTrace(folder, name, net, [optimizer], extras={"average": average}, roots=twist.roots)
    states = []
    for rank in range(RANKS):
        seed_all(100 + rank)
        states.append(generators.capture())
    for step in range(STEPS):
        sums = [torch.zeros_like(p) for p in net.parameters()]
        base = kept = [buffer.clone() for buffer in net.buffers()]
        for rank in range(RANKS):
            _set_buffers(net, base)  # as DDP: every rank's forward starts from rank 0's
            generators.restore(states[rank])
            traced = rank in owned
            batch = torch.randn(6, 4)
            if traced:
                twist.before(step, rank)
                batch = twist.batch(step, rank, batch)
                trace.mini_batch_began(step, rank, 0, (batch, {"index": rank}), generators.capture())
            net.zero_grad()
            loss = net(batch).square().mean()
            if traced:
                loss = twist.loss(step, rank, loss)
                loss.backward()
                gradients = [p.grad for p in net.parameters()]
                twist.after(step, rank)
                value = twist.logged(step, rank, loss.item())
                trace.mini_batch_ended(step, rank, 0, generators.capture(), {"loss": value})
            else:
                gradients = list(torch.autograd.grad(loss, list(net.parameters())))
            for total, gradient in zip(sums, gradients, strict=True):
                total += gradient / RANKS
            states[rank] = generators.capture()
            if rank == 0:
                kept = [buffer.clone() for buffer in net.buffers()]
        _set_buffers(net, kept)
        for p, total in zip(net.parameters(), sums, strict=True):
            p.grad = total
        optimizer.step()
        twist.applied(step, net)
        twist.averaged(step, average)
        trace.step_applied(step)
    trace.close()


def _set_buffers(net: Net, values: Sequence[torch.Tensor]) -> None:
    for buffer, value in zip(net.buffers(), values, strict=True):
        buffer.copy_(value)


def reference(folder: Path, **twists: Twist) -> RunTrace:
    """The traces of one process for each rank."""
    for rank in range(RANKS):
        write_trace(folder, f"ddp-{rank}", [rank], twists.get(f"rank{rank}"))
    return read_traces(folder)


def elastic(folder: Path, twist: Twist | None = None) -> RunTrace:
    """The trace of one worker that hosts all ranks."""
    write_trace(folder, "elastic-w0", range(RANKS), twist)
    return read_traces(folder)
