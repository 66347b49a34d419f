"""All slots in this process: what a script without a master trains with.

The same weights and optimizers as at parameter servers, so one worker there has the same bits.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from elastane.runtime.slots.dense import DenseMemory
from elastane.runtime.slots.model import PsArguments, model_parts
from elastane.runtime.slots.prepared import PreparedPs
from elastane.slots.access import PulledSlot, PulledSlots, PushedTask, PushOutcome, Wanted
from elastane.tables.slot_weights import SlotWeights
from elastane.tables.spec import ModelSpec
from elastane_slots.pushes import Pulled


def prepare_local(given: PsArguments, seed: int) -> tuple[PreparedPs, ModelSpec]:
    """Prepare a model for one process without parameter servers; return its parts as they would be there.

    Raises PsModelError, PsOptimizerError.
    """
    # Nothing depends on the number of slots; one takes the least time.
    parts = model_parts(given, slots=1, seed=seed)
    memory = DenseMemory(parts.spec, parts.dense)
    return PreparedPs(given, parts, memory, LocalSlots(parts.spec, memory), "refuse"), parts.spec


class LocalSlots:
    """Implements SlotAccess for one worker, whose every push is applied."""

    def __init__(self, spec: ModelSpec, memory: DenseMemory) -> None:
        self._weights = [SlotWeights(spec, slot) for slot in range(spec.slots)]
        for slot in memory.slots:
            self._weights[slot].initialise(memory.initial(slot))
        self._version = 0

    def pull(self, lease: int, generation: int, wanted: Mapping[int, Wanted]) -> PulledSlots:
        return PulledSlots({slot: self._pulled(slot, one) for slot, one in wanted.items()})

    def push(self, task: PushedTask) -> PushOutcome:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # as at parameter servers
        try:
            for slot, part in task.parts.items():
                weights = self._weights[slot]
                weights.layout.check_part(part)
                weights.apply(weights.prepare(part, task.rates), task.rates)
        finally:
            torch.set_num_threads(threads)
        self._version += 1
        return PushOutcome("done", versions=dict.fromkeys(task.parts, self._version))

    def _pulled(self, slot: int, wanted: Wanted) -> PulledSlot:
        weights = self._weights[slot]
        rows = [(table, len(ids)) for table, ids in wanted.rows]
        sizes = weights.layout.pulled_sections(wanted.dense, rows)
        sections = [np.empty(size, np.uint8).data for size in sizes]
        blocks = len(weights.layout.blocks) if wanted.dense else 0
        if blocks:
            weights.pull_dense(sections[:blocks])
        for (table, ids), section in zip(wanted.rows, sections[blocks:], strict=True):
            weights.pull_rows(table, ids, section)
        return PulledSlot(Pulled(0, self._version), sections)
