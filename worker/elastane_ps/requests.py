"""Pulls, pushes and initial values: read, checked as a whole, then done slot by slot.

A frame is checked completely before its first slot is judged. What no client sends raises SlotFrameError or
InvalidRequest, and its connection is closed. Each request has two steps: `do`, in the order in which frames
come, and `answer`, which waits for the copies of the slots and may be called later.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np

from elastane.slots import frames
from elastane.slots.frames import (
    CODE_OK,
    CODE_UNINITIALISED,
    CODES,
    Header,
    Init,
    Inited,
    Inspect,
    Inspected,
    PsMemoryError,
    Pull,
    Pulled,
    PulledSlot,
    PullSlot,
    Push,
    Pushed,
    PushedSlot,
    PushSlot,
    Replicate,
    ReplicateInit,
    SlotFrameError,
)
from elastane.slots.wire import Piece, pad
from elastane.tables import rates as rates_module
from elastane.tables.journal_records import Record
from elastane.tables.layout import Ids, NonFiniteGradient, PushPart, cut, padded_sum
from elastane.tables.spec import ModelSpec
from elastane_ps.figures import Figures
from elastane_ps.held import Barrier, HeldSlot, Holdings
from elastane_ps.journal import entry_of
from elastane_ps.memory import Room
from elastane_slots import pushes
from elastane_slots.pushes import DONE_VERDICTS, Verdict
from elastane_slots.pushes import Pulled as Seen
from elastane_slots.tasks import TaskName

_MOVED: Final = CODES[Verdict.MOVED]


@dataclass(frozen=True)
class Answer:
    """make: returns header and body, after waiting for the copies. waits: it may have to."""

    make: Callable[[], tuple[Header, Sequence[Piece]]]
    waits: bool = False


class PsFault(Exception):  # noqa: N818 - not an error of a request: the process must end
    """A slot may be half updated, or this process holds what it should not: it must end, at once."""


@dataclass
class Settings:
    """Of the job. journal: takes what was applied; None without one."""

    scale_by_staleness: bool = False
    journal: Callable[[Record], None] | None = None
    dense_digest: bytes = b""


class Requests:
    """Does what workers ask for. Thread-safe."""

    def __init__(
        self, holdings: Holdings, settings: Settings, figures: Figures, room: Room | None = None
    ) -> None:
        self._holdings, self._settings, self._figures = holdings, settings, figures
        self._room = room or Room()

    @property
    def spec(self) -> ModelSpec:
        spec = self._holdings.spec
        if spec is None:
            raise SlotFrameError("no model is registered yet")
        return spec

    def body_bytes(self, header: Header) -> int:
        """Return the length that the body must have. Raises SlotFrameError, InvalidRequest."""
        if isinstance(header, Pull):
            self._check_slots([told.slot for told in header.slots])
            return sum(padded_sum(self.spec.layout(t.slot).pull_sections(t.rows)) for t in header.slots)
        if isinstance(header, Push):
            return self._push_bytes(header)
        if isinstance(header, Init):
            self._check_slots(header.slots)
            if header.digest != self._settings.dense_digest:
                raise SlotFrameError("initial values of another model")
            return sum(padded_sum(self.spec.layout(slot).initial_sections) for slot in header.slots)
        if isinstance(header, Inspect):
            self._check_slots([header.slot])
            return 0
        raise SlotFrameError(f"a {type(header).__name__} is no request")

    def do(self, header: Header, body: memoryview) -> Answer:
        """Do a request. Raises InvalidRequest, SlotFrameError; PsFault if the process must end."""
        if isinstance(header, Pull):
            return self._pull(header, body)
        if isinstance(header, Push):
            return self._push(header, body)
        if isinstance(header, Init):
            return self._init(header, body)
        assert isinstance(header, Inspect)
        return self._inspect(header)

    # ------------------------------------------------------------------ pulls

    def _pull(self, header: Pull, body: memoryview) -> Answer:
        asked = []
        for told in header.slots:
            layout = self.spec.layout(told.slot)
            sections = layout.pull_sections(told.rows)
            ids = [np.frombuffer(part, np.int64) for part in cut(body, sections)]
            for (table, _), own in zip(told.rows, ids, strict=True):
                layout.check_ids(table, own, ascending=False)
            asked.append((told, ids))
            body = body[padded_sum(sections) :]
        parts = [self._pull_slot(header, told, ids) for told, ids in asked]

        def answer() -> tuple[Header, Sequence[Piece]]:
            slots, pieces = [], list[Piece]()
            for entry, values, held, barrier in parts:
                if held is not None and not held.wait(barrier):
                    entry, values = PulledSlot(entry.slot, _MOVED), []
                slots.append(entry)
                pieces += pad(values)
            return Pulled(self._holdings.map.generation, slots), pieces

        return Answer(answer, any(barrier for *_, barrier in parts))

    def _pull_slot(
        self, header: Pull, told: PullSlot, ids: Sequence[Ids]
    ) -> tuple[PulledSlot, list[memoryview], HeldSlot | None, Barrier]:
        held = self._holdings.owned.get(told.slot)
        if held is None:
            return PulledSlot(told.slot, self._absent(header.generation)), [], None, ()
        with held.lock:
            if held.gone:
                return PulledSlot(told.slot, self._absent(header.generation)), [], None, ()
            refused = self._holdings.judge.judge_pull(told.slot, header.lease, header.generation)
            weights = held.weights
            if refused is not None or not weights.initialised:
                code = CODES[refused] if refused is not None else CODE_UNINITIALISED
                return PulledSlot(told.slot, code), [], None, ()
            sizes = weights.layout.pulled_sections(told.dense, told.rows)
            values = [np.empty(size, np.uint8).data for size in sizes]
            blocks = len(weights.layout.blocks) if told.dense else 0
            if blocks:
                weights.pull_dense(values[:blocks])
            for (table, _), own, part in zip(told.rows, ids, values[blocks:], strict=True):
                weights.pull_rows(table, own, part)
            held.pulls += 1
            seen = held.record.pulled()
            entry = PulledSlot(told.slot, CODE_OK, seen.life, seen.version, padded_sum(sizes))
            return entry, values, held, held.barrier()

    def _absent(self, generation: int) -> int:
        return CODES[Verdict.NOT_YET] if generation > self._holdings.judge.generation else _MOVED

    # ------------------------------------------------------------------ pushes

    def _push_bytes(self, header: Push) -> int:
        self._check_slots([told.slot for told in header.slots])
        total = 0
        for told in header.slots:
            size = padded_sum(self.spec.layout(told.slot).push_sections(told.blocks, told.rows))
            if size != told.size:
                raise SlotFrameError(f"a push of {told.size} bytes to slot {told.slot}, which are {size}")
            total += size
        rates_module.check(self.spec.rules, header.rates)
        if header.pulls and len(header.pulls) != self.spec.slots:
            raise SlotFrameError(f"pulls of {len(header.pulls)} slots")
        return total

    def _push(self, header: Push, body: memoryview) -> Answer:
        checked = []
        for told in header.slots:
            layout = self.spec.layout(told.slot)
            sizes = layout.push_sections(told.blocks, told.rows)
            sections = cut(body, sizes)
            part = layout.push_part(told.blocks, told.rows, sections)
            try:
                layout.check_part(part)
            except NonFiniteGradient:
                self._figures.non_finite += 1
                raise
            checked.append((told, part, sections))
            body = body[padded_sum(sizes) :]
        self._require_room([(told.slot, part) for told, part, _ in checked if part.rows])
        self._holdings.lease_seen = max(self._holdings.lease_seen, header.lease)
        parts = [self._push_slot(header, *entry) for entry in checked]

        def answer() -> tuple[Header, Sequence[Piece]]:
            slots = []
            for entry, held, barrier in parts:
                if held is not None and not held.wait(barrier):
                    entry = PushedSlot(entry.slot, _MOVED)
                slots.append(entry)
            return Pushed(self._holdings.map.generation, slots), ()

        return Answer(answer, any(barrier for *_, barrier in parts))

    def _require_room(self, parts: Sequence[tuple[int, PushPart]]) -> None:
        """Raise PsMemoryError if new rows would not fit."""
        owned = self._holdings.owned
        there = [(held, part) for slot, part in parts if (held := owned.get(slot)) is not None]
        left = self._room.left_bytes() if there else None
        if left is None or sum(held.weights.most_bytes(part) for held, part in there) <= left:
            return
        needed: Counter[int] = Counter()
        for held, part in there:
            with held.lock:
                needed.update(held.weights.new_bytes(part))
        if needed.total() and needed.total() > left:
            table = self.spec.tables[needed.most_common(1)[0][0]].name
            raise PsMemoryError(
                f"new rows, most of {table!r}, need {needed.total()} bytes, and {max(0, left)} are left",
                hint="start more parameter servers (--ps), or give each more memory",
                table=table,
                bytes=needed.total(),
            )

    def _push_slot(
        self, header: Push, told: PushSlot, part: PushPart, sections: Sequence[memoryview]
    ) -> tuple[PushedSlot, HeldSlot | None, Barrier]:
        seen = Seen(told.life, told.version) if told.life >= 0 else None
        name = TaskName(header.dataset, header.epoch, header.task)
        push = pushes.Push(name, header.lease, header.generation, seen)
        held = self._holdings.owned.get(told.slot)
        if held is None:
            return self._answered(told.slot, self._holdings.judge.judge(told.slot, push)), None, ()
        with held.lock:
            if held.gone:
                return PushedSlot(told.slot, self._absent(header.generation)), None, ()
            answer = self._holdings.judge.judge(told.slot, push)
            if answer.verdict is Verdict.APPLIED:
                if not held.weights.initialised:
                    return PushedSlot(told.slot, CODE_UNINITIALISED), None, ()
                self._apply(held, header, told, push, part, sections, answer.staleness)
            entry = self._answered(told.slot, answer)
            return entry, held, held.barrier() if answer.verdict in DONE_VERDICTS else ()

    def _apply(
        self,
        held: HeldSlot,
        header: Push,
        told: PushSlot,
        push: pushes.Push,
        part: PushPart,
        sections: Sequence[memoryview],
        staleness: int,
    ) -> None:
        scale = 1 / (1 + staleness) if self._settings.scale_by_staleness else 1.0
        try:
            held.weights.apply(held.weights.prepare(part, header.rates), header.rates, scale)
            self._holdings.judge.record(told.slot, push)
        except BaseException as error:
            raise PsFault(f"a push to slot {told.slot} could not be applied: {error!r}") from error
        held.pushes += 1
        if not held.copies and self._settings.journal is None:
            return
        message = Replicate(
            generation=self._holdings.map.generation,
            sender=self._holdings.ps_id,
            slot=told.slot,
            life=held.record.life,
            version=held.record.version,
            lease=header.lease,
            attempt=header.attempt,
            dataset=header.dataset,
            epoch=header.epoch,
            task=header.task,
            rates=header.rates,
            scale=scale,
            blocks=told.blocks,
            rows=told.rows,
            pulls=header.pulls,
            later=header.later,
        )
        if held.copies:
            held.send_to_copies(message, pad(sections))
        if self._settings.journal is not None:
            self._settings.journal(entry_of(message, sections))

    def _answered(self, slot: int, answer: pushes.Answer) -> PushedSlot:
        self._figures.answered(answer.verdict.value, answer.staleness)
        return PushedSlot(slot, CODES[answer.verdict], answer.life, answer.version, answer.staleness)

    # ------------------------------------------------------------------ initial values, audits

    def _init(self, header: Init, body: memoryview) -> Answer:
        parts: list[tuple[int, int, HeldSlot | None, Barrier]] = []
        for slot in header.slots:
            sizes = self.spec.layout(slot).initial_sections
            sections = cut(body, sizes)
            body = body[padded_sum(sizes) :]
            held = self._holdings.owned.get(slot)
            if held is None:
                parts.append((slot, self._absent(header.generation), None, ()))
                continue
            with held.lock:
                if held.gone:
                    parts.append((slot, self._absent(header.generation), None, ()))
                    continue
                if not held.weights.initialised:
                    held.weights.initialise(sections)
                    generation, own = self._holdings.map.generation, self._holdings.ps_id
                    held.send_to_copies(ReplicateInit(generation, own, slot), pad(sections))
                parts.append((slot, CODE_OK, held, held.barrier()))

        def answer() -> tuple[Header, Sequence[Piece]]:
            slots = [
                (slot, code if held is None or held.wait(barrier) else _MOVED)
                for slot, code, held, barrier in parts
            ]
            return Inited(self._holdings.map.generation, slots), ()

        return Answer(answer, any(barrier for *_, barrier in parts))

    def _inspect(self, header: Inspect) -> Answer:
        held = self._holdings.owned.get(header.slot)
        generation = self._holdings.map.generation
        inspected = Inspected(header.slot, generation, b"", "", 0)
        barrier: Barrier = ()
        if held is not None:
            with held.lock:
                if not held.gone:
                    size, record = held.weights.bytes, held.record.encode()
                    digest = held.weights.digest()
                    inspected = Inspected(header.slot, generation, record, digest, size.rows)
                    barrier = held.barrier()

        def answer() -> tuple[Header, Sequence[Piece]]:
            there = held is None or held.wait(barrier)
            return inspected if there else Inspected(header.slot, generation, b"", "", 0), ()

        return Answer(answer, bool(barrier))

    def _check_slots(self, slots: Sequence[int]) -> None:
        if any(not 0 <= slot < self.spec.slots for slot in slots):
            raise SlotFrameError(f"the model has {self.spec.slots} slots", hint="it is fixed with the job")
        if any(a >= b for a, b in pairwise(slots)):
            raise SlotFrameError("slots of a request are not ascending")


def timed(figures: Figures, header: Header, began: float, received: int, sent: int) -> None:
    """Count a request that was answered."""
    if isinstance(header, frames.Push | frames.Pull):
        kind = "push" if isinstance(header, frames.Push) else "pull"
        figures.frame(kind, time.monotonic() - began, received, sent)
