"""Negative controls of the pipeline's parity matrix: with a rule broken, the bits differ.

If they did not, the matrix could not show that the executor keeps the rule. Each control breaks one in all
cuts of a model into two stages.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from elastane.pipeline import stage_sums
from elastane.pipeline.est_buffers import EstBuffers
from elastane.pipeline.frames import Frame
from elastane.pipeline.stage_blocks import StageBlocks
from elastane.pipeline.stage_run import StageRun
from elastane.rng import Parts
from elastane_planner.plan import Plan, Stage
from parity.pipeline_models import MODELS
from parity.pipeline_runs import LocalJob, Trace


def _contiguous(frame: Frame) -> Frame:
    """A frame whose tensors are sent without their strides."""
    frame.tensors = [tensor.detach().contiguous() for tensor in frame.tensors]
    return frame


def _same(frame: Frame) -> Frame:
    return frame


def _like_leaf(gradient: Tensor | None, leaf: Tensor) -> Tensor | None:
    """The gradient as a leaf's `.grad` would be laid out."""
    if gradient is None:
        return None
    return torch.empty_strided(leaf.shape, leaf.stride(), dtype=leaf.dtype).copy_(gradient)


@contextmanager
def _leaf_gradients() -> Any:
    """What goes back to the stage before is laid out like the stage's input."""
    forward, backward = StageRun.forward, StageRun.backward
    inputs: dict[int, list[Tensor]] = {}

    def watched_forward(self: StageRun, est: int, frame: Frame, *args: Any, **kwargs: Any) -> Any:
        leaves = [tensor for tensor, wants in zip(frame.tensors, frame.wants_gradient, strict=True) if wants]
        output, stash = forward(self, est, frame, *args, **kwargs)
        inputs[id(stash)] = leaves
        return output, stash

    def watched_backward(self: StageRun, stash: Any, gradients: Any) -> Any:
        found = backward(self, stash, gradients)
        return tuple(map(_like_leaf, found, inputs.pop(id(stash))))

    with (
        patch.object(StageRun, "forward", watched_forward),
        patch.object(StageRun, "backward", watched_backward),
    ):
        yield


@contextmanager
def _reversed_additions() -> Any:
    """An element's gradients are added in the reverse of gloo's order."""
    order = stage_sums.canonical_order
    with patch.object(stage_sums, "canonical_order", lambda chunk, ranks: order(chunk, ranks)[::-1]):
        yield


@contextmanager
def _rank_order() -> Any:
    """Gradients are added in the order of the ranks, whatever the chunk."""
    with patch.object(stage_sums, "canonical_order", lambda chunk, ranks: list(range(ranks))):
        yield


@contextmanager
def _generator_of_the_stage() -> Any:
    """A stage's units draw from one generator for all ESTs, seeded once."""
    as_est = StageBlocks._as_est
    states: dict[int, Any] = {}

    @contextmanager
    def shared(self: Any, est: int, micro: int, what: str, parts: Parts) -> Any:
        generators = self._generators
        with as_est(self, est, micro, what, parts) as present:
            generators.restore(states.get(id(self), generators.capture()))
            with patch.object(generators, "exchange", lambda _: generators.capture()):
                yield present
            states[id(self)] = generators.exchange(present)

    with patch.object(StageBlocks, "_as_est", shared):
        yield


@contextmanager
def _counted_twice() -> Any:
    """A forward that runs again changes the ESTs' own buffers."""

    @contextmanager
    def again(self: EstBuffers, start: list[Tensor]) -> Any:
        self._show(next(iter(self._of_est.values())))
        yield

    with patch.object(EstBuffers, "again", again):
        yield


@contextmanager
def _buffers_copied() -> Any:
    """An EST's buffers are written into the tensors that the modules have, as `load_state_dict` does."""
    present = EstBuffers._present

    def show(self: EstBuffers, tensors: list[Tensor]) -> None:
        self._shown = True
        with torch.no_grad():
            for own, tensor in zip(present(self), tensors, strict=True):
                if own is not tensor:
                    own.copy_(tensor)

    def taken(self: EstBuffers) -> list[Tensor]:
        return [tensor.clone() for tensor in present(self)]

    with patch.object(EstBuffers, "_show", show), patch.object(EstBuffers, "_present", taken):
        yield


@contextmanager
def _nothing() -> Any:
    yield


@dataclass(frozen=True)
class Control:
    """A broken rule. changed: what becomes of frames; broken: a context in which the rule is broken; error:
    what autograd says instead of computing other bits."""

    title: str
    model: str
    broken: Callable[[], Any] = _nothing
    changed: Callable[[Frame], Frame] = _same
    memory: Any = "plain"
    error: str = ""

    def differing(self, expected: Trace, every: int = 1) -> list[list[str]]:
        """Return what differs from stock's trace, by cut. every: every so many cuts alone."""
        model = MODELS[self.model]
        units = len(model.units())
        found = []
        for cut in range(1, units, every):
            plan = Plan((Stage(0, cut, (0,), self.memory), Stage(cut, units, (1,), self.memory)))
            job = LocalJob(model, changed=self.changed)
            with self.broken():
                job.set_plan(plan, 2)
                try:
                    found.append(job.run().differences(expected))
                except RuntimeError as error:
                    if not self.error or self.error not in str(error):
                        raise
                    found.append([str(error)])
                finally:
                    job.close()
        return found


CONTROLS = (
    Control("contiguous frames", "channels-last", changed=_contiguous),
    Control("contiguous frames", "transposing", changed=_contiguous),
    Control("gradients laid out as a leaf's .grad", "transposing", broken=_leaf_gradients),
    Control("additions in reverse", "mlp", broken=_reversed_additions),
    Control("additions by rank", "mlp", broken=_rank_order),
    Control("a generator by stage", "gpt", broken=_generator_of_the_stage),
    Control("a generator by stage", "cnn", broken=_generator_of_the_stage),
    Control("BatchNorm counts twice", "cnn", broken=_counted_twice, memory="checkpoint"),
    Control(
        "buffers copied into those that are saved",
        "cnn",
        broken=_buffers_copied,
        error="modified by an inplace operation",
    ),
)

#: The same without a broken rule: nothing differs.
NOTHING_BROKEN = tuple(
    Control("no rule broken", model, memory=memory)
    for model, memory in dict.fromkeys((control.model, control.memory) for control in CONTROLS)
)
