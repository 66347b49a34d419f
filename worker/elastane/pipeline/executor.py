"""One worker's part of a step whose model is cut into stages.

INTERFACE (for the runner; it changes only here, and by a commit of its own)

    executor = StepExecutor(units, loss_fn, num_ests, generators, bucket_cap_mb=None, device=..., swap_bytes_max=None)
    executor.set_ring(plan, me, ranges, links, generation, ready_order)   the plan's units are in place and held
    executor.set_layout(ready_order)                                      between steps, as Reducer.set_layout
    executor.begin_step(step)
    ends = executor.run_wave(0, {est: MicroBatch(input, target, parts)}, last=...)     for each wave: home ESTs
    executor.sum_gradients()                        p.grad of held trainable parameters = averages
    executor.losses, .wave_losses, .ready_order     known to every member from here on
    executor.clip_grad_norm_(1.0)                   collective; between sum_gradients and end_step
    executor.end_step(applied=True)                 adopts EST 0's buffers (False: those before the step)
    executor.drop()                                 the ring ended, or a unit raised: the step is lost
    outputs = executor.forward_only(inputs)         collective, between steps
    executor.close()

What the executor needs of `Units` (the `state` helper's class): `count`, `names`, `module(i)`, `held`, and
`parameters`: a list of (name, Parameter) of the whole model in registration order, each once, whose Parameter
objects keep shape, stride, dtype and requires_grad also when they are released. See `ModelUnits`.

After each method the process's generators are as they were before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from elastane.collective.order import Ranges
from elastane.pipeline.links import Links
from elastane.rng import Generators, Parts
from elastane_proto.v1 import pipeline_pb2


class ModelUnits(Protocol):
    """The units of a model, of which a worker holds some."""

    @property
    def count(self) -> int: ...

    @property
    def names(self) -> Sequence[str]: ...

    @property
    def parameters(self) -> Sequence[tuple[str, nn.Parameter]]:
        """(name, parameter) of the whole model in registration order, each once, released ones too."""
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


class StepExecutor:
    """Built once for each worker; called by the script's thread.

    units: the model's; loss_fn: (output of the last unit, target) -> scalar loss; num_ests: N; bucket_cap_mb:
    as DDP's; device: of the held units; swap_bytes_max: host memory for swapped activations; scale: applied to
    the loss before backward (GradScaler.scale), losses that are told are without it.
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
        raise NotImplementedError

    #: Losses of the N ESTs in the last wave, detached, on the CPU; the same on every member.
    losses: list[Tensor]
    #: Those of each wave.
    wave_losses: list[list[Tensor]]
    #: Indices into the trainable parameters (registration order) in the order in which EST 0's gradients became
    #: ready; at the home of EST 0 in a step without a layout order (the job's first), None elsewhere.
    ready_order: list[int] | None

    def set_ring(
        self,
        plan: pipeline_pb2.PipelinePlan,
        me: int,
        ranges: Ranges,
        links: Links,
        generation: int,
        ready_order: Sequence[int] | None,
    ) -> None:
        """Adopt a generation: its plan, this member's index, the ESTs of each member as home.

        Called between steps, with the plan's units in place: their buffers are EST 0's.
        """
        raise NotImplementedError

    def set_layout(self, ready_order: Sequence[int] | None) -> None:
        """Set the bucket layout from the next step on; None: the first step's."""
        raise NotImplementedError

    def begin_step(self, step: int) -> None:
        """Begin a step; also again, after `drop`."""
        raise NotImplementedError

    def run_wave(self, micro: int, batches: Mapping[int, MicroBatch], *, last: bool) -> Mapping[int, WaveEnd]:
        """Run one micro-batch of every EST through all stages; batches, result: by home EST of this member.

        last: it is the step's last wave. Raises what a unit raised, with a note that names EST, stage and
        unit; RingAborted or RingBroken; StepError, UnsupportedError for what is refused.
        """
        raise NotImplementedError

    def sum_gradients(self) -> None:
        """Wait for the sums: p.grad of held trainable parameters are the averages, as DDP leaves them.

        They are views of memory that the next step writes to. Raises as `run_wave`.
        """
        raise NotImplementedError

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
        raise NotImplementedError

    def any_member(self, flag: bool) -> bool:
        """True if the flag is set at any member: GradScaler's found_inf. Collective, after `sum_gradients`."""
        raise NotImplementedError

    def end_step(self, applied: bool) -> None:
        """End the step: the units' buffers are EST 0's, or without `applied` those at the step's start."""
        raise NotImplementedError

    def drop(self) -> None:
        """Discard the step in flight without waiting for anybody."""
        raise NotImplementedError

    def forward_only(self, inputs: Iterable[Any]) -> list[Any]:
        """Return the model's outputs for this member's inputs, in order: no gradients, buffers and generators
        are unchanged. Collective; every member may give another number, none too. The caller has put the units
        into eval mode."""
        raise NotImplementedError

    @property
    def unit_seconds(self) -> dict[int, tuple[float, float]]:
        """(forward, backward) seconds of one micro-batch by unit this member computes; medians of the last
        steps."""
        raise NotImplementedError

    def close(self) -> None:
        """Remove hooks and threads. Idempotent."""
        raise NotImplementedError
