"""All slots in this process: what a script without a master trains with.

The same weights and optimizers as at parameter servers, so one worker there has the same bits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np
import torch

from elastane.runtime.slots.dense import DenseMemory
from elastane.runtime.slots.model import PsArguments, model_parts
from elastane.runtime.slots.prepared import PreparedPs
from elastane.slots.access import PulledSlot, PulledSlots, PushedTask, PushOutcome, SlotAccess, Wanted
from elastane.tables.layout import PushPart
from elastane.tables.rates import Rates
from elastane.tables.slot_weights import SlotWeights
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

    def pull(self, lease: int, generation: int, wanted: Mapping[int, Wanted]) -> PulledSlots:
        seen = Pulled(0, self._version)
        return PulledSlots({slot: pulled(self._weights[slot], one, seen) for slot, one in wanted.items()})

    def push(self, task: PushedTask) -> PushOutcome:
        with as_at_servers():
            for slot, part in task.parts.items():
                apply(self._weights[slot], part, task.rates)
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


def pulled(weights: SlotWeights, wanted: Wanted, seen: Pulled) -> PulledSlot:
    """Return what a pull finds in a slot."""
    rows = [(table, len(ids)) for table, ids in wanted.rows]
    sizes = weights.layout.pulled_sections(wanted.dense, rows)
    sections = [np.empty(size, np.uint8).data for size in sizes]
    blocks = len(weights.layout.blocks) if wanted.dense else 0
    if blocks:
        weights.pull_dense(sections[:blocks])
    for (table, ids), section in zip(wanted.rows, sections[blocks:], strict=True):
        weights.pull_rows(table, ids, section)
    return PulledSlot(seen, sections)
