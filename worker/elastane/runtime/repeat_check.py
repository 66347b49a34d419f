"""Run one turn of the script twice, now and then, and compare the gradients.

A turn may be run again: after a ring change, in a joining worker, for the sentinel. From the same context it
must then give the same gradients. Values that the source shows to be carried from turn to turn are refused at
their line (`loop_carried`); a counter in a hook, a wrapped function, a library or code without source is not
seen there. So the worker's first EST runs its turn twice in one step: first as a guest without any effect,
then for real, with the same mini-batches and the same generators. Without data workers its first mini-batch
is made twice as well. This is done early in each of the worker's first two loops, and, for effects that begin
later, after 64, 128, 256 ... steps: a worker that trains for weeks does it about twenty times.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch.utils._pytree import tree_flatten

from elastane.collective.gradient_digest import GradientDigest
from elastane.context import EstContext
from elastane.data.source import BatchInfo, BatchSource
from elastane.registry import Registry
from elastane.rng import Generators, Parts
from elastane.runtime.est_step import EstStep
from elastane.runtime.turn import Turn
from elastane.state.digests import same_bits
from elastane_common.errors import RepeatDiffersError

LOOPS: Final = 2
"""Two, because the second epoch may run other code: `if epoch > 0`."""
STEPS_BEFORE: Final = 2
LATER_STEPS: Final = 64
"""Number of the worker's steps after which a turn is repeated again, and after each doubling of it."""


class RepeatTimes:
    """Schedule of repeated runs: early in a worker's first two loops, and after 64, 128, ... of its steps.

    enabled=False: never.
    """

    def __init__(self, *, enabled: bool) -> None:
        self._loops = LOOPS if enabled else 0
        self._next_steps: float = LATER_STEPS if enabled else math.inf
        self._due, self._steps = False, 0

    def begin_loop(self) -> None:
        """Note that a loop over the loader begins."""
        self._due = self._loops > 0

    def begin_step(self) -> bool:
        """Begin a step; True if it is time. Not in the first steps, which initialize values on first use."""
        self._steps += 1
        return (self._due and self._steps > STEPS_BEFORE) or self._steps >= self._next_steps

    def done(self) -> None:
        """Note that it was run twice."""
        if self._due:
            self._loops, self._due = self._loops - 1, False
        while self._steps >= self._next_steps:
            self._next_steps *= 2


@dataclass
class _Batch:
    """A mini-batch of the first run.

    states: RNG states after it was made; position: the loader's after it.
    """

    batch: Any
    info: BatchInfo
    states: Parts
    position: Parts


class RepeatCheck:
    """Wraps the trainer's calls of its loader. enabled=False: passes them through."""

    def __init__(
        self, source: BatchSource, generators: Generators, registry: Registry, *, enabled: bool
    ) -> None:
        self._source, self._generators, self._registry = source, generators, registry
        self._times = RepeatTimes(enabled=enabled)
        self._guest: EstStep | None = None
        self._kept: list[_Batch] = []
        #: Index of the mini-batch that the second run is at; None: it has not begun.
        self._place: int | None = None

    def begin_loop(self) -> None:
        """Note that a loop over the loader begins."""
        self._times.begin_loop()

    def turns(self, turns: list[EstStep], contexts: Mapping[int, EstContext]) -> list[EstStep]:
        """Return a step's turns, with a guest turn of the first EST in front if a comparison is due.

        Not due where the sentinel uses the first turn: as a guest, or for a digest of it.
        """
        self._guest, self._kept, self._place = None, [], None
        own = turns[0]
        if not self._times.begin_step() or own.guest is not None or own.digest is not None:
            return turns
        own.repeated, own.digest = True, GradientDigest()
        context = contexts[own.rank]
        self._guest = EstStep(own.state, own.rank, 0, ends=False, batches=own.batches, guest=context)
        self._guest.repeated, self._guest.digest = True, GradientDigest()
        return [self._guest, *turns]

    def begin(self, est_step: EstStep) -> tuple[Any, BatchInfo]:
        """Return the next mini-batch of the turn's EST, as `BatchSource.begin`."""
        if not est_step.repeated:
            return self._source.begin(est_step.rank)
        if est_step is self._guest:
            before = self._states()
            batch, info = self._source.begin(est_step.rank)
            states = self._states()
            # Only the first mini-batch: making each one twice would double the cost of the data pipeline.
            if not self._kept and self._source.remakes(est_step.rank):
                self._put(before)
                again = self._source.remake(est_step.rank, info)
                drawn = self._states()
                self._put(states)
                compare_batches(est_step, batch, again, drew_the_same=drawn == states)
            self._kept.append(_Batch(batch, info, states, {}))
            return _copied(batch), info
        # The second run gets the same batches, with the generators as they were after making each of them.
        self._place = 0 if self._place is None else self._place + 1
        kept = self._kept[self._place]
        self._put(kept.states)
        return kept.batch, kept.info

    def finish(self, est_step: EstStep) -> Parts:
        """Return the loader's position after the mini-batch, as `BatchSource.finish`."""
        if not est_step.repeated:
            return self._source.finish(est_step.rank)
        if est_step is self._guest:
            self._kept[-1].position = self._source.finish(est_step.rank)
            return self._kept[-1].position
        assert self._place is not None
        return self._kept[self._place].position

    def compare(self, est_step: EstStep) -> None:
        """Compare a finished turn with its first run. Raises RepeatDiffersError if the gradients differ."""
        if not est_step.repeated or est_step is self._guest or self._guest is None:
            return
        first, second = self._guest.digest, est_step.digest
        assert first is not None and second is not None
        if first.value() != second.value():
            raise RepeatDiffersError(
                f"the turn of EST {est_step.rank} in step {est_step.step} was run twice from the same state, "
                "and its gradients differ: they depend on something that the script keeps from turn to turn",
                hint=(
                    "compute it from job.step, make it a buffer of the model, or pass it to job.register "
                    "(a generator of the script's, too); `elastane verify` shows where runs diverge"
                ),
                virtual_rank=est_step.rank,
            )
        self._times.done()

    def _states(self) -> Parts:
        return self._generators.capture() | self._registry.capture()

    def _put(self, states: Parts) -> None:
        self._generators.restore(states)
        self._registry.restore(states)


def compare_batches(est_step: Turn, first: Any, second: Any, *, drew_the_same: bool) -> None:
    """Raise RepeatDiffersError if a mini-batch that was made twice differs, or drew other random numbers."""
    found, again = tree_flatten(first), tree_flatten(second)
    same = found[1] == again[1] and all(map(_same, found[0], again[0]))
    if same and drew_the_same:
        return
    where = f"a mini-batch of EST {est_step.rank} in step {est_step.step}"
    twice = f"{where} was loaded twice from the same state and"
    if same:
        raise RepeatDiffersError(
            f"{twice} drew other random numbers: the dataset caches samples made with random numbers, and "
            "another worker would keep others",
            hint="cache samples before random transforms, or build the whole cache at the start",
            virtual_rank=est_step.rank,
        )
    raise RepeatDiffersError(
        f"{twice} differs: the dataset, transforms, sampler or collate_fn keep something from one "
        "mini-batch to the next",
        hint=(
            "let a sample depend only on its index, the global generators and registered objects, not on "
            "the time or on how many samples were read before"
        ),
        virtual_rank=est_step.rank,
    )


def _same(first: Any, second: Any) -> bool:
    """True if two leaves have the same bits, or are neither tensors nor numbers and cannot be compared."""
    if isinstance(first, torch.Tensor) and isinstance(second, torch.Tensor):
        return first.layout != torch.strided or (first.dtype == second.dtype and same_bits(first, second))
    if isinstance(first, float) and isinstance(second, float):
        return first == second or (first != first and second != second)
    if isinstance(first, int | str | bytes):
        return type(first) is type(second) and bool(first == second)
    if hasattr(first, "tobytes") and hasattr(second, "tobytes"):  # NumPy arrays, without importing NumPy
        return bool(first.tobytes() == second.tobytes())
    return True


def _copied(batch: Any) -> Any:
    """Return a deep copy, because the body may write to its mini-batch.

    Returns the original if it cannot be copied.
    """
    try:
        return copy.deepcopy(batch)
    except (TypeError, ValueError, RuntimeError, AttributeError, NotImplementedError, copy.Error):
        return batch
