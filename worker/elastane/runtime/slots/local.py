"""All slots in this process: what a script without a master trains with.

The same weights and optimizers as at parameter servers, so one worker there has the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import torch

from elastane.runtime.slots.dense import DenseMemory
from elastane.runtime.slots.model import PsArguments, model_parts
from elastane.runtime.slots.prepared import PreparedPs
from elastane.slots.access import PulledSlots, PushedTask, PushOutcome, SlotAccess, Wanted
from elastane.tables.by_slot import check_gradients
from elastane.tables.layout import PushPart
from elastane.tables.rates import Rates
from elastane.tables.slot_weights import SlotWeights, apply_all, prepare_all
from elastane.tables.spec import ModelSpec
from elastane_slots.pushes import Pulled


def prepare_local(given: PsArguments, seed: int, *, slots: int = 1) -> tuple[PreparedPs, LocalSlots]:
    """Prepare a model for one process without parameter servers; return its weights as they would be there.

    slots: nothing depends on their number; one takes the least time. Raises PsModelError, PsOptimizerError.
    """
    parts = model_parts(given, slots=slots, seed=seed)
    memory = DenseMemory(parts.spec, parts.dense)
    local = LocalSlots(parts.spec, memory)
    return PreparedPs(given, parts, memory, local, "refuse"), local


class LocalSlots(SlotAccess):
    """Implements SlotAccess for one worker, whose every push is applied."""

    def __init__(self, spec: ModelSpec, memory: DenseMemory) -> None:
        self.spec = spec
        self._weights = [SlotWeights(spec, slot) for slot in range(spec.slots)]
        for slot in memory.slots:
            self._weights[slot].initialise(memory.initial(slot))
        self._version = 0

    def digests(self) -> list[str]:
        """By slot, SHA-256 of weights and optimizer."""
        return [weights.digest() for weights in self._weights]

    def pull(self, lease: int, generation: int, wanted: Wanted) -> PulledSlots:
        seen = dict.fromkeys(wanted.slots, Pulled(0, self._version))
        return pulled(self.spec, self._weights.__getitem__, wanted, seen)

    def push(self, task: PushedTask) -> PushOutcome:
        check_gradients(self.spec.layouts, task.gradients)
        with as_at_servers():
            weights = dict(enumerate(self._weights))
            apply_all(prepare_all(weights, task.gradients, task.rates), task.rates)
        self._version += 1
        return PushOutcome("done", versions=dict.fromkeys(range(self.spec.slots), self._version))


@contextmanager
def as_at_servers() -> Iterator[None]:
    """Apply gradients in one thread, as parameter servers do: it decides the bits."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def apply(weights: SlotWeights, part: PushPart, rates: Rates, scale: float = 1.0) -> None:
    """Apply a task's gradients to a slot. scale: of learning rates."""
    weights.layout.check_part(part)
    weights.apply(weights.prepare(part, rates), rates, scale)


def pulled(
    spec: ModelSpec, weights_of: Callable[[int], SlotWeights], wanted: Wanted, seen: dict[int, Pulled]
) -> PulledSlots:
    """Return what a pull finds in slots."""
    found = PulledSlots(seen)
    for slot in wanted.dense:
        sections = [np.empty(size, np.uint8).data for size in spec.layouts[slot].block_sizes]
        weights_of(slot).pull_dense(sections)
        found.blocks[slot] = sections
    for one in wanted.rows:
        row_bytes = spec.layouts[0].wire_rows[one.table]
        for slot in one.slots:
            ids = one.of_slot(slot)
            rows = np.empty(len(ids) * row_bytes, np.uint8).data
            weights_of(slot).pull_rows(one.table, ids, rows)
            found.rows.append((one.table, ids, rows))
    return found
