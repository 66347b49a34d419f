"""Forward and backward of a single micro-batch on one stage.

    plain        autograd keeps activations on the device
    checkpoint   only the input is kept; the forward runs again before its backward, with the generators and
                 buffers of the first run, so that BatchNorm counts once and dropout draws the same mask
    swap         activations are moved to host memory (`host_memory`)

The caller has set the process's generators to the EST's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from elastane.pipeline import refusals
from elastane.pipeline.boundary import Gradients, enter
from elastane.pipeline.est_buffers import EstBuffers
from elastane.pipeline.frames import Frame, copied, leaves, rebuilt
from elastane.pipeline.host_memory import HostMemory
from elastane.pipeline.unit_clock import UnitClock
from elastane.rng import Generators, Parts
from elastane.state.value_digests import digest_any
from elastane_common.errors import RepeatDiffersError, StepError
from elastane_planner.plan import Memory

#: Loss of the last stage: output of its last unit -> (reported loss, loss for backward).
Loss = Callable[[Any], tuple[Tensor, Tensor]]


@dataclass(slots=True)
class _Again:
    """State for running a forward again. parts: generator states before and after it."""

    tree: Any
    tensors: list[Tensor]
    wants_gradient: list[bool]
    loss: Loss | None
    before: Parts
    after: Parts
    buffers: list[Tensor]


@dataclass(slots=True)
class Stash:
    """State of a micro-batch kept between its forward and its backward on a stage.

    edges: graph edges of the outputs that require a gradient, in the order of the next stage's gradients.
    """

    edges: list[GradientEdge]
    gradients: Gradients
    again: _Again | None = None
    measured: bool = False


@dataclass(frozen=True, slots=True)
class StageOutput:
    """Result of a forward: the output or, on the last stage, the detached loss."""

    value: Any
    loss: Tensor | None


class StageRun:
    """One worker's stage.

    modules: of its units, by index. names: of all units. params: names of held parameters by storage address.
    owned, known: names of trainable parameters by id, of the stage and of the whole model.
    """

    def __init__(
        self,
        stage: int,
        modules: Mapping[int, nn.Module],
        names: Sequence[str],
        memory: Memory,
        buffers: EstBuffers,
        generators: Generators,
        clock: UnitClock,
        host: HostMemory | None,
        params: Mapping[int, str],
        owned: Mapping[int, str],
        known: Mapping[int, str],
    ) -> None:
        self.stage, self._modules, self._names, self._memory = stage, dict(modules), names, memory
        self._buffers, self._generators, self.clock, self._host = buffers, generators, clock, host
        self._params, self._owned, self._known = params, owned, known
        self._checked, self._last = False, max(modules)

    @property
    def name(self) -> str:
        """Name of the stage in messages."""
        return f"stage {self.stage}"

    @property
    def addresses(self) -> frozenset[int]:
        """Addresses of storages still used by the stage; the next stage must not write to their copies."""
        return self._buffers.addresses

    def forward(
        self, est: int, frame: Frame, loss: Loss | None, before: Parts, *, measured: bool, twice: bool = False
    ) -> tuple[StageOutput, Stash]:
        """Run the units and, on the last stage, the loss. frame: the input; its tensors join the graph.

        twice: first run everything without side effects, and compare. Raises RepeatDiffersError if a unit or
        the loss depends on state outside of its input, weights, buffers and generators.
        """
        first = self._first(est, frame, loss, before) if twice and self._memory != "swap" else None
        seen: list[str] | None = None if first is None else []
        again = None
        tensors = frame.tensors
        if self._memory == "checkpoint":
            tensors = [copied(tensor) for tensor in frame.tensors]
            start = self._buffers.start_of(est)
            again = _Again(frame.tree, frame.tensors, frame.wants_gradient, loss, before, {}, start)
        versions = [tensor._version for tensor in tensors]
        with self._buffers.running(est), self._keeping():
            given, gradients = enter(tensors, frame.wants_gradient)
            graphs = None if self._checked else refusals.UnitGraphs(self._known)
            value = self._units(rebuilt(frame.tree, given), measured and again is None, seen, graphs)
            told, root = loss(value) if loss is not None else (None, None)
            if loss is not None and measured and again is None:
                self.clock.end_loss(self._last)
        if graphs is not None and loss is not None:
            graphs.check_loss(self._modules[self._last], (told, root))
        if first is not None and seen is not None:
            self._compare(first, [*seen, digest_any(told)])
        refusals.check_written(tensors, frame.shared, versions, self.name)
        if not self._checked:
            refusals.check_graph(
                self.name, value if root is None else (value, root), gradients, self._owned, self._known
            )
            self._checked = True
        output = StageOutput(value if root is None else None, None if told is None else told.detach())
        if again is not None:
            again.after = self._generators.capture()
            return output, Stash([], Gradients(), again, measured)
        return output, Stash(_edges(value if root is None else root), gradients, None, measured)

    def _first(self, est: int, frame: Frame, loss: Loss | None, before: Parts) -> list[str]:
        """Run a forward without side effects; return digests of the units' outputs and of the loss."""
        seen: list[str] = []
        with self._buffers.again(self._buffers.start_of(est)):
            given, _ = enter([copied(tensor) for tensor in frame.tensors], frame.wants_gradient)
            value = self._units(rebuilt(frame.tree, given), False, seen)
            seen.append(digest_any(None if loss is None else loss(value)[0]))
        self._generators.exchange(before)
        return seen

    def _compare(self, first: Sequence[str], second: Sequence[str]) -> None:
        """Raise RepeatDiffersError for the first unit whose output differs, or for the loss."""
        names = [*(f"unit {self._label(unit)}" for unit in self._modules), "loss_fn"]
        for name, one, other in zip(names, first, second, strict=True):
            if one != other:
                raise RepeatDiffersError(
                    f"{name} was run twice from the same state, and its results differ: it keeps something"
                    " from one mini-batch to the next, and runs for several ESTs, on whichever worker",
                    hint="compute it from job.step, or make it a buffer of a unit",
                )

    def prepare_backward(self, stash: Stash) -> None:
        """Run the forward again if only the input was kept; leaves the generators unchanged."""
        again = stash.again
        if again is None:
            return
        stash.again = None
        present = self._generators.exchange(again.before)
        with self._buffers.again(again.buffers):
            given, stash.gradients = enter(again.tensors, again.wants_gradient)
            value = self._units(rebuilt(again.tree, given), stash.measured)
            root = again.loss(value)[1] if again.loss is not None else None
            if again.loss is not None and stash.measured:
                self.clock.end_loss(self._last)
        if self._generators.exchange(present) != again.after:
            raise StepError(
                f"{self.name} drew other random numbers when its forward ran again",
                hint="a unit's forward must depend on its input, weights, buffers and generators alone;"
                " or keep this stage's activations (no checkpoint)",
            )
        stash.edges = _edges(value if root is None else root)

    def backward(self, stash: Stash, gradients: Sequence[Tensor | None] | None) -> tuple[Tensor | None, ...]:
        """Run autograd from the next stage's gradients, or from the loss.

        Returns the gradients for the stage before, in the order of its tensors that require one.
        """
        roots = stash.edges
        given: Sequence[Tensor | None] = [None] * len(roots) if gradients is None else gradients
        if gradients is not None:
            chosen = [(edge, g) for edge, g in zip(roots, gradients, strict=True) if g is not None]
            roots, given = [edge for edge, _ in chosen], [g for _, g in chosen]
        if stash.measured and gradients is None:
            self.clock.begin_backward(self._last)
        if roots:
            with no_autocast():
                torch.autograd.backward(roots, given)
        if stash.measured:
            self.clock.end_backward()
        result = stash.gradients.values
        for gradient in result:
            if gradient is not None:
                refusals.no_sparse(gradient)
        return result

    def evaluate(self, value: Any) -> Any:
        """Run the units without building a graph."""
        with torch.no_grad():
            return self._units(value, False)

    @contextmanager
    def _keeping(self) -> Iterator[None]:
        """Context manager that keeps saved tensors in host memory if the plan says so."""
        if self._memory != "swap" or self._host is None:
            yield
            return
        with self._host.keeping(self._stays):
            yield

    def _stays(self, tensor: Tensor) -> bool:
        address = tensor.untyped_storage().data_ptr()
        return address in self._params or address in self._buffers.addresses

    def _units(
        self,
        value: Any,
        measured: bool,
        seen: list[str] | None = None,
        graphs: refusals.UnitGraphs | None = None,
    ) -> Any:
        """Run the units. seen: receives a digest of each output. graphs: checks the graph of each unit."""
        forget_casts()
        for unit, module in self._modules.items():
            try:
                value = self.clock.forward(unit, module, value) if measured else module(value)
                if not self._checked:
                    refusals.check_output(self._label(unit), value, self._params)
                if graphs is not None:
                    graphs.check_unit(self._label(unit), module, value)
                if seen is not None:
                    seen.append(digest_any(value))
            except Exception as error:
                error.add_note(f"  in unit {self._label(unit)}")
                raise
        return value

    def _label(self, unit: int) -> str:
        name = self._names[unit]
        return f"{unit} ({name})" if name and name != str(unit) else str(unit)


def _edges(value: Any) -> list[GradientEdge]:
    """Return the graph edges of a value's tensors that require a gradient; the tensors can be freed."""
    return [get_gradient_edge(tensor) for tensor in leaves(value) if tensor.requires_grad]


def forget_casts() -> None:
    """Clear autocast's cache of cast weights, as the end of its `with` block does.

    With weights cached by another micro-batch, gradients would become ready in another order.
    """
    if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
        torch.clear_autocast_cache()


@contextmanager
def no_autocast() -> Iterator[None]:
    """Context manager for backward outside of the script's autocast, as after a stock `with autocast():`."""
    with ExitStack() as stack:
        for device in ("cpu", "cuda"):
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        yield
