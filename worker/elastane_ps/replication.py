"""Applies to backups what their owner has applied, in the same order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from elastane.slots.frames import Header, Replicate, ReplicateClose, Replicated, ReplicateInit, SlotFrameError
from elastane.tables import rates as rates_module
from elastane.tables.journal_records import Record
from elastane.tables.layout import cut, padded_sum
from elastane_ps.held import HeldSlot, Holdings
from elastane_ps.journal import entry_of
from elastane_slots.tasks import TaskName

#: Seconds for which a message from an owner with a newer map waits for that map.
MAP_SECONDS: Final = 10.0
Message = Replicate | ReplicateInit | ReplicateClose


class Replication:
    """Processes the messages of owners. journal: records what was applied."""

    def __init__(self, holdings: Holdings, journal: Callable[[Record], None] | None = None) -> None:
        self._holdings = holdings
        self.journal = journal

    def body_bytes(self, header: Message) -> int:
        """Return the required length of the body. Raises SlotFrameError, InvalidRequest."""
        spec = self._holdings.spec
        if spec is None or not 0 <= header.slot < spec.slots:
            raise SlotFrameError(f"there is no slot {header.slot}")
        layout = spec.layout(header.slot)
        if isinstance(header, Replicate):
            rates_module.check(spec.rules, header.rates)
            return layout.push_bytes(header.blocks, header.rows)
        return padded_sum(layout.initial_sections) if isinstance(header, ReplicateInit) else 0

    def do(self, header: Message, body: memoryview) -> Header:
        """Apply a message if it is from the slot's owner and next in order; else answer with version -1."""
        # A former owner has an older map; messages of an owner with a newer map wait until it is known here.
        if not self._holdings.knows(header.generation, MAP_SECONDS):
            return Replicated(header.slot, -1)
        with self._holdings.lock:
            held = self._holdings.others.get(header.slot)
            place = self._holdings.map.places[header.slot]
            if held is None or place.owner != header.sender:
                return Replicated(header.slot, -1)
        with held.lock:
            if held.gone or self._holdings.owned.get(header.slot) is held:
                return Replicated(header.slot, -1)
            if not self._apply(held, header, body):
                return Replicated(header.slot, -1)
            return Replicated(header.slot, held.record.version)

    def _apply(self, held: HeldSlot, header: Message, body: memoryview) -> bool:
        layout, record = held.weights.layout, held.record
        if isinstance(header, ReplicateClose):
            for dataset, epoch, start, end in header.tasks:
                for task in range(start, end):
                    record.close(TaskName(dataset, epoch, task))
            return True
        if isinstance(header, ReplicateInit):
            if not held.weights.initialised:
                held.weights.initialise(cut(body, layout.initial_sections))
            return True
        name = TaskName(header.dataset, header.epoch, header.task)
        if header.life != record.life or header.version != record.version + 1 or name in record.applied:
            return False
        sections = cut(body, layout.push_sections(header.blocks, header.rows))
        part = layout.push_part(header.blocks, header.rows, sections)
        layout.check_part(part)
        held.weights.apply(held.weights.prepare(part, header.rates), header.rates, header.scale)
        record.applied.add(name)
        self._holdings.lease_seen = max(self._holdings.lease_seen, header.lease)
        if self.journal is not None:
            self.journal(entry_of(header, sections))
        return True
