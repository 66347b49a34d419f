"""Measures time and memory of each unit of a model on this machine, for the planner.

Units are measured one at a time, each for several steps, and only the unit being measured is held, so that a
model too large for any single device can be profiled. A unit's outputs are kept as the next unit's inputs.
Backward gets random gradients, because times depend on shapes and not on values.

    forward, backward   medians over the steps, including the device's queue; the last unit includes the loss
    boundary            bytes of the unit's output tensors
    activations         bytes kept for backward, without parameters: includes the unit's input if it or the
                        unit before saves it, excludes its output, which is the next unit's input
    workspace           peak of further bytes during a forward or backward
    optimizer           bytes of state after a step
"""

from __future__ import annotations

import enum
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from elastane.pipeline.allocations import Allocations
from elastane.pipeline.units import Units
from elastane.state.unit_optimizer import UnitOptimizer
from elastane_common.errors import UnsupportedError
from elastane_planner.profile import Profile, UnitProfile

STEPS_MIN: Final = 10
WARM_UP_STEPS: Final = 2
BOUNDARIES_BYTES_MAX: Final = 1 << 30
"""Limit of bytes of outputs kept for the next unit; with larger outputs, fewer batches are used in turn."""


class ProfileError(UnsupportedError):
    """A script's pipeline cannot be profiled."""

    code = "ELA397"


@dataclass(frozen=True)
class Measurement:
    """A profile, with the spread of its times by unit: (75 % - 25 %) / median of forward and of backward.

    samples: in a micro-batch (first dimension of its first tensor); 0 if it has no tensor.
    """

    profile: Profile
    spread: tuple[float, ...]
    samples: int


def profile_units(
    units: Units,
    batches: Iterable[tuple[Any, Any]],
    loss_fn: Callable[[Any, Any], Tensor],
    *,
    steps: int = STEPS_MIN,
    optimizer: UnitOptimizer | None = None,
    told: Callable[[int], None] | None = None,
) -> Measurement:
    """Measure every unit on (input, target) micro-batches, of which at most `steps` are taken.

    No unit is held afterwards, and initial weights are restored before each unit, so the process may train
    after this; only its generators have advanced. told: called with each unit's index before it is measured.
    Raises ProfileError without a batch; a unit's own exception, with a note that names the unit.
    """
    taken = [batch for _, batch in zip(range(max(1, steps)), batches, strict=False)]
    if not taken:
        raise ProfileError("the loader has no batch to profile with", hint="give the job its dataset")
    inputs: list[Any] = [given for given, _ in taken]
    samples = samples_of(inputs[0])
    profiles: list[UnitProfile] = []
    spreads: list[float] = []
    known: list[_Known] = []
    for unit in range(units.count):
        if told is not None:
            told(unit)
        loss = (
            (lambda output, number: loss_fn(output, _moved(taken[number][1], output)))
            if unit == units.count - 1
            else None
        )
        clock = _UnitClock(units, unit, loss, known)
        try:
            with _holding(units, unit, optimizer):
                measured, inputs = clock.measure(inputs, steps, optimizer)
        except Exception as error:
            error.add_note(f"in unit {unit} ({units.names[unit]}), which was being profiled")
            raise
        profiles.append(measured)
        spreads.append(clock.spread)
        known = clock.known
    return Measurement(Profile(tuple(profiles)), tuple(spreads), samples)


def samples_of(given: Any) -> int:
    """Return the first dimension of the first tensor in a micro-batch's input; 0 without one."""
    return next((tensor.shape[0] for tensor in _tensors(given) if tensor.dim()), 0)


def resized(batch: Any, samples: int) -> Any:
    """Return a micro-batch with another number of samples: the first ones, or all of them repeated.

    Cuts or repeats all tensors with the same first dimension as the first tensor. Raises ProfileError if the
    batch has no such tensor.
    """
    present = samples_of(batch)
    if not present:
        raise ProfileError(
            "the micro-batch has no samples that could be counted",
            hint="profile without --micro-batch-sizes, once for each batch size of the script",
        )

    def cut(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor) or not leaf.dim() or leaf.shape[0] != present:
            return leaf
        return torch.cat([leaf] * -(-samples // present))[:samples] if samples > present else leaf[:samples]

    return pytree.tree_map(cut, batch)


class _Known(enum.Enum):
    """State of a tensor between two units: unknown, saved by its producer, or counted in a unit's bytes."""

    NOTHING = enum.auto()
    SAVED = enum.auto()
    COUNTED = enum.auto()


class _UnitClock:
    """Runs one unit repeatedly. loss: for the last unit, (output, number of the batch) -> loss.

    known: state of its input tensors; after `measure`, of its output tensors.
    """

    def __init__(
        self, units: Units, unit: int, loss: Callable[[Any, int], Tensor] | None, known: list[_Known]
    ) -> None:
        self.known = known
        self._units, self._unit, self._module, self._loss = units, unit, units.module(unit), loss
        self._first = unit == 0
        self._device = next((p.device for p in units.parameters), torch.device("cpu"))
        self.spread = 0.0

    def measure(
        self, inputs: Sequence[Any], steps: int, optimizer: UnitOptimizer | None
    ) -> tuple[UnitProfile, list[Any]]:
        """Return the unit's figures, and its outputs, one for each input."""
        forward: list[float] = []
        backward: list[float] = []
        boundary: list[int] = []
        outputs: list[Any] = []
        kept = 0
        activations = self._activations(inputs[0])
        workspace = self._workspace(inputs[0])
        for step in range(-WARM_UP_STEPS, max(1, steps)):
            number = step % len(inputs)
            output, seconds = self._run(inputs[number], number)
            if step < 0:
                continue
            forward.append(seconds[0])
            backward.append(seconds[1])
            size = _nbytes(output)
            boundary.append(size)
            if len(outputs) == number and (not outputs or kept + size <= BOUNDARIES_BYTES_MAX):
                outputs.append(output)
                kept += size
        self.spread = max(_spread(forward), _spread(backward))
        profile = UnitProfile(
            name=self._units.names[self._unit],
            forward_seconds=statistics.median(forward),
            backward_seconds=statistics.median(backward),
            parameter_bytes=self._units.parameter_bytes(self._unit),
            optimizer_bytes=self._optimizer_bytes(optimizer),
            boundary_bytes=int(statistics.median_high(boundary)),
            activation_bytes=activations,
            buffer_bytes=self._units.buffer_bytes(self._unit),
            tie=self._units.ties[self._unit],
            workspace_bytes=workspace,
        )
        return profile, outputs

    def _run(self, given: Any, number: int) -> tuple[Any, tuple[float, float]]:
        """Return the detached output, and the seconds of forward and of backward."""
        entered = self._entered(given)
        for parameter in self._module.parameters():
            parameter.grad = None
        began = self._now()
        output = self._module(entered)
        ends = output if self._loss is None else self._loss(output, number)
        done = self._now()
        wanted = [tensor for tensor in _tensors(ends) if tensor.requires_grad]
        gradients = [torch.randn_like(tensor) for tensor in wanted]
        backward_began = self._now()
        if wanted:
            torch.autograd.backward(wanted, gradients)
        ended = self._now()
        return pytree.tree_map(_detached, output), (done - began, ended - backward_began)

    def _activations(self, given: Any) -> int:
        """Return the bytes kept for backward, and record the state of the output tensors."""
        entered = self._entered(given)
        inputs = [_storage(tensor) for tensor in _tensors(entered)]
        weights = {_storage(t) for t in (*self._module.parameters(), *self._module.buffers())}
        saved: dict[int, Tensor] = {}

        def keep(tensor: Tensor) -> Tensor:
            if _storage(tensor) not in weights:
                saved.setdefault(_storage(tensor), tensor)
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            output = self._module(entered)
            ends = output if self._loss is None else self._loss(output, 0)
        known = dict(zip(inputs, self.known or [_Known.NOTHING] * len(inputs), strict=True))
        outputs = [_storage(tensor) for tensor in _tensors(output)]
        within = saved.keys() - known.keys() - (set(outputs) if self._loss is None else set())
        counted = sum(saved[storage].untyped_storage().nbytes() for storage in within)
        for storage, tensor in zip(inputs, _tensors(entered), strict=True):
            if known[storage] is _Known.SAVED or (known[storage] is _Known.NOTHING and storage in saved):
                counted += tensor.untyped_storage().nbytes()
                known[storage] = _Known.COUNTED
        self.known = [
            known.get(storage, _Known.SAVED if storage in saved else _Known.NOTHING) for storage in outputs
        ]
        del ends
        return counted

    def _workspace(self, given: Any) -> int:
        """Return the peak of bytes during a forward or backward, without those that remain after it.

        Parameter gradients are removed as soon as they are computed, as in the executor.
        """
        hooks = [
            parameter.register_post_accumulate_grad_hook(_without_gradient)
            for parameter in self._module.parameters()
            if parameter.requires_grad
        ]
        try:
            entered = self._entered(given)
            with Allocations(self._device) as made:
                output = self._module(entered)
                ends = output if self._loss is None else self._loss(output, 0)
                made.mark()
                wanted = [tensor for tensor in _tensors(ends) if tensor.requires_grad]
                if wanted:
                    torch.autograd.backward(wanted, [torch.ones_like(tensor) for tensor in wanted])
        finally:
            for hook in hooks:
                hook.remove()
        return made.bytes_most - made.bytes_marked

    def _entered(self, given: Any) -> Any:
        """Return an input as units get it within a model: a non-leaf, which may be changed in place."""

        def enter(leaf: Any) -> Any:
            if not isinstance(leaf, Tensor):
                return leaf
            copied = leaf.detach().to(self._device, copy=True)
            if self._first or not (leaf.is_floating_point() or leaf.is_complex()):
                return copied
            return copied.requires_grad_(True).clone()  # non-leaf: the unit may write to it

        return pytree.tree_map(enter, given)

    def _optimizer_bytes(self, optimizer: UnitOptimizer | None) -> int:
        if optimizer is None:
            return 0
        with torch.no_grad():
            for place in self._units.owned(self._unit):
                parameter = self._units.parameters[place]
                if parameter.requires_grad and parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
        optimizer.optimizer.step()
        return _nbytes(optimizer.export_unit(self._unit))

    def _now(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter()


class _holding:  # noqa: N801 - a context manager, used like a function
    """Context manager: holds a unit and those tied to it, with initial values; releases them afterwards."""

    def __init__(self, units: Units, unit: int, optimizer: UnitOptimizer | None) -> None:
        self._units, self._unit, self._optimizer = units, unit, optimizer
        self._wanted = units.tied_with({unit})

    def __enter__(self) -> None:
        self._units.hold(self._wanted)
        for unit in sorted(self._wanted):
            self._units.initialise(unit)
        if self._optimizer is not None:
            self._optimizer.hold({self._unit}, {self._unit})
            self._optimizer.initialise(self._unit)

    def __exit__(self, *_: object) -> None:
        if self._optimizer is not None:
            self._optimizer.hold((), ())
        self._units.hold(())


def _without_gradient(parameter: Tensor) -> None:
    parameter.grad = None


def _tensors(tree: Any) -> Iterator[Tensor]:
    return (leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, Tensor))


def _nbytes(tree: Any) -> int:
    return sum(tensor.nbytes for tensor in _tensors(tree))


def _storage(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _moved(tree: Any, like: Any) -> Any:
    """Return the target moved to the device of `like`."""
    device = next((tensor.device for tensor in _tensors(like)), None)
    return pytree.tree_map(lambda leaf: leaf.to(device) if isinstance(leaf, Tensor) else leaf, tree)


def _detached(leaf: Any) -> Any:
    return leaf.detach() if isinstance(leaf, Tensor) else leaf


def _spread(seconds: Sequence[float]) -> float:
    """Return (third quartile - first quartile) / median; 0 if the median is 0."""
    middle = statistics.median(seconds)
    if len(seconds) < 2 or not middle:
        return 0.0
    quarters = statistics.quantiles(seconds, n=4, method="inclusive")
    return (quarters[2] - quarters[0]) / middle
