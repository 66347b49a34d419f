"""Runs a stage's blocks (forwards and backwards), with the frames that they receive and send.

A forward waits for its input and, on the last stage, for its target; a backward waits for the gradients of
its output. Results are sent on at once, together with the EST's generator states.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from torch import Tensor

from elastane.collective.ring_errors import RingError
from elastane.pipeline.frames import FrameKey, Kind
from elastane.pipeline.gradient_capture import GradientCapture
from elastane.pipeline.held_stage import HeldStage
from elastane.pipeline.messages import Messages, Step
from elastane.pipeline.stage_run import Loss, StageRun, Stash
from elastane.rng import Generators, Parts
from elastane_planner.schedule import Block

Observe = Callable[[int, int, int], AbstractContextManager[None]]


@dataclass(frozen=True, slots=True)
class _Flying:
    """A micro-batch between its forward and backward here.

    loss: on the last stage only. parts: generator states after the forward.
    """

    stash: Stash
    loss: Tensor | None
    parts: Parts


class StageBlocks:
    """Runs the blocks of one member's stage; built for each generation.

    loss: makes the loss of a target, for `StageRun`. observe: (step, EST, micro-batch) -> context manager
    around each backward that runs here.
    """

    def __init__(
        self,
        held: HeldStage,
        run: StageRun,
        capture: GradientCapture,
        messages: Messages,
        generators: Generators,
        loss: Callable[[Any], Loss],
        observe: Observe | None = None,
    ) -> None:
        self.held, self.run, self._capture = held, run, capture
        self._messages, self._generators, self._loss = messages, generators, loss
        self._observe = observe
        self._last_stage = held.stage == messages.ring.last
        self._is_plain = messages.ring.plan.stages[held.stage].memory == "plain"
        own = messages.ring.ests_of(held.stage, messages.me)
        #: ESTs computed here. The first runs twice if requested; the middle one is timed.
        self._first, self._measured = own[:1], own[len(own) // 2 :][:1]
        self._flying: dict[int, _Flying] = {}
        #: Losses by EST for each wave, on the last stage.
        self.losses: list[dict[int, Tensor]] = []
        self._began = 0.0
        self._twice = False
        #: (start, end) of each block of the last wave, in schedule order, in seconds of the step. On a GPU, a
        #: block that sends nothing ends when its kernels are queued.
        self.seconds: list[tuple[float, float]] = []

    def begin_step(self, *, twice: bool = False) -> None:
        """Begin a step: no EST has gradients yet. twice: run the first forward twice and compare."""
        self._twice = twice
        self._began = perf_counter()
        self._flying.clear()
        self.losses = []
        self._capture.begin_step(self.held.memory)

    def begin_wave(self, micro: int, order: Iterable[Block]) -> None:
        """Begin a wave: announce the frames that will be received in it."""
        self.losses.append({})
        self.seconds = []
        messages, ring = self._messages, self._messages.ring
        for block in order:
            est, stage = block.micro_batch, block.stage
            if block.kind == "F":
                messages.expect(*self._input(est, micro))
                if self._last_stage:
                    messages.expect(FrameKey(Kind.TARGET, stage, est, micro), ring.homes[est])
            elif not self._last_stage:
                messages.expect(FrameKey(Kind.BACKWARD, stage, est, micro), ring.replica(stage + 1, est))

    def forward(self, est: int, micro: int) -> Step:
        """Run the forward of an EST."""
        messages, run = self._messages, self.run
        ring, stage = messages.ring, run.stage
        received = messages.links.receiving_seconds
        key, before = self._input(est, micro)
        frame = yield from messages.receive(key, before)
        loss = None
        if self._last_stage:
            target = yield from messages.receive(FrameKey(Kind.TARGET, stage, est, micro), ring.homes[est])
            loss = self._loss(target.value)
        parts = messages.parts(frame, before)
        began, received = perf_counter(), messages.links.receiving_seconds - received
        with self._as_est(est, micro, "forward", parts) as own:
            measured = micro == 0 and est in self._measured
            twice = self._twice and micro == 0 and est in self._first
            output, stash = run.forward(est, frame, loss, parts, measured=measured, twice=twice)
            after = self._generators.exchange(own)
            if loss is None:
                key = FrameKey(Kind.FORWARD, stage + 1, est, micro)
                messages.send(key, ring.replica(stage + 1, est), output.value, after, run.addresses)
        told = None
        if output.loss is not None:
            told = self.losses[micro][est] = output.loss.to("cpu", copy=True)
        self._flying[est] = _Flying(stash, told, after)
        self._note("F", began, received, is_usual=measured and not twice)

    def backward(self, est: int, micro: int, *, last: bool, orders: bool) -> Step:
        """Run the backward of an EST.

        last: True for the EST's last one in this step. orders: True if EST 0's backward records the order in
        which gradients become ready.
        """
        messages, run = self._messages, self.run
        ring, stage = messages.ring, run.stage
        flying = self._flying.pop(est)
        loss, parts, gradients, ready = flying.loss, flying.parts, None, None
        received = messages.links.receiving_seconds
        if not self._last_stage:
            after = ring.replica(stage + 1, est)
            frame = yield from messages.receive(FrameKey(Kind.BACKWARD, stage, est, micro), after)
            gradients, loss, ready = frame.value
            parts = messages.parts(frame, after)
        began, received = perf_counter(), messages.links.receiving_seconds - received
        with self._as_est(est, micro, "backward", parts) as own:
            run.prepare_backward(flying.stash)
            self._capture.begin_backward(est, last=last)
            observe = self._observe
            with nullcontext() if observe is None else observe(messages.step, est, micro):
                sent = run.backward(flying.stash, gradients)
            order = self._capture.end_backward()
            parts = self._generators.exchange(own)
            if est == 0 and last and orders:
                ready = [*(ready or ()), *order]
            before = self._input(est, micro)[1]
            if stage == 0:
                messages.send(FrameKey(Kind.END, 0, est, micro), before, (loss, ready), parts)
            else:
                value = (list(sent), loss, ready)
                messages.send(FrameKey(Kind.BACKWARD, stage - 1, est, micro), before, value, parts)
        if last:
            self.held.sums.send_gradients(est)
        self._note("B", began, received, is_usual=flying.stash.measured)

    def _note(self, kind: str, began: float, received: float, *, is_usual: bool) -> None:
        """Record a block's times. received: seconds of receiving before it. is_usual: units were timed."""
        ended = perf_counter()
        self.seconds.append((began - self._began, ended - self._began))
        if is_usual and self._is_plain:
            self.run.clock.block(kind, ended - began + received)

    def drop(self) -> None:
        """Discard the step in flight."""
        self._flying.clear()
        self._capture.clear()

    def close(self) -> None:
        """Remove the hooks."""
        self._capture.close()

    def _input(self, est: int, micro: int) -> tuple[FrameKey, int]:
        """Return the key of a forward's input frame, and the sender."""
        ring, stage = self._messages.ring, self.run.stage
        if stage == 0:
            return FrameKey(Kind.INPUT, 0, est, micro), ring.homes[est]
        return FrameKey(Kind.FORWARD, stage, est, micro), ring.replica(stage - 1, est)

    @contextmanager
    def _as_est(self, est: int, micro: int, what: str, parts: Parts) -> Iterator[Parts]:
        """Context manager for an EST's block, with the EST's generators.

        Yields the process's generator states, which the block restores as soon as nothing draws any more; if
        it raises, they are restored here.
        """
        present = self._generators.exchange(parts)
        try:
            yield present
        except BaseException as error:
            self._generators.exchange(present)
            if isinstance(error, Exception) and not isinstance(error, RingError):
                error.add_note(
                    f"  in the {what} of EST {est} on {self.run.name}, step {self._messages.step},"
                    f" micro-batch {micro}"
                )
            raise
