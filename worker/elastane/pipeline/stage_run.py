"""Forward and backward of single micro-batches on one stage.

    plain        autograd keeps what backward needs
    checkpoint   only the input is kept; the forward runs again before its backward, with the generators and
                 buffers of the first run, so that BatchNorm counts once and dropout drops the same
    swap         what autograd keeps goes to the host's memory (`host_memory`)

Generators are the process's: whoever calls has set them to the EST's.
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

#: The loss of the last stage, from the output of its last unit: (loss that is told, loss of backward).
Loss = Callable[[Any], tuple[Tensor, Tensor]]


@dataclass(slots=True)
class _Again:
    """What a forward needs to run again. parts: generators before it and after it."""

    tree: Any
    tensors: list[Tensor]
    wants_gradient: list[bool]
    loss: Loss | None
    before: Parts
    after: Parts
    buffers: list[Tensor]


@dataclass(slots=True)
class Stash:
    """What is kept of a micro-batch between its forward and its backward on a stage.

    edges: of what was returned and requires a gradient, in the order of the next stage's gradients.
    """

    edges: list[GradientEdge]
    gradients: Gradients
    again: _Again | None = None
    measured: bool = False


@dataclass(frozen=True, slots=True)
class StageOutput:
    """What a forward gives: the output, or, on the last stage, the loss (detached)."""

    value: Any
    loss: Tensor | None


class StageRun:
    """One worker's stage.

    modules: of its units by index; names: of all units; params: names of held parameters by address; owned,
    known: names of trainable parameters by id, of the stage and of the model.
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
        """The stage in messages."""
        return f"stage {self.stage}"

    @property
    def addresses(self) -> frozenset[int]:
        """Addresses of storages that the stage goes on using: the next stage must not write to copies of
        them."""
        return self._buffers.addresses

    def forward(
        self, est: int, frame: Frame, loss: Loss | None, before: Parts, *, measured: bool, twice: bool = False
    ) -> tuple[StageOutput, Stash]:
        """Run the units, and the loss on the last stage. frame: the input; its tensors become the graph's.

        twice: run them first without any effect, and compare. Raises RepeatDiffersError if a unit or the loss
        depends on what is kept outside of its input, weights, buffers and generators.
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
        """Run a forward of which nothing is left; returns digests of the units' outputs, and of the loss."""
        seen: list[str] = []
        with self._buffers.again(self._buffers.start_of(est)):
            given, _ = enter([copied(tensor) for tensor in frame.tensors], frame.wants_gradient)
            value = self._units(rebuilt(frame.tree, given), False, seen)
            seen.append(digest_any(None if loss is None else loss(value)[0]))
        self._generators.exchange(before)
        return seen

    def _compare(self, first: Sequence[str], second: Sequence[str]) -> None:
        """Raise RepeatDiffersError for the first unit whose output was another one, or the loss."""
        names = [*(f"unit {self._label(unit)}" for unit in self._modules), "loss_fn"]
        for name, one, other in zip(names, first, second, strict=True):
            if one != other:
                raise RepeatDiffersError(
                    f"{name} was run twice from the same state, and its results differ: it keeps something"
                    " from one mini-batch to the next, and runs for several ESTs, on whichever worker",
                    hint="compute it from job.step, or make it a buffer of a unit",
                )

    def prepare_backward(self, stash: Stash) -> None:
        """Run the forward again where only the input was kept; the generators are as before it."""
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
        """Run autograd from what the next stage sent back, or from the loss; returns what goes to the stage
        before, in the order of those of its tensors that want a gradient."""
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
        """Run the units without a graph."""
        with torch.no_grad():
            return self._units(value, False)

    @contextmanager
    def _keeping(self) -> Iterator[None]:
        """Keep saved tensors on the host where the plan says so."""
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
        """Run the units. seen: gets a digest of each one's output; graphs: checks the graph of each."""
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
    """Return where the gradients of a value's tensors go that require one; the tensors can be freed."""
    return [get_gradient_edge(tensor) for tensor in leaves(value) if tensor.requires_grad]


def forget_casts() -> None:
    """Forget the weights that autocast has cast for another micro-batch, as the end of its `with` block does.

    Used again, they would make the gradients ready in another order.
    """
    if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
        torch.clear_autocast_cache()


@contextmanager
def no_autocast() -> Iterator[None]:
    """Backward runs in this context outside of the script's autocast, as after a stock `with autocast():`."""
    with ExitStack() as stack:
        for device in ("cpu", "cuda"):
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        yield
