"""One worker's part of a step whose model is cut into stages.

INTERFACE (for the runner; it changes only here, and by a commit of its own)

    executor = StepExecutor(units, loss_fn, num_ests, generators, bucket_cap_mb=None, device=...,
                            swap_bytes_max=None, scale=None)
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
    executor.close()

`links` is a `RingLinks` of the generation's transport; its owner closes it. What the executor needs of
`Units` stands in `ModelUnits`. After each method the process's generators are as they were before it.

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

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from elastane.collective.buckets import first_layout, rebuilt_layout
from elastane.collective.order import Ranges
from elastane.pipeline import clipping, refusals
from elastane.pipeline.est_buffers import EstBuffers
from elastane.pipeline.frames import Frame, FrameError, FrameKey, Kind, frame_of
from elastane.pipeline.gradient_capture import GradientCapture
from elastane.pipeline.gradient_memory import GradientMemory, groups_of
from elastane.pipeline.host_memory import HostMemory
from elastane.pipeline.links import Links
from elastane.pipeline.parts_on_links import PartsOnLinks
from elastane.pipeline.ring_plan import RingPlan, plan_of
from elastane.pipeline.stage_run import Loss, StageRun, Stash
from elastane.pipeline.stage_sums import StageSums
from elastane.pipeline.unit_clock import UnitClock
from elastane.pipeline.waits import FrameWait, RowsWait, Wait, drive
from elastane.rng import Generators, Parts
from elastane_planner.plan import Plan
from elastane_planner.schedule import Block
from elastane_proto.v1 import pipeline_pb2

#: What a step yields, is sent, and returns.
Step = Generator[Wait, Any, Any]
_CPU = torch.device("cpu")


class UnitParameter(Protocol):
    """A parameter of the whole model, as built: it may be released now."""

    @property
    def name(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def stride(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> torch.dtype: ...
    @property
    def requires_grad(self) -> bool: ...


class ModelUnits(Protocol):
    """The units of a model, of which a worker holds some (`units.Units`)."""

    @property
    def count(self) -> int: ...
    @property
    def names(self) -> Sequence[str]: ...
    @property
    def specs(self) -> Sequence[UnitParameter]:
        """Of all parameters in registration order, each once."""
        ...

    @property
    def parameters(self) -> Sequence[nn.Parameter]:
        """The same parameters; the objects stay for ever."""
        ...

    def module(self, unit: int) -> nn.Module: ...


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


class StepExecutor:
    """Built once for each worker; called by the script's thread.

    units: the model's; loss_fn: (output of the last unit, target) -> scalar loss; num_ests: N;
    bucket_cap_mb: as DDP's; device: of the held units; swap_bytes_max: host memory for swapped activations;
    scale: applied to the loss before backward (GradScaler.scale); losses that are told are without it.
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
    ) -> None:
        refusals.check_loss(loss_fn)
        self._units, self._loss_fn, self._num_ests, self._generators = units, loss_fn, num_ests, generators
        self._bucket_cap_mb, self._device = bucket_cap_mb, device or _CPU
        self._swap_bytes_max = swap_bytes_max
        self.scale = scale
        #: Trainable parameters of the whole model: places in `units.parameters`, and their names.
        self._trainable = [place for place, spec in enumerate(units.specs) if spec.requires_grad]
        self._names = [units.specs[place].name for place in self._trainable]
        self._clock = UnitClock(self._device)
        self._host: HostMemory | None = None
        self._layout_order: list[int] | None = None
        self._plan: RingPlan | None = None
        self._me = 0
        self._links: Links | None = None
        self._generation = self._step = self._evaluations = 0
        self._parts = PartsOnLinks()
        self._held: dict[int, _Held] = {}
        self._own: _Held | None = None
        self._run: StageRun | None = None
        self._capture: GradientCapture | None = None
        self._stale = True
        self._in_step = False
        self._ready: list[list[int]] = []
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
        self._plan, self._me, self._links, self._generation = ring, me, links, generation
        self._parts = PartsOnLinks()
        self._evaluations = 0
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
        assert self._plan is not None
        stage = self._plan.plan.stages[held.stage]
        if stage.memory == "swap" and self._host is None:
            self._host = HostMemory(self._device, self._swap_bytes_max)
        present = {
            name: parameter
            for unit, module in modules.items()
            for name, parameter in module.named_parameters(prefix=str(unit))
        }
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
            {
                id(self._units.parameters[place]): name
                for place, name in zip(self._trainable, self._names, strict=True)
            },
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
        assert self._plan is not None and self._links is not None
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
            ests = self._plan.ests_of(held.stage, self._me)
            held.memory = GradientMemory(groups, ests, self._device)
            holders = self._plan.holders(held.stage)
            held.sums = StageSums(holders, self._me, held.memory, self._links)
        self._stale = False

    @property
    def gradient_bytes(self) -> int:
        """Bytes of gradients by EST and of sums, for the current ring and layout."""
        return sum(held.memory.nbytes for held in self._held.values() if held.memory is not None)

    # ------------------------------------------------------------------ the step

    def begin_step(self, step: int) -> None:
        """Begin a step; also again, after `drop`."""
        assert self._plan is not None, "set_ring comes first"
        self._step, self._in_step = step, True
        if self._stale:
            self._allocate()
        self.losses, self.wave_losses, self.ready_order = [], [], None
        self._ready, self._stage_losses = [], []
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
        assert self._links is not None
        ends: Mapping[int, WaveEnd] = drive(self.wave(micro, batches, last=last), self._links)
        return ends

    def sum_gradients(self) -> None:
        """Wait for the sums: p.grad of held trainable parameters are the averages, as DDP leaves them.

        They are views of memory that the next step writes to. Raises as `run_wave`.
        """
        assert self._links is not None
        drive(self.sums(), self._links)

    def wave(self, micro: int, batches: Mapping[int, MicroBatch], *, last: bool) -> Step:
        """`run_wave` as a generator, for a driver of the caller's."""
        plan, links = self._ring()
        if micro == 0:
            links.settle()  # what was sent in the step before is out: its memory may be written to
        for est, batch in batches.items():
            self._send(Kind.INPUT, 0, est, micro, plan.replica(0, est), batch.input, batch.parts)
            self._send(Kind.TARGET, plan.last, est, micro, plan.replica(plan.last, est), batch.target)
        order = plan.order.get(self._me, ())
        self._expect(order, micro, batches)
        if last:
            for held in self._held.values():
                assert held.sums is not None
                held.sums.begin()
        self._stage_losses.append({})
        stashes: dict[int, tuple[Stash, FrameKey, int, Tensor | None, Parts]] = {}
        for block in order:
            est = block.micro_batch
            if block.kind == "F":
                stashes[est] = yield from self._forward(est, micro)
            else:
                yield from self._backward(est, micro, last, *stashes.pop(est))
        if last:
            yield from self._finish_sums(micro)
        ends = {}
        for est in batches:
            first = plan.replica(0, est)
            frame = yield FrameWait(FrameKey(Kind.END, 0, est, micro), first)
            self._check(frame)
            loss, ready = frame.value
            ends[est] = WaveEnd(loss, self._parts.incoming(frame, first))
            if est == 0 and ready is not None:
                self.ready_order = ready
        return ends

    def _expect(self, order: Sequence[Block], micro: int, homes: Iterable[int]) -> None:
        """Announce what this member receives in a wave."""
        plan, links = self._ring()
        for block in order:
            est, stage = block.micro_batch, block.stage
            if block.kind == "F":
                before = plan.homes[est] if stage == 0 else plan.replica(stage - 1, est)
                kind = Kind.INPUT if stage == 0 else Kind.FORWARD
                links.expect(FrameKey(kind, stage, est, micro), before)
                if stage == plan.last:
                    links.expect(FrameKey(Kind.TARGET, stage, est, micro), plan.homes[est])
            elif stage < plan.last:
                links.expect(FrameKey(Kind.BACKWARD, stage, est, micro), plan.replica(stage + 1, est))
        for est in homes:
            links.expect(FrameKey(Kind.END, 0, est, micro), plan.replica(0, est))

    def _forward(self, est: int, micro: int) -> Step:
        """The forward of an EST on this member's stage; returns what its backward needs."""
        plan, _ = self._ring()
        run = self._run
        assert run is not None
        stage = run.stage
        before = plan.homes[est] if stage == 0 else plan.replica(stage - 1, est)
        key = FrameKey(Kind.INPUT if stage == 0 else Kind.FORWARD, stage, est, micro)
        frame = yield FrameWait(key, before)
        self._check(frame)
        loss = None
        if stage == plan.last:
            target = yield FrameWait(FrameKey(Kind.TARGET, stage, est, micro), plan.homes[est])
            self._check(target)
            loss = self._loss(target.value)
        parts = self._parts.incoming(frame, before)
        measured = micro == 0 and est == plan.ests_of(stage, self._me)[0]
        with self._as_est(est, micro, "forward"):
            self._generators.exchange(parts)
            output, stash = run.forward(est, frame, loss, parts, measured=measured)
            after = self._generators.capture()
            if loss is None:
                self._send(
                    Kind.FORWARD, stage + 1, est, micro, plan.replica(stage + 1, est), output.value, after,
                    run.addresses,
                )  # fmt: skip
        told = None
        if output.loss is not None:
            told = output.loss.to("cpu", copy=True)
            self._stage_losses[micro][est] = told
        return stash, key, before, told, after

    def _loss(self, target: Any) -> Loss:
        def loss(output: Any) -> tuple[Tensor, Tensor]:
            value = self._loss_fn(output, target)
            if not isinstance(value, Tensor) or value.numel() != 1:
                raise refusals.loss_is_no_scalar(value)
            return value, value if self.scale is None else self.scale(value)

        return loss

    def _backward(
        self,
        est: int,
        micro: int,
        last: bool,
        stash: Stash,
        key: FrameKey,
        before: int,
        loss: Tensor | None,
        parts: Parts,
    ) -> Step:
        """The backward of an EST on this member's stage. loss, parts: of the last stage's forward."""
        plan, _ = self._ring()
        run, capture, own = self._run, self._capture, self._own
        assert run is not None and capture is not None and own is not None and own.sums is not None
        stage, gradients, ready = run.stage, None, None
        if stage < plan.last:
            after = plan.replica(stage + 1, est)
            frame = yield FrameWait(FrameKey(Kind.BACKWARD, stage, est, micro), after)
            self._check(frame)
            gradients, loss, ready = frame.value
            parts = self._parts.incoming(frame, after)
        with self._as_est(est, micro, "backward"):
            run.prepare_backward(stash)
            self._generators.exchange(parts)
            capture.begin_backward(est, last=last)
            sent = run.backward(stash, gradients)
            order = capture.end_backward()
            parts = self._generators.capture()
            if est == 0 and last and self._layout_order is None:
                ready = [*(ready or ()), *order]
            if stage == 0:
                self._send(Kind.END, 0, est, micro, before, (loss, ready), parts)
            else:
                value = (list(sent), loss, ready)
                self._send(Kind.BACKWARD, stage - 1, est, micro, before, value, parts)
        if last:
            own.sums.send_gradients(est)

    def _finish_sums(self, micro: int) -> Step:
        """What follows a member's last block: losses and buffers are sent, and the sums are computed."""
        plan, links = self._ring()
        members = range(plan.members)
        if self._run is not None and self._run.stage == plan.last:
            losses = [sorted(wave.items()) for wave in self._stage_losses]
            told = [[(est, loss) for est, loss in wave] for wave in losses]
            for member in members:
                self._send(Kind.LOSSES, plan.last, self._me, micro, member, told)
        for member in plan.plan.stages[plan.last].devices:
            links.expect(FrameKey(Kind.LOSSES, plan.last, member, micro), member)
        for held in self._held.values():
            holders = plan.holders(held.stage)
            giver = holders.replicas[0]
            if not held.buffers.any:
                continue
            if giver == self._me:
                for member in (*holders.replicas, *holders.shadows):
                    if member != self._me:
                        self._send(Kind.BUFFERS, held.stage, 0, micro, member, held.buffers.of(0))
            else:
                links.expect(FrameKey(Kind.BUFFERS, held.stage, 0, micro), giver)
        # First the stage that this member computes: others wait for its part.
        for held in sorted(self._held.values(), key=lambda one: one is not self._own):
            assert held.sums is not None
            for number in held.sums.finish():
                yield RowsWait(number)

    def sums(self) -> Step:
        """`sum_gradients` as a generator, for a driver of the caller's."""
        plan, _ = self._ring()
        micro = len(self._stage_losses) - 1
        by_wave: list[dict[int, Tensor]] = [{} for _ in self._stage_losses]
        for member in plan.plan.stages[plan.last].devices:
            frame = yield FrameWait(FrameKey(Kind.LOSSES, plan.last, member, micro), member)
            self._check(frame)
            for losses, wave in zip(by_wave, frame.value, strict=True):
                losses.update(wave)
        self.wave_losses = [[wave[est] for est in range(self._num_ests)] for wave in by_wave]
        self.losses = self.wave_losses[-1]
        for held in self._held.values():
            giver = plan.holders(held.stage).replicas[0]
            if held.buffers.any and giver != self._me:
                frame = yield FrameWait(FrameKey(Kind.BUFFERS, held.stage, 0, micro), giver)
                self._check(frame)
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
        assert self._links is not None
        self._links.abandon()
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
        assert self._links is not None
        total: Tensor = drive(self.clip(max_norm, norm_type, error_if_nonfinite, foreach), self._links)
        return total

    def clip(
        self,
        max_norm: float,
        norm_type: float = 2.0,
        error_if_nonfinite: bool = False,
        foreach: bool | None = None,
    ) -> Step:
        """`clip_grad_norm_` as a generator."""
        plan, links = self._ring()
        norm_type = float(norm_type)
        self._evaluations += 1
        number = self._evaluations
        givers = {stage: one.devices[0] for stage, one in enumerate(plan.plan.stages)}
        for stage, giver in givers.items():
            links.expect(FrameKey(Kind.NORMS, stage, 0, number), giver)
            if giver == self._me:
                params = self._held[stage].trainable
                shown = {index: param.grad for index, param in params.items() if param.grad is not None}
                norms = clipping.norms_of(list(shown.values()), norm_type, foreach)
                for member in range(plan.members):
                    self._send(Kind.NORMS, stage, 0, number, member, (list(shown), norms))
        by_index: dict[int, Tensor] = {}
        for stage, giver in givers.items():
            frame = yield FrameWait(FrameKey(Kind.NORMS, stage, 0, number), giver)
            self._check(frame)
            indices, norms = frame.value
            by_index.update(zip(indices, norms, strict=True))
        order = sorted(by_index)
        dtypes = [self._units.specs[self._trainable[index]].dtype for index in order]
        total = clipping.total_norm([by_index[index] for index in order], dtypes, norm_type)
        if error_if_nonfinite:
            clipping.check_finite(total, norm_type)
        params = {index: param for held in self._held.values() for index, param in held.trainable.items()}
        clipping.scale([params[index] for index in sorted(params)], max_norm, total, foreach)
        return total

    def any_member(self, flag: bool) -> bool:
        """True if the flag is set at any member: GradScaler's found_inf. Collective, after
        `sum_gradients`."""
        assert self._links is not None
        answer: bool = drive(self.flags(flag), self._links)
        return answer

    def flags(self, flag: bool) -> Step:
        """`any_member` as a generator."""
        values = yield from self._tell_all(Kind.FLAGS, flag)
        return any(values)

    def _tell_all(self, kind: Kind, value: Any) -> Step:
        """Send a value to every member; returns all members' values."""
        plan, links = self._ring()
        self._evaluations += 1
        number = self._evaluations
        for member in range(plan.members):
            links.expect(FrameKey(kind, 0, member, number), member)
            self._send(kind, 0, self._me, number, member, value)
        values = []
        for member in range(plan.members):
            frame = yield FrameWait(FrameKey(kind, 0, member, number), member)
            self._check(frame)
            values.append(frame.value)
        return values

    def forward_only(self, inputs: Iterable[Any]) -> list[Any]:
        """Return the model's outputs for this member's inputs, in order: no gradients, buffers and generators
        are unchanged. Collective, between steps; every member may give another number, none too.

        All inputs are sent at once: give a few at a time. The caller has put the units into eval mode.
        """
        assert self._links is not None
        outputs: list[Any] = drive(self.evaluation(list(inputs)), self._links)
        return outputs

    def evaluation(self, inputs: Sequence[Any]) -> Step:
        """`forward_only` as a generator."""
        plan, links = self._ring()
        counts = yield from self._tell_all(Kind.COUNTS, len(inputs))
        number = self._evaluations
        items = [
            (place, member)
            for place in range(max(counts))
            for member in range(plan.members)
            if place < counts[member]
        ]
        own = [item for item, (_, member) in enumerate(items) if member == self._me]
        for item, value in zip(own, inputs, strict=True):
            self._send(Kind.EVALUATE, 0, item, number, plan.replica(0, item), value)
        run = self._run
        mine = [] if run is None else [i for i in range(len(items)) if plan.replica(run.stage, i) == self._me]

        def giver(item: int, stage: int) -> int:
            return items[item][1] if stage == 0 else plan.replica(stage - 1, item)

        for item in mine:
            assert run is not None
            links.expect(FrameKey(Kind.EVALUATE, run.stage, item, number), giver(item, run.stage))
        for item in own:
            links.expect(FrameKey(Kind.OUTPUT, 0, item, number), plan.replica(plan.last, item))
        for item in mine:
            assert run is not None and self._own is not None
            key = FrameKey(Kind.EVALUATE, run.stage, item, number)
            frame = yield FrameWait(key, giver(item, run.stage))
            self._check(frame)
            present = self._generators.capture()
            try:
                with self._own.buffers.aside():
                    value = run.evaluate(frame.value)
            finally:
                self._generators.exchange(present)
            if run.stage == plan.last:
                self._send(Kind.OUTPUT, 0, item, number, items[item][1], value)
            else:
                receiver = plan.replica(run.stage + 1, item)
                self._send(Kind.EVALUATE, run.stage + 1, item, number, receiver, value)
        outputs = []
        for item in own:
            frame = yield FrameWait(FrameKey(Kind.OUTPUT, 0, item, number), plan.replica(plan.last, item))
            self._check(frame)
            outputs.append(frame.value)
        return outputs

    @property
    def unit_seconds(self) -> dict[int, tuple[float, float]]:
        """(forward, backward) seconds of one micro-batch by unit this member computes; medians of the last
        steps."""
        return self._clock.medians

    # ------------------------------------------------------------------ helpers

    def _ring(self) -> tuple[RingPlan, Links]:
        assert self._plan is not None and self._links is not None, "set_ring comes first"
        return self._plan, self._links

    @contextmanager
    def _as_est(self, est: int, micro: int, what: str) -> Iterator[None]:
        """An EST's block runs in this context; the process's generators are put back after it."""
        assert self._run is not None
        present = self._generators.capture()
        try:
            yield
        except Exception as error:
            error.add_note(
                f"  in the {what} of EST {est} on {self._run.name}, step {self._step}, micro-batch {micro}"
            )
            raise
        finally:
            self._generators.exchange(present)

    def _send(
        self,
        kind: Kind,
        stage: int,
        est: int,
        micro: int,
        peer: int,
        value: Any,
        parts: Parts | None = None,
        owned: frozenset[int] = frozenset(),
    ) -> None:
        _, links = self._ring()
        key = FrameKey(kind, stage, est, micro)
        carried = {} if parts is None else self._parts.outgoing(key, peer, parts)
        links.send(frame_of(key, self._generation, self._step, value, carried, owned), peer)

    def _check(self, frame: Frame) -> None:
        """Raise FrameError for a frame of another step or generation."""
        if (frame.generation, frame.step) != (self._generation, self._step):
            raise FrameError(
                f"a {frame.key.kind.name} frame of step {frame.step}, generation {frame.generation} came in"
                f" step {self._step}, generation {self._generation}",
                hint="this is a bug: report it with the log",
            )
