"""The rows of a pull: checked, read and completed for all slots together."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from elastane.tables.by_slot import RowCounts, bounds_of, bytes_in_ranges
from elastane.tables.layout import ID_BYTES, Ids, are_ids, padded, values_of
from elastane.tables.slot_weights import SlotWeights, empty_rows, read_rows
from elastane.tables.spec import ModelSpec
from elastane.tables.table_rows import fill_absent


class PulledRows:
    """slots: of the request, ascending. counts: rows asked for, of the request's slots, already checked.
    body: their ids. Raises InvalidRequest for ids of other slots."""

    def __init__(self, spec: ModelSpec, slots: Sequence[int], counts: RowCounts, body: memoryview) -> None:
        self._spec = spec
        #: By table: ids, their bounds by position of a slot in the request, and memory for the rows.
        self._ids: dict[int, tuple[Ids, list[int]]] = {}
        at = 0
        for table, numbers in counts:
            bounds = bounds_of(numbers)
            size = bounds[-1] * ID_BYTES
            if size:
                ids = np.frombuffer(body[at : at + size], np.int64)
                if not are_ids(spec.layouts[0].tables[table], np.repeat(slots, numbers), ids):
                    for position, slot in enumerate(slots):
                        own = ids[bounds[position] : bounds[position + 1]]
                        spec.layouts[slot].check_ids(table, own, ascending=False)
                self._ids[table] = ids, bounds
            at += padded(size)
        self._rows = {
            table: empty_rows(spec.layouts[0].tables[table], len(ids))
            for table, (ids, _) in self._ids.items()
        }
        self._bytes: dict[int, memoryview] = {}

    def read(self, weights: Sequence[tuple[int, SlotWeights]]) -> None:
        """Copy the rows of slots, under their locks. weights: by position of the slot in the request."""
        for table, (ids, bounds) in self._ids.items():
            read_rows(weights, table, bounds, ids, *self._rows[table])

    def complete(self) -> None:
        """Complete the rows, after the last slot has been read."""
        layout = self._spec.layouts[0]
        for table, (rows, absent) in self._rows.items():
            ids, _ = self._ids[table]
            fill_absent(layout.tables[table], self._spec.initial_rows(table), ids, rows, absent)
            self._bytes[table] = values_of(torch.from_numpy(rows), layout.row_dtype(table))

    def sections(self, positions: Sequence[int]) -> list[memoryview]:
        """Return the section of each table, with the rows of these slots of the request."""
        found = []
        for table, (_, bounds) in self._ids.items():
            content, row_bytes = self._bytes[table], self._spec.layouts[0].wire_rows[table]
            if len(positions) + 1 < len(bounds):
                ranges = [(bounds[position], bounds[position + 1]) for position in positions]
                content = bytes_in_ranges(content, ranges, row_bytes)
            found.append(content)
        return found
