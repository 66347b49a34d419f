"""What one task, or an evaluation, has pulled."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from elastane.runtime.slots.dense import DenseMemory
from elastane.slots.access import PulledSlots, SlotAccess, Wanted
from elastane.tables.layout import Ids, slots_of
from elastane.tables.spec import DTYPES, ModelSpec
from elastane_slots.pushes import Pulled


def by_slot(spec: ModelSpec, table: int, ids: Ids) -> dict[int, Ids]:
    """Divide ids of a table into slots, keeping their order."""
    if not len(ids):
        return {}
    slots = slots_of(spec.layouts[0].tables[table].placement, ids)
    order = np.argsort(slots, kind="stable")
    found, starts = np.unique(slots[order], return_index=True)
    return dict(zip(found.tolist(), np.split(ids[order], starts[1:]), strict=True))


class Pulls:
    """lease: of the task; 0 for an evaluation. seen: of each slot as first pulled; the first counts. later:
    (slot, life, version) of each request after the first.

    returned: why the task is given back, although it runs to its end.
    """

    def __init__(self, access: SlotAccess, spec: ModelSpec, lease: int = 0, generation: int = 0) -> None:
        self._access, self._spec = access, spec
        self._lease, self._generation = lease, generation
        self.seen: dict[int, Pulled] = {}
        self.later: list[list[tuple[int, int, int]]] = []
        self._requests = 0
        self.returned = ""
        #: By table, rows that were pulled: ids, ascending, and their values.
        self._rows: dict[int, tuple[Ids, Tensor]] = {}

    def dense(self, memory: DenseMemory, rows: Mapping[int, Ids] | None = None) -> None:
        """Pull all dense parameters, and rows (ascending ids by table) in the same requests."""
        self.take(memory, self.ask(memory, rows or {}))

    def ask(self, memory: DenseMemory, rows: Mapping[int, Ids]) -> PulledSlots:
        """Pull without writing parameters; `take` does. May run in another thread."""
        return self._pull(self._wanted(rows, memory.slots))

    def take(self, memory: DenseMemory, pulled: PulledSlots) -> None:
        """Write what was pulled into the parameters."""
        for slot, found in pulled.slots.items():
            memory.set(slot, found.sections)

    def rows(self, table: int, ids: Ids) -> Tensor:
        """Return rows of ascending ids: those pulled before for this task as they were then."""
        known, values = self._rows.get(table, (np.empty(0, np.int64), None))
        missing = ids if values is None else ids[~np.isin(ids, known, assume_unique=True)]
        if len(missing):
            self._pull(self._wanted({table: missing}, ()))
        if table not in self._rows:
            told = self._spec.tables[table]
            return torch.empty(0, told.width, dtype=DTYPES[told.dtype])
        known, values = self._rows[table]
        return values[torch.from_numpy(np.searchsorted(known, ids))]

    def _wanted(self, rows: Mapping[int, Ids], dense: list[int] | tuple[()]) -> dict[int, Wanted]:
        parts: dict[int, list[tuple[int, Ids]]] = {slot: [] for slot in dense}
        for table in sorted(rows):
            for slot, ids in by_slot(self._spec, table, rows[table]).items():
                parts.setdefault(slot, []).append((table, ids))
        whole = set(dense)
        return {slot: Wanted(slot in whole, tuple(part)) for slot, part in parts.items()}

    def _pull(self, wanted: Mapping[int, Wanted]) -> PulledSlots:
        lease = 0 if self.returned else self._lease
        pulled = self._access.pull(lease, self._generation, wanted)
        self.returned = self.returned or pulled.returned
        if self._requests:
            seen = ((slot, one.seen.life, one.seen.version) for slot, one in pulled.slots.items())
            self.later.append(sorted(seen))
        self._requests += 1
        fresh: dict[int, list[tuple[Ids, Tensor]]] = {}
        for slot, found in pulled.slots.items():
            self.seen.setdefault(slot, found.seen)
            layout = self._spec.layout(slot)
            blocks = len(layout.blocks) if wanted[slot].dense else 0
            for (table, ids), section in zip(wanted[slot].rows, found.sections[blocks:], strict=True):
                told = layout.tables[table]
                values = torch.frombuffer(section, dtype=layout.row_dtype(table)).to(told.dtype)
                fresh.setdefault(table, []).append((ids, values.view(len(ids), told.width)))
        for table, parts in fresh.items():
            self._keep(table, parts)
        return pulled

    def _keep(self, table: int, parts: list[tuple[Ids, Tensor]]) -> None:
        if table in self._rows:
            parts = [self._rows[table], *parts]
        ids = np.concatenate([part for part, _ in parts])
        order = np.argsort(ids)
        values = torch.cat([part for _, part in parts])[torch.from_numpy(order)]
        self._rows[table] = (ids[order], values)
