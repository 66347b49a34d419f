"""What one task, or an evaluation, has pulled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from itertools import chain

import numpy as np
import torch
from torch import Tensor

from elastane.runtime.slots.dense import DenseMemory
from elastane.slots.access import PulledSlots, SlotAccess, Wanted
from elastane.tables.by_slot import TableIds, bounds_of
from elastane.tables.layout import Ids, slots_of
from elastane.tables.spec import DTYPES, ModelSpec
from elastane_slots.pushes import Pulled


def distinct(ids: Ids) -> Ids:
    """Return the distinct ids, ascending; faster than `numpy.unique`, which puts them into a hash table."""
    ordered = np.sort(ids)
    is_first = np.ones(len(ordered), np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=is_first[1:])
    return ordered[is_first]


class Division:
    """Ids of a table divided into slots. ids: distinct, ascending.

    order: their places, sorted by slot, within a slot as they were given; inverse: from there back. by_slot:
    the ids in that order.
    """

    def __init__(self, spec: ModelSpec, table: int, ids: Ids) -> None:
        slots = slots_of(spec.layouts[0].tables[table].placement, ids).astype(np.uint16)
        self.ids = ids
        order = np.argsort(slots, kind="stable")
        inverse = np.empty_like(order)
        inverse[order] = np.arange(len(order))
        self.order, self.inverse = torch.from_numpy(order), torch.from_numpy(inverse)
        bounds = bounds_of(np.bincount(slots, minlength=spec.slots).tolist())
        self.by_slot = TableIds(table, ids[order], bounds)


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
        self._divisions: dict[int, Division] = {}
        self._begun: Future[PulledSlots] | None = None

    def dense(self, memory: DenseMemory, rows: Mapping[int, Ids] | None = None) -> None:
        """Pull all dense parameters, and rows (ascending ids by table) in the same requests."""
        wanted = self._wanted(rows or {}, memory.slots)
        memory.set(self._kept(self._access.pull(self._lease, self._generation, wanted)).blocks)

    def begin(self, memory: DenseMemory, rows: Mapping[int, Ids]) -> None:
        """Begin to pull as `dense` does; `take` waits for it."""
        wanted = self._wanted(rows, memory.slots)
        self._begun = self._access.begin_pull(self._lease, self._generation, wanted)

    def take(self, memory: DenseMemory) -> None:
        """Wait for what was begun, and write it into the parameters."""
        assert self._begun is not None
        begun, self._begun = self._begun, None
        memory.set(self._kept(begun.result()).blocks)

    def rows(self, table: int, ids: Ids) -> Tensor:
        """Return rows of ascending ids: those pulled before for this task as they were then."""
        known, values = self._rows.get(table, (np.empty(0, np.int64), None))
        if values is not None and np.array_equal(known, ids):
            return values.clone()
        missing = ids if values is None else ids[~np.isin(ids, known, assume_unique=True)]
        if len(missing):
            wanted = self._wanted({table: missing}, ())
            lease = 0 if self.returned else self._lease
            self._kept(self._access.pull(lease, self._generation, wanted))
        if table not in self._rows:
            told = self._spec.tables[table]
            return torch.empty(0, told.width, dtype=DTYPES[told.dtype])
        known, values = self._rows[table]
        return values.index_select(0, torch.from_numpy(np.searchsorted(known, ids)))

    def divided(self, table: int, ids: Ids) -> Division:
        """Divide ids into slots, if that was not done for these ids last."""
        found = self._divisions.get(table)
        if found is None or not np.array_equal(found.ids, ids):
            found = self._divisions[table] = Division(self._spec, table, ids)
        return found

    def _wanted(self, rows: Mapping[int, Ids], dense: Sequence[int]) -> Wanted:
        by_slot = tuple(self.divided(table, rows[table]).by_slot for table in sorted(rows))
        return Wanted(sorted({*dense, *chain.from_iterable(one.slots for one in by_slot)}), dense, by_slot)

    def _kept(self, pulled: PulledSlots) -> PulledSlots:
        """Note what was pulled."""
        self.returned = self.returned or pulled.returned
        if self._requests:
            self.later.append([(slot, one.life, one.version) for slot, one in sorted(pulled.seen.items())])
        self._requests += 1
        self.seen = {**pulled.seen, **self.seen}
        fresh: dict[int, list[tuple[Ids, memoryview]]] = {}
        for table, ids, rows in pulled.rows:
            fresh.setdefault(table, []).append((ids, rows))
        for table, parts in fresh.items():
            self._keep(table, parts)
        return pulled

    def _keep(self, table: int, parts: list[tuple[Ids, memoryview]]) -> None:
        layout = self._spec.layouts[0]
        told, (ids, rows) = layout.tables[table], parts[0]
        if len(parts) > 1:
            ids = np.concatenate([part for part, _ in parts])
            rows = memoryview(bytearray().join([part for _, part in parts]))
        values = torch.frombuffer(rows, dtype=layout.row_dtype(table))
        values = values.to(told.dtype).view(len(ids), told.width)
        division = self._divisions[table]
        if table not in self._rows and len(ids) == len(division.ids) and len(parts) == 1:
            # All at once, in the order in which they were asked for.
            self._rows[table] = division.ids, values.index_select(0, division.inverse)
            return
        if table in self._rows:
            known, before = self._rows[table]
            ids, values = np.concatenate([known, ids]), torch.cat([before, values])
        order = np.argsort(ids)
        self._rows[table] = ids[order], values.index_select(0, torch.from_numpy(order))
