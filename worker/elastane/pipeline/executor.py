"""One worker's part of a pipelined step.

Interface, as the runner uses it:

    executor = StepExecutor(units, loss_fn, num_ests, generators, bucket_cap_mb=None, device=...,
                            swap_bytes_max=None, scale=None, observe=None)
    executor.set_ring(plan, me, ranges, links, generation, ready_order)   the plan's units are held
    executor.set_layout(ready_order)                     between steps, as Reducer.set_layout
    executor.begin_step(step)
    ends = executor.run_wave(0, {est: MicroBatch(input, target, parts)}, last=...)   each wave: home ESTs
    executor.sum_gradients()                             p.grad of held trainable parameters = averages
    executor.losses, .wave_losses, .ready_order          known from here on
    executor.clip_grad_norm_(1.0)                        collective; between sum_gradients and end_step
    executor.end_step(applied=True)                      adopts EST 0's buffers (False: those before the step)
    executor.drop()                                      the ring ended, or a unit raised: the step is lost
    outputs = executor.forward_only(inputs)              collective, between steps
    executor.gather_weights(askers, take)                collective, between steps
    values = executor.tell_all(value)                    collective, between steps; then executor.flush()
    executor.close()

`links` is a `RingLinks` of the generation's transport; the caller closes it. `state.model_units` defines what
the executor needs of `Units`. Each method leaves the process's generators as it found them.

How a wave runs

    home        sends input, generators and target of its ESTs
    stages      run the blocks of the plan's schedule (`stage_blocks`)
    home        gets each EST's loss and generators when its backward has left the first stage

In the last wave an EST's gradients are sent to the stage's other replicas as soon as they are complete, so
that the sums overlap with the remaining blocks (`stage_sums`). A step is a generator that yields what it
waits for (`waits`); between two waits nothing else runs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from time import time
from typing import Any

import torch
from torch import Tensor

from elastane.collective.buckets import first_layout, rebuilt_layout
from elastane.collective.order import Ranges
from elastane.pipeline import clipping, refusals
from elastane.pipeline.evaluation import evaluation
from elastane.pipeline.frames import FrameKey, Kind
from elastane.pipeline.gradient_capture import GradientCapture
from elastane.pipeline.held_stage import HeldStage
from elastane.pipeline.host_memory import HostMemory
from elastane.pipeline.links import Links
from elastane.pipeline.messages import Messages, Step
from elastane.pipeline.ring_plan import RingPlan, plan_of
from elastane.pipeline.stage_blocks import Observe, StageBlocks
from elastane.pipeline.stage_run import Loss, StageRun
from elastane.pipeline.unit_clock import UnitClock
from elastane.pipeline.waits import RowsWait, drive
from elastane.pipeline.weight_gathering import Take, gathering
from elastane.rng import Generators, Parts
from elastane.state.model_units import ModelUnits
from elastane_planner.plan import Plan
from elastane_planner.schedule import Block
from elastane_proto.v1 import pipeline_pb2

_CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """A mini-batch loaded by an EST's home. parts: states of the EST's generators after loading."""

    input: Any
    target: Any
    parts: Parts


@dataclass(frozen=True, slots=True)
class WaveEnd:
    """An EST's result of a wave. loss: detached, on the CPU; parts: its generator states after backward."""

    loss: Tensor
    parts: Parts


class StepExecutor:
    """Executes this worker's blocks of each step. One per worker; called by the script's thread.

    units: the model's units. loss_fn: (output of the last unit, target) -> scalar loss. num_ests: N.
    bucket_cap_mb: as in DDP. device: where held units are. swap_bytes_max: limit of host memory for swapped
    activations. scale: applied to the loss before backward (GradScaler.scale); reported losses are unscaled.
    observe: (step, EST, micro-batch) -> context manager around each backward that runs here.
    """

    def __init__(
        self,
        units: ModelUnits,
        loss_fn: Callable[[Any, Any], Tensor],
        num_ests: int,
        generators: Generators,
        *,
        bucket_cap_mb: float | None = None,
        device: torch.device | None = None,
        swap_bytes_max: int | None = None,
        scale: Callable[[Tensor], Tensor] | None = None,
        observe: Observe | None = None,
    ) -> None:
        refusals.check_loss(loss_fn)
        self._units, self._loss_fn, self._num_ests, self._generators = units, loss_fn, num_ests, generators
        self._bucket_cap_mb, self._device = bucket_cap_mb, device or _CPU
        self._swap_bytes_max = swap_bytes_max
        self.scale, self._observe = scale, observe
        #: Trainable parameters of the whole model: indices into `units.parameters`, and names.
        self._trainable = [place for place, spec in enumerate(units.specs) if spec.requires_grad]
        self._names = [units.specs[place].name for place in self._trainable]
        self._clock = UnitClock(self._device)
        #: Start of the step, seconds since the Unix epoch.
        self.began_at = 0.0
        self._host: HostMemory | None = None
        self._layout_order: list[int] | None = None
        self._messages: Messages | None = None
        self._held: list[HeldStage] = []
        #: The stage that this member computes.
        self._own: StageBlocks | None = None
        self._stale = True
        self._in_step = False
        self._waves = 0
        #: Losses of the N ESTs in the last wave, detached, on the CPU; the same on every member.
        self.losses: list[Tensor] = []
        #: The same for each wave.
        self.wave_losses: list[list[Tensor]] = []
        #: Indices into the trainable parameters (registration order) in the order in which EST 0's gradients
        #: became ready: at the home of EST 0 in a step without a layout order (the job's first). Else None.
        self.ready_order: list[int] | None = None

    # ------------------------------------------------------------------ the ring and the layout

    def set_ring(
        self,
        plan: pipeline_pb2.PipelinePlan | Plan,
        me: int,
        ranges: Ranges,
        links: Links,
        generation: int,
        ready_order: Sequence[int] | None,
        *,
        order: dict[int, tuple[Block, ...]] | None = None,
    ) -> None:
        """Adopt a generation. me: this member's index. ranges: for each member, the ESTs it is home of.

        Called between steps, when the plan's units are held; their buffers are EST 0's. order: of blocks, in
        place of the planner's (tests). Raises RingPlanError and leaves the executor unchanged.
        """
        own = plan_of(plan) if isinstance(plan, pipeline_pb2.PipelinePlan) else plan
        ring = RingPlan.of(own, self._units.count, ranges, order)
        self.drop()
        self._forget_ring()
        self._messages = Messages(ring, me, links, generation)
        self._clock.forget()
        places = {id(self._units.parameters[place]): index for index, place in enumerate(self._trainable)}
        for stage in ring.held_by(me):
            modules = {unit: self._units.module(unit) for unit in ring.units_of(stage)}
            held = HeldStage(stage, modules, places, ring.holders(stage))
            self._held.append(held)
            if stage == ring.stage_of(me):
                self._own = self._computed(held)
        self.set_layout(ready_order)
        self._stale = True

    def _computed(self, held: HeldStage) -> StageBlocks:
        """Return the object that runs the blocks of a held stage."""
        messages = self._ring()
        memory = messages.ring.plan.stages[held.stage].memory
        if memory == "swap" and self._host is None:
            self._host = HostMemory(self._device, self._swap_bytes_max)
        names = {
            id(parameter): spec.name
            for spec, parameter in zip(self._units.specs, self._units.parameters, strict=True)
        }
        present = {names[id(p)]: p for module in held.modules.values() for p in module.parameters()}
        trainable = {id(self._units.parameters[place]) for place in self._trainable}
        run = StageRun(
            held.stage,
            held.modules,
            self._units.names,
            memory,
            held.buffers,
            self._generators,
            self._clock,
            self._host,
            refusals.addresses_of(present),
            {id(param): self._names[index] for index, param in held.trainable.items()},
            {address: name for address, name in names.items() if address in trainable},
        )
        capture = GradientCapture(held.trainable, self._names, self._num_ests)
        return StageBlocks(held, run, capture, messages, self._generators, self._loss, self._observe)

    def set_layout(self, ready_order: Sequence[int] | None) -> None:
        """Set the bucket layout from the next step on; None: the first step's."""
        order = None if ready_order is None else list(ready_order)
        if order != self._layout_order:
            self._layout_order = order
            self._stale = True

    def _allocate(self) -> None:
        """Allocate gradient memory for the current ring and layout."""
        messages = self._ring()
        ring, me = messages.ring, messages.me
        specs = [self._units.specs[place] for place in self._trainable]
        shapes = [
            torch.empty_strided(spec.shape, spec.stride, dtype=spec.dtype, device="meta") for spec in specs
        ]
        if not shapes:
            layout = []
        elif self._layout_order is None:
            layout = first_layout(shapes)
        else:
            layout = rebuilt_layout(shapes, self._layout_order, self._bucket_cap_mb)
        for held in self._held:
            held.release()
        for held in self._held:
            held.allocate(layout, ring.ests_of(held.stage, me), me, messages.links, self._device)
        self._stale = False

    @property
    def gradient_bytes(self) -> int:
        """Bytes of gradients by EST and of sums, for the current ring and layout."""
        return sum(held.gradient_bytes for held in self._held)

    # ------------------------------------------------------------------ the step

    @property
    def block_seconds(self) -> list[tuple[float, float]]:
        """(start, end) of each block of the last wave here, in schedule order, in seconds of the step."""
        return [] if self._own is None else self._own.seconds

    def begin_step(self, step: int, *, twice: bool = False) -> None:
        """Begin a step, or begin it again after `drop`.

        twice: run this member's first forward twice and compare; `run_wave` raises RepeatDiffersError if they
        differ.
        """
        self._ring().step, self._in_step = step, True
        self.began_at = time()
        if self._stale:
            self._allocate()
        self.losses, self.wave_losses, self.ready_order = [], [], None
        self._waves = 0
        for held in self._held:
            held.begin_step()
        if self._own is not None:
            self._own.begin_step(twice=twice)

    def run_wave(self, micro: int, batches: Mapping[int, MicroBatch], *, last: bool) -> Mapping[int, WaveEnd]:
        """Run one micro-batch of every EST through all stages.

        batches, result: keyed by the ESTs of which this member is home. last: True for the step's last wave.
        Raises a unit's own exception, with notes that name EST, stage and unit; RingAborted or RingBroken;
        StepError or UnsupportedError for refused operations.
        """
        ends: Mapping[int, WaveEnd] = drive(self.wave(micro, batches, last=last), self._ring().links)
        return ends

    def sum_gradients(self) -> None:
        """Wait for the sums, and set p.grad of held trainable parameters to the averages, as DDP does.

        The gradients are views of memory that the next step overwrites. They may be changed in place, as
        clipping does, because what other holders need has already been sent. Raises as `run_wave`.
        """
        drive(self.sums(), self._ring().links)
        self._ring().links.settle()

    def wave(self, micro: int, batches: Mapping[int, MicroBatch], *, last: bool) -> Step:
        """`run_wave` as a generator, for callers with their own driver."""
        messages = self._ring()
        ring = messages.ring
        if micro == 0:
            messages.links.settle()  # until then their memory must not be overwritten
        for est, batch in batches.items():
            key = FrameKey(Kind.INPUT, 0, est, micro)
            messages.send(key, ring.replica(0, est), batch.input, batch.parts)
            key = FrameKey(Kind.TARGET, ring.last, est, micro)
            messages.send(key, ring.replica(ring.last, est), batch.target)
            messages.expect(FrameKey(Kind.END, 0, est, micro), ring.replica(0, est))
        if last:
            for held in self._held:
                held.sums.begin()
        self._waves += 1
        if self._own is not None:
            order = ring.order.get(messages.me, ())
            self._own.begin_wave(micro, order)
            for block in order:
                if block.kind == "F":
                    yield from self._own.forward(block.micro_batch, micro)
                else:
                    orders = self._layout_order is None
                    yield from self._own.backward(block.micro_batch, micro, last=last, orders=orders)
        if last:
            yield from self._finish_sums(micro)
        ends = {}
        for est in batches:
            first = ring.replica(0, est)
            frame = yield from messages.receive(FrameKey(Kind.END, 0, est, micro), first)
            loss, ready = frame.value
            ends[est] = WaveEnd(loss, messages.parts(frame, first))
            if est == 0 and ready is not None:
                self.ready_order = ready
        return ends

    def _loss(self, target: Any) -> Loss:
        def loss(output: Any) -> tuple[Tensor, Tensor]:
            value = self._loss_fn(output, target)
            if not isinstance(value, Tensor) or value.numel() != 1:
                raise refusals.loss_is_no_scalar(value)
            return value, value if self.scale is None else self.scale(value)

        return loss

    def _finish_sums(self, micro: int) -> Step:
        """After the member's last block: send losses and buffers, and compute the sums."""
        messages = self._ring()
        ring, me = messages.ring, messages.me
        if self._own is not None and self._own.held.stage == ring.last:
            told = [[(est, loss) for est, loss in sorted(wave.items())] for wave in self._own.losses]
            for member in range(ring.members):
                messages.send(FrameKey(Kind.LOSSES, ring.last, me, micro), member, told)
        for member in ring.plan.stages[ring.last].devices:
            messages.expect(FrameKey(Kind.LOSSES, ring.last, member, micro), member)
        for held in self._held:
            holders = held.holders
            giver, key = holders.replicas[0], FrameKey(Kind.BUFFERS, held.stage, 0, micro)
            if not held.buffers.any:
                continue
            if giver != me:
                messages.expect(key, giver)
                continue
            for member in (*holders.replicas, *holders.shadows):
                if member != me:
                    messages.send(key, member, held.buffers.of(0))
        # The stage that this member computes comes first, because others wait for its part.
        own = None if self._own is None else self._own.held
        for held in sorted(self._held, key=lambda one: one is not own):
            for number in held.sums.finish():
                yield RowsWait(number)

    def sums(self) -> Step:
        """`sum_gradients` as a generator, for callers with their own driver."""
        messages = self._ring()
        ring, micro = messages.ring, self._waves - 1
        by_wave: list[dict[int, Tensor]] = [{} for _ in range(self._waves)]
        for member in ring.plan.stages[ring.last].devices:
            frame = yield from messages.receive(FrameKey(Kind.LOSSES, ring.last, member, micro), member)
            for losses, wave in zip(by_wave, frame.value, strict=True):
                losses.update(wave)
        self.wave_losses = [[wave[est] for est in range(self._num_ests)] for wave in by_wave]
        self.losses = self.wave_losses[-1]
        for held in self._held:
            giver = held.holders.replicas[0]
            if held.buffers.any and giver != messages.me:
                frame = yield from messages.receive(FrameKey(Kind.BUFFERS, held.stage, 0, micro), giver)
                held.buffers.receive(frame.value)
            held.show_averages()

    def end_step(self, applied: bool) -> None:
        """End the step. The units get EST 0's buffers, or those of the step's start without `applied`."""
        for held in self._held:
            held.end_step(applied)
        self._clock.end_step()
        self._in_step = False

    def drop(self) -> None:
        """Discard the step in flight without waiting for other members; its generation is over."""
        if not self._in_step:
            return
        self._in_step = False
        self._ring().links.abandon()
        if self._own is not None:
            self._own.drop()
        for held in self._held:
            held.drop()
        self._stale = True  # receives still in flight may write to the old vectors

    def close(self) -> None:
        """Remove hooks and threads. Idempotent."""
        self.drop()
        self._forget_ring()
        if self._host is not None:
            self._host.close()
            self._host = None

    def _forget_ring(self) -> None:
        if self._own is not None:
            self._own.close()
        for held in self._held:
            held.buffers.restore()
        self._held, self._own = [], None

    # ------------------------------------------------------------------ collectives beside the step

    def clip_grad_norm_(
        self,
        max_norm: float,
        norm_type: float = 2.0,
        error_if_nonfinite: bool = False,
        foreach: bool | None = None,
    ) -> Tensor:
        """Clip the averages like `torch.nn.utils.clip_grad_norm_` of the whole model; return the total norm.

        Collective; called after `sum_gradients`. Raises RingAborted, RingBroken, and torch's RuntimeError.
        """
        clip = self.clip(max_norm, norm_type, error_if_nonfinite, foreach)
        total: Tensor = drive(clip, self._ring().links)
        return total

    def clip(
        self,
        max_norm: float,
        norm_type: float = 2.0,
        error_if_nonfinite: bool = False,
        foreach: bool | None = None,
    ) -> Step:
        """`clip_grad_norm_` as a generator."""
        held = {one.stage: one.trainable for one in self._held}
        dtypes = [self._units.specs[place].dtype for place in self._trainable]
        return clipping.clip(self._ring(), held, dtypes, max_norm, norm_type, error_if_nonfinite, foreach)

    def found_inf(self) -> bool:
        """True if any average of the model is not finite (GradScaler's found_inf).

        Collective; called after `sum_gradients`. Raises RingAborted, RingBroken.
        """
        answer: bool = drive(self.not_finite(), self._ring().links)
        return answer

    def not_finite(self) -> Step:
        """`found_inf` as a generator."""
        held = [param.grad for one in self._held for param in one.trainable.values()]
        finite = [torch.isfinite(grad).all() for grad in held if grad is not None]
        # One wait for a GPU, however many parameters there are.
        own = bool(finite) and not bool(torch.stack(finite).all())
        values = yield from self._ring().tell_all(Kind.FLAGS, own)
        return any(values)

    def tell_all(self, value: Any) -> list[Any]:
        """Return the values of all members, by member. Collective, between steps.

        value: anything a frame can hold: tensors, None, numbers, strings; tuples, lists, dicts of them.
        """
        values: list[Any] = drive(self._ring().tell_all(Kind.FLAGS, value), self._ring().links)
        return values

    def flush(self) -> None:
        """Wait until all sends are complete. Raises RingAborted, RingBroken."""
        self._ring().links.settle()

    @property
    def me(self) -> int:
        """This member's index in the ring."""
        return self._ring().me

    @property
    def leader(self) -> int:
        """The member that is home of EST 0."""
        return self._ring().ring.homes[0]

    def gather_weights(self, askers: Collection[int], take: Take) -> None:
        """Send the whole model's weights to the `askers`, where `take` is called with one unit at a time.

        Collective, between steps. Raises RingAborted, RingBroken.
        """
        drive(gathering(self._ring(), self._units, askers, take), self._ring().links)

    def forward_only(self, inputs: Iterable[Any]) -> list[Any]:
        """Return the model's outputs for this member's inputs, in order, without gradients.

        Buffers and generators are unchanged. Collective, between steps; members may pass different numbers of
        inputs, also none. All inputs are sent at once, so pass only a few at a time. The caller has put the
        units into eval mode.
        """
        outputs: list[Any] = drive(self.evaluation(list(inputs)), self._ring().links)
        return outputs

    def evaluation(self, inputs: Sequence[Any]) -> Step:
        """`forward_only` as a generator."""
        own = self._own
        run, buffers = (None, None) if own is None else (own.run, own.held.buffers)
        return evaluation(self._ring(), inputs, run, buffers, self._generators)

    @property
    def unit_seconds(self) -> dict[int, tuple[float, float]]:
        """(forward, backward) seconds of a micro-batch, by unit computed here; medians of the last steps."""
        return self._clock.medians

    @property
    def overhead_seconds(self) -> tuple[float, float]:
        """(forward, backward) overhead of a block in seconds, without its units, over the last steps.

        Zero where it is not measured: on a GPU, and with checkpointed or swapped activations.
        """
        return self._clock.overheads

    # ------------------------------------------------------------------ helpers

    def _ring(self) -> Messages:
        assert self._messages is not None, "set_ring comes first"
        return self._messages
