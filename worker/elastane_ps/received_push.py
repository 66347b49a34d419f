"""The gradients of a push as they were received."""

from __future__ import annotations

from elastane.slots.frames import Push, SlotFrameError
from elastane.tables import rates as rates_module
from elastane.tables.by_slot import TableGradients, TaskGradients, bounds_among, totals
from elastane.tables.layout import ID_BYTES, PushMessage, Values, cut, padded, padded_sum
from elastane.tables.spec import ModelSpec
from elastane_slots.pushes import Pulled


def push_bytes(spec: ModelSpec, header: Push) -> int:
    """Return the required length of a push's body. Raises SlotFrameError, InvalidRequest.

    The caller has checked `slots` and `names`.
    """
    layouts, slots = spec.layouts, frozenset(header.slots)
    before, total = -1, 0
    for slot, bitmap in header.blocks:
        if not before < slot or slot not in slots:
            raise SlotFrameError(f"a push has blocks of slot {slot}, which is not in its order or not there")
        before = slot
        total += layouts[slot].push_bytes(bitmap, ())
    for table, count in totals(layouts[0], header.slots, header.rows):
        total += padded(count * ID_BYTES) + padded(count * layouts[0].wire_rows[table])
    if len(header.seen) != len(header.slots):
        raise SlotFrameError(f"a push of {len(header.slots)} slots tells what it saw of {len(header.seen)}")
    rates_module.check(spec.rules, header.rates)
    if header.pulls and len(header.pulls) != spec.slots:
        raise SlotFrameError(f"pulls of {len(header.pulls)} slots")
    return total


class ReceivedPush:
    """header, body: checked by `push_bytes`. gradients: in memory of the body, if they are sent as stored.

    seen: of the slots with gradients, and of those to which the name goes alone, in ascending order; None
    where the push has no pull.
    """

    def __init__(self, spec: ModelSpec, header: Push, body: memoryview) -> None:
        self._header, self.body_bytes = header, len(body)
        self._layouts = spec.layouts
        layout, at = spec.layouts[0], 0
        self._blocks: dict[int, tuple[bytes, list[memoryview]]] = {}
        blocks: dict[int, dict[int, Values]] = {}
        for slot, bitmap in header.blocks:
            own = spec.layouts[slot]
            sizes = own.push_sections(bitmap, ())
            sections = cut(body[at:], sizes)
            self._blocks[slot] = bitmap, sections
            blocks[slot] = own.read_blocks(bitmap, sections)
            at += padded_sum(sizes)
        #: Ids and values of each table, as received.
        self._rows: list[tuple[memoryview, memoryview]] = []
        rows = []
        for table, counts in header.rows:
            count, row_bytes = sum(counts), layout.wire_rows[table]
            ids = body[at : at + count * ID_BYTES]
            at += padded(count * ID_BYTES)
            values = body[at : at + count * row_bytes]
            at += padded(count * row_bytes)
            self._rows.append((ids, values))
            bounds = bounds_among(counts, header.slots, spec.slots)
            read_ids, read_values = layout.read_rows(table, ids, values)
            rows.append(TableGradients(table, read_ids, bounds, read_values))
        self.gradients = TaskGradients(blocks, tuple(rows))
        seen: dict[int, Pulled | None] = dict.fromkeys(header.names)
        states = {one: Pulled(*one) if one[0] >= 0 else None for one in set(header.seen)}
        seen.update(zip(header.slots, map(states.__getitem__, header.seen), strict=True))
        if len(seen) < len(header.names) + len(header.slots):
            raise SlotFrameError("a push names a slot twice")
        self.seen = dict(sorted(seen.items()))

    @property
    def bytes(self) -> dict[int, int]:
        """Bytes of the gradients of each slot that has some."""
        found = dict.fromkeys(self._header.slots, 0)
        for slot, (_, sections) in self._blocks.items():
            found[slot] += padded_sum(map(len, sections))
        for table, counts in self._header.rows:
            row_bytes = ID_BYTES + self._layouts[0].wire_rows[table]
            for slot, count in zip(self._header.slots, counts, strict=True):
                found[slot] += count * row_bytes
        return found

    def message(self, slot: int) -> PushMessage:
        """Return the gradients of one slot in the form in which they are passed on."""
        bitmap, sections = self._blocks.get(slot, (b"", []))
        rows, sections = [], list(sections)
        wire_rows = self._layouts[0].wire_rows
        for one, (ids, values) in zip(self.gradients.rows, self._rows, strict=True):
            start, end = one.bounds[slot], one.bounds[slot + 1]
            if start < end:
                row_bytes = wire_rows[one.table]
                rows.append((one.table, end - start))
                sections.append(ids[start * ID_BYTES : end * ID_BYTES])
                sections.append(values[start * row_bytes : end * row_bytes])
        return bitmap, rows, sections
