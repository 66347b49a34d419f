"""What one task, or an evaluation, has pulled."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future

import numpy as np
import torch
from torch import Tensor

from elastane.runtime.slots.dense import DenseMemory
from elastane.slots.access import PulledSlots, SlotAccess, Wanted
from elastane.tables.layout import Ids, slots_of
from elastane.tables.spec import DTYPES, ModelSpec
from elastane_slots.pushes import Pulled


class BySlot:
    """Ids of a table divided into slots. ids: as given. order: their places, by slot, those of a slot as they
    were given. parts: (slot, its start, its end) among these."""

    def __init__(self, spec: ModelSpec, table: int, ids: Ids) -> None:
        slots = slots_of(spec.layouts[0].tables[table].placement, ids).astype(np.uint16)
        self.ids = ids
        self.order = np.argsort(slots, kind="stable")
        counts = np.bincount(slots, minlength=spec.slots)
        ends = np.cumsum(counts)
        found = counts.nonzero()[0]
        starts = (ends - counts)[found]
        self.parts = list(zip(found.tolist(), starts.tolist(), ends[found].tolist(), strict=True))


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
        self._divided: dict[int, BySlot] = {}
        self._begun: tuple[Mapping[int, Wanted], Future[PulledSlots]] | None = None

    def dense(self, memory: DenseMemory, rows: Mapping[int, Ids] | None = None) -> None:
        """Pull all dense parameters, and rows (ascending ids by table) in the same requests."""
        wanted = self._wanted(rows or {}, memory.slots)
        self._set(memory, self._kept(wanted, self._access.pull(self._lease, self._generation, wanted)))

    def begin(self, memory: DenseMemory, rows: Mapping[int, Ids]) -> None:
        """Begin to pull as `dense` does; `take` waits for it."""
        wanted = self._wanted(rows, memory.slots)
        self._begun = wanted, self._access.begin_pull(self._lease, self._generation, wanted)

    def take(self, memory: DenseMemory) -> None:
        """Wait for what was begun, and write it into the parameters."""
        assert self._begun is not None
        (wanted, begun), self._begun = self._begun, None
        self._set(memory, self._kept(wanted, begun.result()))

    def rows(self, table: int, ids: Ids) -> Tensor:
        """Return rows of ascending ids: those pulled before for this task as they were then."""
        known, values = self._rows.get(table, (np.empty(0, np.int64), None))
        if values is not None and np.array_equal(known, ids):
            return values.clone()
        missing = ids if values is None else ids[~np.isin(ids, known, assume_unique=True)]
        if len(missing):
            wanted = self._wanted({table: missing}, ())
            lease = 0 if self.returned else self._lease
            self._kept(wanted, self._access.pull(lease, self._generation, wanted))
        if table not in self._rows:
            told = self._spec.tables[table]
            return torch.empty(0, told.width, dtype=DTYPES[told.dtype])
        known, values = self._rows[table]
        return values[torch.from_numpy(np.searchsorted(known, ids))]

    def divided(self, table: int, ids: Ids) -> BySlot:
        """Divide ids into slots, if that was not done for these ids last."""
        found = self._divided.get(table)
        if found is None or not np.array_equal(found.ids, ids):
            found = self._divided[table] = BySlot(self._spec, table, ids)
        return found

    def _wanted(self, rows: Mapping[int, Ids], dense: list[int] | tuple[()]) -> dict[int, Wanted]:
        parts: dict[int, list[tuple[int, Ids]]] = {slot: [] for slot in dense}
        for table in sorted(rows):
            divided = self.divided(table, rows[table])
            ids = rows[table][divided.order]
            for slot, start, end in divided.parts:
                parts.setdefault(slot, []).append((table, ids[start:end]))
        whole = set(dense)
        return {slot: Wanted(slot in whole, tuple(part)) for slot, part in parts.items()}

    def _set(self, memory: DenseMemory, pulled: PulledSlots) -> None:
        memory.set({slot: found.sections for slot, found in pulled.slots.items()})

    def _kept(self, wanted: Mapping[int, Wanted], pulled: PulledSlots) -> PulledSlots:
        """Note what was pulled."""
        self.returned = self.returned or pulled.returned
        if self._requests:
            seen = ((slot, one.seen.life, one.seen.version) for slot, one in pulled.slots.items())
            self.later.append(sorted(seen))
        self._requests += 1
        fresh: dict[int, list[tuple[Ids, memoryview]]] = {}
        for slot, found in pulled.slots.items():
            self.seen.setdefault(slot, found.seen)
            rows = wanted[slot].rows
            blocks = len(found.sections) - len(rows)
            for (table, ids), section in zip(rows, found.sections[blocks:], strict=True):
                fresh.setdefault(table, []).append((ids, section))
        for table, parts in fresh.items():
            self._keep(table, parts)
        return pulled

    def _keep(self, table: int, parts: list[tuple[Ids, memoryview]]) -> None:
        layout = self._spec.layouts[0]
        told, ids = layout.tables[table], np.concatenate([part for part, _ in parts])
        # One tensor for all: a parameter server answers a slot at a time.
        values = torch.frombuffer(
            bytearray().join([part for _, part in parts]), dtype=layout.row_dtype(table)
        )
        values = values.to(told.dtype).view(len(ids), told.width)
        if table in self._rows:
            known, before = self._rows[table]
            ids, values = np.concatenate([known, ids]), torch.cat([before, values])
        order = np.argsort(ids)
        self._rows[table] = (ids[order], values[torch.from_numpy(order)])
