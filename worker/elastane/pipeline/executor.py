"""One worker's part of a step whose model is cut into stages.

INTERFACE (for the runner; it changes only here, and by a commit of its own)

    executor = StepExecutor(units, loss_fn, num_ests, generators, bucket_cap_mb=None, device=...,
                            swap_bytes_max=None, scale=None, observe=None)
    executor.set_ring(plan, me, ranges, links, generation, ready_order)   the plan's units are there
    executor.set_layout(ready_order)                     between steps, as Reducer.set_layout
    executor.begin_step(step)
    ends = executor.run_wave(0, {est: MicroBatch(input, target, parts)}, last=...)   each wave: home ESTs
    executor.sum_gradients()                             p.grad of held trainable parameters = averages
    executor.losses, .wave_losses, .ready_order          known from here on
    executor.clip_grad_norm_(1.0)                        collective; between sum_gradients and end_step
    executor.end_step(applied=True)                      adopts EST 0's buffers (False: those before the step)
    executor.drop()                                      the ring ended, or a unit raised: the step is lost
    outputs = executor.forward_only(inputs)              collective, between steps
    values = executor.tell_all(value)                    collective, between steps; then executor.flush()
    executor.close()

`links` is a `RingLinks` of the generation's transport; its owner closes it. What the executor needs of
`Units` stands in `model_units`. After each method the process's generators are as they were before it.

How a wave runs

    home        sends input, generators and target of its ESTs
    stages      run the blocks of the plan's schedule: a forward waits for its input, a backward for its
                gradients; what comes out is sent on at once. The EST's generators travel along
    home        gets each EST's loss and generators when its backward has left the first stage

In the last wave an EST's gradients go to the stage's other replicas as soon as they are complete, so that
sums overlap with the blocks that are still to come (`stage_sums`). A step is a generator that yields what it
waits for (`waits`), and between two waits nothing else runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from elastane.collective.buckets import first_layout, rebuilt_layout
from elastane.collective.order import Ranges
from elastane.collective.ring_errors import RingError
from elastane.pipeline import clipping, refusals
from elastane.pipeline.est_buffers import EstBuffers
from elastane.pipeline.evaluation import evaluation
from elastane.pipeline.frames import FrameKey, Kind
from elastane.pipeline.gradient_capture import GradientCapture
from elastane.pipeline.gradient_memory import GradientMemory, groups_of
from elastane.pipeline.host_memory import HostMemory
from elastane.pipeline.links import Links
from elastane.pipeline.messages import Messages, Step
from elastane.pipeline.model_units import ModelUnits
from elastane.pipeline.ring_plan import RingPlan, plan_of
from elastane.pipeline.stage_run import Loss, StageRun, Stash
from elastane.pipeline.stage_sums import StageSums
from elastane.pipeline.unit_clock import UnitClock
from elastane.pipeline.waits import RowsWait, drive
from elastane.rng import Generators, Parts
from elastane_planner.plan import Plan
from elastane_planner.schedule import Block
from elastane_proto.v1 import pipeline_pb2

_CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """What the home of an EST loaded. parts: the EST's generators after loading."""

    input: Any
    target: Any
    parts: Parts


@dataclass(frozen=True, slots=True)
class WaveEnd:
    """What an EST has after a wave. loss: detached, on the CPU; parts: its generators after backward."""

    loss: Tensor
    parts: Parts


@dataclass
class _Held:
    """A stage that this member holds. sums: None until the first step with this ring and layout."""

    stage: int
    buffers: EstBuffers
    trainable: dict[int, nn.Parameter]
    memory: GradientMemory | None = None
    sums: StageSums | None = None


@dataclass(frozen=True, slots=True)
class _Flying:
    """A micro-batch between its forward and its backward here. loss: on the last stage; parts: generators
    after the forward."""

    stash: Stash
    loss: Tensor | None
    parts: Parts


class StepExecutor:
    """Built once for each worker; called by the script's thread.

    units: the model's; loss_fn: (output of the last unit, target) -> scalar loss; num_ests: N;
    bucket_cap_mb: as DDP's; device: of the held units; swap_bytes_max: host memory for swapped activations;
    scale: applied to the loss before backward (GradScaler.scale); losses that are told are without it;
    observe: (step, EST, micro-batch) -> context in which that backward runs here.
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
        observe: Callable[[int, int, int], AbstractContextManager[None]] | None = None,
    ) -> None:
        refusals.check_loss(loss_fn)
        self._units, self._loss_fn, self._num_ests, self._generators = units, loss_fn, num_ests, generators
        self._bucket_cap_mb, self._device = bucket_cap_mb, device or _CPU
        self._swap_bytes_max = swap_bytes_max
        self.scale, self._observe = scale, observe
        #: Trainable parameters of the whole model: places in `units.parameters`, and their names.
        self._trainable = [place for place, spec in enumerate(units.specs) if spec.requires_grad]
        self._names = [units.specs[place].name for place in self._trainable]
        self._clock = UnitClock(self._device)
        self._host: HostMemory | None = None
        self._layout_order: list[int] | None = None
        self._messages: Messages | None = None
        self._held: dict[int, _Held] = {}
        self._own: _Held | None = None
        self._run: StageRun | None = None
        self._capture: GradientCapture | None = None
        self._stale = True
        self._in_step = False
        self._stage_losses: list[dict[int, Tensor]] = []
        #: Losses of the N ESTs in the last wave, detached, on the CPU; the same on every member.
        self.losses: list[Tensor] = []
        #: Those of each wave.
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
        """Adopt a generation: its plan, this member's index, the ESTs of each member as home.

        Called between steps, with the plan's units in place: their buffers are EST 0's. order: of the blocks,
        instead of the planner's (tests). Raises RingPlanError, and then the executor is as before.
        """
        own = plan_of(plan) if isinstance(plan, pipeline_pb2.PipelinePlan) else plan
        ring = RingPlan.of(own, self._units.count, ranges, order)
        self.drop()
        self._forget_ring()
        self._messages = Messages(ring, me, links, generation)
        self._clock.forget()
        place_of = {id(self._units.parameters[place]): index for index, place in enumerate(self._trainable)}
        for stage in ring.held_by(me):
            modules = {unit: self._units.module(unit) for unit in ring.units_of(stage)}
            trainable = {
                place_of[id(param)]: param
                for module in modules.values()
                for param in module.parameters()
                if id(param) in place_of
            }
            self._held[stage] = _Held(stage, EstBuffers(modules), dict(sorted(trainable.items())))
            if stage == ring.stage_of(me):
                self._set_stage(self._held[stage], modules)
        self.set_layout(ready_order)
        self._stale = True

    def _set_stage(self, held: _Held, modules: dict[int, nn.Module]) -> None:
        stage = self._ring().ring.plan.stages[held.stage]
        if stage.memory == "swap" and self._host is None:
            self._host = HostMemory(self._device, self._swap_bytes_max)
        names = {
            id(parameter): spec.name
            for spec, parameter in zip(self._units.specs, self._units.parameters, strict=True)
        }
        present = {names[id(p)]: p for module in modules.values() for p in module.parameters()}
        trainable = {id(self._units.parameters[place]) for place in self._trainable}
        self._own = held
        self._run = StageRun(
            held.stage,
            modules,
            self._units.names,
            stage.memory,
            held.buffers,
            self._generators,
            self._clock,
            self._host,
            refusals.addresses_of(present),
            {id(param): self._names[index] for index, param in held.trainable.items()},
            {address: name for address, name in names.items() if address in trainable},
        )
        self._capture = GradientCapture(held.trainable, self._names, self._num_ests)

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
        for held in self._held.values():
            held.memory = held.sums = None
        for held in self._held.values():
            groups = groups_of(layout, frozenset(held.trainable), self._num_ests)
            held.memory = GradientMemory(groups, ring.ests_of(held.stage, me), self._device)
            held.sums = StageSums(ring.holders(held.stage), me, held.memory, messages.links)
        self._stale = False

    @property
    def gradient_bytes(self) -> int:
        """Bytes of gradients by EST and of sums, for the current ring and layout."""
        return sum(held.memory.nbytes for held in self._held.values() if held.memory is not None)

    # ------------------------------------------------------------------ the step

    def begin_step(self, step: int) -> None:
        """Begin a step; also again, after `drop`."""
        self._ring().step, self._in_step = step, True
        if self._stale:
            self._allocate()
        self.losses, self.wave_losses, self.ready_order = [], [], None
        self._stage_losses = []
        for held in self._held.values():
            held.buffers.begin_step()
            for param in held.trainable.values():
                param.grad = None
        if self._capture is not None:
            assert self._own is not None and self._own.memory is not None
            self._capture.begin_step(self._own.memory)

    def run_wave(self, micro: int, batches: Mapping[int, MicroBatch], *, last: bool) -> Mapping[int, WaveEnd]:
        """Run one micro-batch of every EST through all stages; batches, result: by home EST of this member.

        last: it is the step's last wave. Raises what a unit raised, with notes that name EST, stage and unit;
        RingAborted or RingBroken; StepError or UnsupportedError for what is refused.
        """
        ends: Mapping[int, WaveEnd] = drive(self.wave(micro, batches, last=last), self._ring().links)
        return ends

    def sum_gradients(self) -> None:
        """Wait for the sums: p.grad of held trainable parameters are the averages, as DDP leaves them.

        They are views of memory that the next step writes to. Raises as `run_wave`.
        """
        drive(self.sums(), self._ring().links)

    def wave(self, micro: int, batches: Mapping[int, MicroBatch], *, last: bool) -> Step:
        """`run_wave` as a generator, for a driver of the caller's."""
        messages = self._ring()
        ring = messages.ring
        if micro == 0:
            messages.links.settle()  # what was sent in the step before is out: its memory may be written to
        for est, batch in batches.items():
            key = FrameKey(Kind.INPUT, 0, est, micro)
            messages.send(key, ring.replica(0, est), batch.input, batch.parts)
            key = FrameKey(Kind.TARGET, ring.last, est, micro)
            messages.send(key, ring.replica(ring.last, est), batch.target)
        order = ring.order.get(messages.me, ())
        self._expect(order, micro, batches)
        if last:
            for held in self._held.values():
                assert held.sums is not None
                held.sums.begin()
        self._stage_losses.append({})
        flying: dict[int, _Flying] = {}
        for block in order:
            est = block.micro_batch
            if block.kind == "F":
                flying[est] = yield from self._forward(est, micro)
            else:
                yield from self._backward(est, micro, last, flying.pop(est))
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

    def _expect(self, order: Sequence[Block], micro: int, homes: Iterable[int]) -> None:
        """Announce what this member receives in a wave."""
        messages = self._ring()
        ring = messages.ring
        for block in order:
            est, stage = block.micro_batch, block.stage
            if block.kind == "F":
                messages.expect(*self._input(stage, est, micro))
                if stage == ring.last:
                    messages.expect(FrameKey(Kind.TARGET, stage, est, micro), ring.homes[est])
            elif stage < ring.last:
                messages.expect(FrameKey(Kind.BACKWARD, stage, est, micro), ring.replica(stage + 1, est))
        for est in homes:
            messages.expect(FrameKey(Kind.END, 0, est, micro), ring.replica(0, est))

    def _input(self, stage: int, est: int, micro: int) -> tuple[FrameKey, int]:
        """Return the frame that a stage's forward begins with, and who sends it."""
        ring = self._ring().ring
        if stage == 0:
            return FrameKey(Kind.INPUT, 0, est, micro), ring.homes[est]
        return FrameKey(Kind.FORWARD, stage, est, micro), ring.replica(stage - 1, est)

    def _forward(self, est: int, micro: int) -> Step:
        """The forward of an EST on this member's stage; returns what its backward needs."""
        messages, run = self._ring(), self._run
        assert run is not None
        ring, stage = messages.ring, run.stage
        key, before = self._input(stage, est, micro)
        frame = yield from messages.receive(key, before)
        loss = None
        if stage == ring.last:
            target = yield from messages.receive(FrameKey(Kind.TARGET, stage, est, micro), ring.homes[est])
            loss = self._loss(target.value)
        parts = messages.parts(frame, before)
        measured = micro == 0 and est == ring.ests_of(stage, messages.me)[0]
        with self._as_est(est, micro, "forward"):
            self._generators.exchange(parts)
            output, stash = run.forward(est, frame, loss, parts, measured=measured)
            after = self._generators.capture()
            if loss is None:
                key = FrameKey(Kind.FORWARD, stage + 1, est, micro)
                messages.send(key, ring.replica(stage + 1, est), output.value, after, run.addresses)
        told = None
        if output.loss is not None:
            told = self._stage_losses[micro][est] = output.loss.to("cpu", copy=True)
        return _Flying(stash, told, after)

    def _loss(self, target: Any) -> Loss:
        def loss(output: Any) -> tuple[Tensor, Tensor]:
            value = self._loss_fn(output, target)
            if not isinstance(value, Tensor) or value.numel() != 1:
                raise refusals.loss_is_no_scalar(value)
            return value, value if self.scale is None else self.scale(value)

        return loss

    def _backward(self, est: int, micro: int, last: bool, flying: _Flying) -> Step:
        """The backward of an EST on this member's stage."""
        messages, run, capture, own = self._ring(), self._run, self._capture, self._own
        assert run is not None and capture is not None and own is not None and own.sums is not None
        ring, stage = messages.ring, run.stage
        loss, parts, gradients, ready = flying.loss, flying.parts, None, None
        if stage < ring.last:
            after = ring.replica(stage + 1, est)
            frame = yield from messages.receive(FrameKey(Kind.BACKWARD, stage, est, micro), after)
            gradients, loss, ready = frame.value
            parts = messages.parts(frame, after)
        with self._as_est(est, micro, "backward"):
            run.prepare_backward(flying.stash)
            self._generators.exchange(parts)
            capture.begin_backward(est, last=last)
            observe = self._observe
            with nullcontext() if observe is None else observe(messages.step, est, micro):
                sent = run.backward(flying.stash, gradients)
            order = capture.end_backward()
            parts = self._generators.capture()
            if est == 0 and last and self._layout_order is None:
                ready = [*(ready or ()), *order]
            before = self._input(stage, est, micro)[1]
            if stage == 0:
                messages.send(FrameKey(Kind.END, 0, est, micro), before, (loss, ready), parts)
            else:
                value = (list(sent), loss, ready)
                messages.send(FrameKey(Kind.BACKWARD, stage - 1, est, micro), before, value, parts)
        if last:
            own.sums.send_gradients(est)

    def _finish_sums(self, micro: int) -> Step:
        """What follows a member's last block: losses and buffers are sent, and the sums are computed."""
        messages = self._ring()
        ring, me = messages.ring, messages.me
        if self._run is not None and self._run.stage == ring.last:
            told = [[(est, loss) for est, loss in sorted(wave.items())] for wave in self._stage_losses]
            for member in range(ring.members):
                messages.send(FrameKey(Kind.LOSSES, ring.last, me, micro), member, told)
        for member in ring.plan.stages[ring.last].devices:
            messages.expect(FrameKey(Kind.LOSSES, ring.last, member, micro), member)
        for held in self._held.values():
            holders = ring.holders(held.stage)
            giver, key = holders.replicas[0], FrameKey(Kind.BUFFERS, held.stage, 0, micro)
            if not held.buffers.any:
                continue
            if giver != me:
                messages.expect(key, giver)
                continue
            for member in (*holders.replicas, *holders.shadows):
                if member != me:
                    messages.send(key, member, held.buffers.of(0))
        # First the stage that this member computes: others wait for its part.
        for held in sorted(self._held.values(), key=lambda one: one is not self._own):
            assert held.sums is not None
            for number in held.sums.finish():
                yield RowsWait(number)

    def sums(self) -> Step:
        """`sum_gradients` as a generator, for a driver of the caller's."""
        messages = self._ring()
        ring, micro = messages.ring, len(self._stage_losses) - 1
        by_wave: list[dict[int, Tensor]] = [{} for _ in self._stage_losses]
        for member in ring.plan.stages[ring.last].devices:
            frame = yield from messages.receive(FrameKey(Kind.LOSSES, ring.last, member, micro), member)
            for losses, wave in zip(by_wave, frame.value, strict=True):
                losses.update(wave)
        self.wave_losses = [[wave[est] for est in range(self._num_ests)] for wave in by_wave]
        self.losses = self.wave_losses[-1]
        for held in self._held.values():
            giver = ring.holders(held.stage).replicas[0]
            if held.buffers.any and giver != messages.me:
                frame = yield from messages.receive(FrameKey(Kind.BUFFERS, held.stage, 0, micro), giver)
                held.buffers.receive(frame.value)
            assert held.memory is not None
            for index, param in held.trainable.items():
                param.grad = held.memory.averages[index]

    def end_step(self, applied: bool) -> None:
        """End the step: the units' buffers are EST 0's, or without `applied` those at the step's start."""
        for held in self._held.values():
            if applied:
                held.buffers.adopt(held.buffers.of(0))
            else:
                held.buffers.restore()
        self._clock.end_step()
        self._in_step = False

    def drop(self) -> None:
        """Discard the step in flight without waiting for anybody; its generation is over."""
        if not self._in_step:
            return
        self._in_step = False
        self._ring().links.abandon()
        if self._capture is not None:
            self._capture.clear()
        for held in self._held.values():
            held.buffers.restore()
            for param in held.trainable.values():
                param.grad = None
        self._stale = True  # what was in flight may still be written to the vectors

    def close(self) -> None:
        """Remove hooks and threads. Idempotent."""
        self.drop()
        self._forget_ring()
        if self._host is not None:
            self._host.close()
            self._host = None

    def _forget_ring(self) -> None:
        if self._capture is not None:
            self._capture.close()
        for held in self._held.values():
            held.buffers.restore()
        self._held, self._own, self._run, self._capture = {}, None, None, None

    # ------------------------------------------------------------------ collectives beside the step

    def clip_grad_norm_(
        self,
        max_norm: float,
        norm_type: float = 2.0,
        error_if_nonfinite: bool = False,
        foreach: bool | None = None,
    ) -> Tensor:
        """Clip the averages as `torch.nn.utils.clip_grad_norm_` of the whole model; returns the total norm.

        Collective, after `sum_gradients`. Raises RingAborted, RingBroken, RuntimeError as torch's.
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
        held = {stage: one.trainable for stage, one in self._held.items()}
        dtypes = [self._units.specs[place].dtype for place in self._trainable]
        return clipping.clip(self._ring(), held, dtypes, max_norm, norm_type, error_if_nonfinite, foreach)

    def found_inf(self) -> bool:
        """True if an average of the model is not finite: GradScaler's found_inf. Collective, after
        `sum_gradients`. Raises RingAborted, RingBroken."""
        answer: bool = drive(self.not_finite(), self._ring().links)
        return answer

    def not_finite(self) -> Step:
        """`found_inf` as a generator."""
        held = [param.grad for one in self._held.values() for param in one.trainable.values()]
        own = any(grad is not None and not bool(torch.isfinite(grad).all()) for grad in held)
        values = yield from self._ring().tell_all(Kind.FLAGS, own)
        return any(values)

    def tell_all(self, value: Any) -> list[Any]:
        """Return what every member has given, by member. Collective, between steps.

        value: as in a frame: tensors, None, numbers, strings, tuples, lists and dicts of them.
        """
        values: list[Any] = drive(self._ring().tell_all(Kind.FLAGS, value), self._ring().links)
        return values

    def flush(self) -> None:
        """Wait until all that was sent is out. Raises RingAborted, RingBroken."""
        self._ring().links.settle()

    @property
    def me(self) -> int:
        """This member's index in the ring."""
        return self._ring().me

    def forward_only(self, inputs: Iterable[Any]) -> list[Any]:
        """Return the model's outputs for this member's inputs, in order: no gradients, buffers and generators
        are unchanged. Collective, between steps; every member may give another number, none too.

        All inputs are sent at once: give a few at a time. The caller has put the units into eval mode.
        """
        outputs: list[Any] = drive(self.evaluation(list(inputs)), self._ring().links)
        return outputs

    def evaluation(self, inputs: Sequence[Any]) -> Step:
        """`forward_only` as a generator."""
        buffers = None if self._own is None else self._own.buffers
        return evaluation(self._ring(), inputs, self._run, buffers, self._generators)

    @property
    def unit_seconds(self) -> dict[int, tuple[float, float]]:
        """(forward, backward) seconds of one micro-batch by unit this member computes; medians of the last
        steps."""
        return self._clock.medians

    # ------------------------------------------------------------------ helpers

    def _ring(self) -> Messages:
        assert self._messages is not None, "set_ring comes first"
        return self._messages

    @contextmanager
    def _as_est(self, est: int, micro: int, what: str) -> Iterator[None]:
        """An EST's block runs in this context; the process's generators are put back after it."""
        assert self._run is not None
        present = self._generators.capture()
        try:
            yield
        except RingError:
            raise
        except Exception as error:
            error.add_note(
                f"  in the {what} of EST {est} on {self._run.name}, step {self._ring().step},"
                f" micro-batch {micro}"
            )
            raise
        finally:
            self._generators.exchange(present)
