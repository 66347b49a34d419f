"""The rows of a pull: read slot by slot, checked and completed for all slots together."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from elastane.slots.frames import PullSlot
from elastane.tables.layout import ID_BYTES, Ids, are_ids, padded, values_of
from elastane.tables.slot_weights import SlotWeights, empty_rows
from elastane.tables.spec import ModelSpec
from elastane.tables.table_rows import fill_absent


class PulledRows:
    """asked: slots of the request. body: their ids. Raises InvalidRequest for ids of other slots."""

    def __init__(self, spec: ModelSpec, asked: Sequence[PullSlot], body: memoryview) -> None:
        self._spec = spec
        found: dict[int, list[tuple[int, int, memoryview]]] = {}
        at = 0
        for number, told in enumerate(asked):
            for table, count in told.rows:
                size = count * ID_BYTES
                found.setdefault(table, []).append((number, count, body[at : at + size]))
                at += padded(size)
        #: By number of a slot: tables, and the range of its rows among those of all slots.
        self._parts: list[list[tuple[int, int, int]]] = [[] for _ in asked]
        self._ids: dict[int, Ids] = {}
        for table in sorted(found):
            end = 0
            for number, count, _ in found[table]:
                start, end = end, end + count
                self._parts[number].append((table, start, end))
            ids = np.frombuffer(bytearray().join([own for *_, own in found[table]]), np.int64)
            self._ids[table] = ids
            slots = [asked[number].slot for number, *_ in found[table]]
            counts = [count for _, count, _ in found[table]]
            if not are_ids(spec.layouts[0].tables[table], np.repeat(slots, counts), ids):
                for slot, (_, _, own) in zip(slots, found[table], strict=True):
                    spec.layouts[slot].check_ids(table, np.frombuffer(own, np.int64), ascending=False)
        self._rows = {
            table: empty_rows(spec.layouts[0].tables[table], len(ids)) for table, ids in self._ids.items()
        }
        self._bytes: dict[int, memoryview] = {}

    def read(self, number: int, weights: SlotWeights) -> None:
        """Copy the rows of one slot, under its lock."""
        for table, start, end in self._parts[number]:
            rows, known = self._rows[table]
            weights.read_rows(table, self._ids[table][start:end], rows[start:end], known[start:end])

    def complete(self) -> None:
        """Complete the rows, after the last slot has been read."""
        layout = self._spec.layouts[0]
        for table, (rows, known) in self._rows.items():
            fill_absent(layout.tables[table], self._spec.initial_rows(table), self._ids[table], rows, known)
            self._bytes[table] = values_of(torch.from_numpy(rows), layout.row_dtype(table))

    def sections(self, number: int) -> list[memoryview]:
        """Return the sections of one slot, as in `SlotLayout.pulled_sections`."""
        found = []
        for table, start, end in self._parts[number]:
            row_bytes = self._spec.layouts[0].wire_rows[table]
            found.append(self._bytes[table][start * row_bytes : end * row_bytes])
        return found
