"""Measures the overhead of a pipeline block, on two stages whose units only sleep.

Both stages are members of a ring over loopback and run in this thread, which sends every frame before it
waits for one. So only the executor is measured: frames and their messages, generators and bookkeeping. The
units sleep for milliseconds so that caches are as cold as in real training.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from statistics import mean
from typing import Any, Final

import torch
from torch import Tensor, nn

from elastane.collective.rendezvous import RendezvousStore
from elastane.collective.transport import RingTransport
from elastane.pipeline.executor import MicroBatch, StepExecutor
from elastane.pipeline.frames import Frame, FrameKey
from elastane.pipeline.local_links import run_together
from elastane.pipeline.ring_links import RingLinks
from elastane.pipeline.units import Units
from elastane.pipeline.waits import FrameWait, Wait
from elastane.rng import Generators
from elastane_planner.plan import Plan, Stage

STEPS: Final = 12
_MICRO_BATCHES: Final = 4
_UNIT_SECONDS: Final = 0.005
_MEETING_SECONDS: Final = 60.0


class Sleeper(nn.Module):
    """A unit that sleeps in forward and backward. slept: measured seconds of each sleep."""

    def __init__(self, forward: float, backward: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(4))
        self.seconds = forward, backward
        self.slept: list[float] = []

    def forward(self, x: Tensor) -> Tensor:
        return _Slept.apply(x + self.weight, *self.seconds, self.slept)


class _Slept(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, forward: float, backward: float, slept: list[float]) -> Tensor:
        ctx.backward_seconds, ctx.slept = backward, slept
        _sleep(forward, slept)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        _sleep(ctx.backward_seconds, ctx.slept)
        return gradient, None, None, None


def _sleep(seconds: float, slept: list[float]) -> None:
    began = time.perf_counter()
    time.sleep(seconds)
    slept.append(time.perf_counter() - began)


def overhead_seconds(steps: int = STEPS) -> tuple[float, float]:
    """Return a block's (forward, backward) overhead on this machine, in seconds without its units.

    Takes about a second. Raises RingBroken if the members do not meet over loopback.
    """
    plan = Plan((Stage(0, 1, (0,)), Stage(1, 2, (1,))))
    with ExitStack() as stack:
        sent: set[tuple[int, FrameKey]] = set()
        members = [_member(me, plan, links, stack) for me, links in enumerate(_ring(sent, stack))]
        for step in range(steps):
            _step(members, step)
        found = [executor.overhead_seconds for executor, _, _ in members]
        return mean(forward for forward, _ in found), mean(backward for _, backward in found)


class _LinksOfOneThread(RingLinks):
    """Links of a member whose peers run in the same thread. sent: (receiver, key) of frames in flight."""

    def __init__(self, transport: RingTransport, sent: set[tuple[int, FrameKey]]) -> None:
        super().__init__(transport)
        self._sent = sent

    def send(self, frame: Frame, peer: int) -> None:
        super().send(frame, peer)
        self._sent.add((peer, frame.key))

    def receive(self, key: FrameKey, peer: int) -> Frame:
        self._sent.discard((self.me, key))
        return super().receive(key, peer)

    def ready(self, wait: Wait) -> bool:
        """True if the awaited frame was sent."""
        return not isinstance(wait, FrameWait) or (self.me, wait.key) in self._sent


_Member = tuple[StepExecutor, _LinksOfOneThread, dict[int, MicroBatch]]


def _ring(sent: set[tuple[int, FrameKey]], stack: ExitStack) -> list[_LinksOfOneThread]:
    """Return the links of two members; the stack closes them."""
    store = RendezvousStore("127.0.0.1")
    stack.callback(store.close)

    def form(rank: int) -> RingTransport:
        return RingTransport.form(
            store_address=store.address,
            prefix="overhead",
            rank=rank,
            size=2,
            cancel=threading.Event(),
            timeout_seconds=_MEETING_SECONDS,
            shared_memory=False,
        )

    with ThreadPoolExecutor(2) as threads:
        transports = list(threads.map(form, range(2)))
    found = [_LinksOfOneThread(transport, sent) for transport in transports]
    for links, transport in zip(found, transports, strict=True):
        stack.callback(transport.close)
        stack.callback(links.close)
    return found


def _member(me: int, plan: Plan, links: _LinksOfOneThread, stack: ExitStack) -> _Member:
    units = Units.build([Sleeper(_UNIT_SECONDS, _UNIT_SECONDS) for _ in range(2)])
    units.hold([me])
    units.initialise(me)
    units.started()
    generators = Generators()
    executor = StepExecutor(units, lambda output, target: output.sum() + target, _MICRO_BATCHES, generators)
    stack.callback(executor.close)
    half = _MICRO_BATCHES // 2
    ranges = ((0, half), (half, _MICRO_BATCHES))
    executor.set_ring(plan, me, ranges, links, 1, None)
    parts = generators.capture()
    return (
        executor,
        links,
        {est: MicroBatch(torch.zeros(4), torch.zeros(()), parts) for est in range(*ranges[me])},
    )


def _step(members: list[_Member], step: int) -> None:
    for executor, _, _ in members:
        executor.begin_step(step)
    for turn in (lambda one: one[0].wave(0, one[2], last=True), lambda one: one[0].sums()):
        _together(members, turn)
    for executor, links, _ in members:
        links.settle()
        executor.end_step(True)


def _together(members: list[_Member], turn: Callable[[_Member], Any]) -> None:
    run_together([(member[1], turn(member)) for member in members])
