"""Executes pulls, pushes and initial values, after checking each request as a whole.

Pulls read slot by slot; the rows of a push are updated in one step, under the locks of all its slots. A frame
is checked completely before its first slot is processed. Requests that no client of ours sends raise
SlotFrameError or InvalidRequest, which closes the connection. Each request has two steps: `do`, in the order
in which frames arrive, and `answer`, which waits for the slots' copies and may be called later.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import itemgetter, lt
from typing import Final, NamedTuple

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
    PushedSlots,
    PushSlot,
    Replicate,
    ReplicateInit,
    SlotFrameError,
)
from elastane.slots.wire import Piece, pad
from elastane.tables import rates as rates_module
from elastane.tables.dense_rules import STATES
from elastane.tables.journal_records import Record
from elastane.tables.layout import (
    NAME_ALONE,
    NonFiniteGradient,
    PushPart,
    check_parts,
    cut,
    padded_sum,
    push_parts,
)
from elastane.tables.slot_weights import apply_all, prepare_all
from elastane.tables.spec import ModelSpec
from elastane_ps.figures import Figures
from elastane_ps.held import Barrier, HeldSlot, Holdings
from elastane_ps.journal import entry_of
from elastane_ps.memory import Room
from elastane_ps.pulled_rows import PulledRows
from elastane_slots import pushes
from elastane_slots.pushes import DONE_VERDICTS, Verdict
from elastane_slots.pushes import Pulled as Seen
from elastane_slots.tasks import TaskName

#: (code, life, version, staleness) of a slot's answer.
Said = tuple[int, int, int, int]
_MOVED: Final = CODES[Verdict.MOVED]
_DONE: Final = frozenset(CODES[verdict] for verdict in DONE_VERDICTS)
#: Bytes of a push applied under one hold of its slots' locks, unless a single slot has more.
BATCH_BYTES: Final = 4 * 2**20


@dataclass(frozen=True)
class Answer:
    """make: returns header and body, after waiting for copies. waits: True if it may have to wait."""

    make: Callable[[], tuple[Header, Sequence[Piece]]]
    waits: bool = False


class _SlotPush(NamedTuple):
    """A push for one slot. told: None if only the name is pushed. body: as received, to be passed on."""

    slot: int
    told: PushSlot | None = None
    seen: Seen | None = None
    part: PushPart = NAME_ALONE
    body: memoryview = memoryview(b"")


class PsFault(Exception):  # noqa: N818 - not an error of a request: the process must end
    """A slot may be half updated, or this process holds one that it should not; it must end at once."""


@dataclass
class Settings:
    """Settings of the job. journal: records what was applied; None without one."""

    scale_by_staleness: bool = False
    journal: Callable[[Record], None] | None = None
    dense_digest: bytes = b""


class Requests:
    """Executes the requests of workers. Thread-safe."""

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
        """Return the required length of the body. Raises SlotFrameError, InvalidRequest."""
        if isinstance(header, Pull):
            self._check_slots([told.slot for told in header.slots])
            layouts = self.spec.layouts
            return sum(layouts[told.slot].pull_bytes(told.rows) for told in header.slots if told.rows)
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
        """Execute a request. Raises InvalidRequest, SlotFrameError; PsFault if the process must end."""
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
        rows = PulledRows(self.spec, header.slots, body)
        parts = [self._pull_slot(header, told, number, rows) for number, told in enumerate(header.slots)]
        rows.complete()

        def answer() -> tuple[Header, Sequence[Piece]]:
            slots, sections = [], list[memoryview]()
            for number, (entry, dense, held, barrier) in enumerate(parts):
                if held is not None and not held.wait(barrier):
                    entry = PulledSlot(entry.slot, _MOVED)
                elif held is not None:
                    sections += dense
                    sections += rows.sections(number)
                slots.append(entry)
            return Pulled(self._holdings.map.generation, slots), pad(sections)

        return Answer(answer, any(barrier for *_, barrier in parts))

    def _pull_slot(
        self, header: Pull, told: PullSlot, number: int, rows: PulledRows
    ) -> tuple[PulledSlot, Sequence[memoryview], HeldSlot | None, Barrier]:
        held = self._holdings.owned.get(told.slot)
        if held is None:
            return PulledSlot(told.slot, self._absent(header.generation)), (), None, ()
        with held.lock:
            if held.gone:
                return PulledSlot(told.slot, self._absent(header.generation)), [], None, ()
            refused = self._holdings.judge.judge_pull(told.slot, header.lease, header.generation)
            weights = held.weights
            if refused is not None or not weights.initialised:
                code = CODES[refused] if refused is not None else CODE_UNINITIALISED
                return PulledSlot(told.slot, code), [], None, ()
            layout, dense = weights.layout, list[memoryview]()
            if told.dense and layout.blocks:
                dense = [np.empty(size, np.uint8).data for size in layout.pulled_sections(True, ())]
                weights.pull_dense(dense)
            rows.read(number, weights)
            held.pulls += 1
            size = layout.pulled_bytes(told.dense, told.rows)
            entry = PulledSlot(told.slot, CODE_OK, held.record.life, held.record.version, size)
            return entry, dense, held, held.barrier()

    def _absent(self, generation: int) -> int:
        return CODES[Verdict.NOT_YET] if generation > self._holdings.judge.generation else _MOVED

    # ------------------------------------------------------------------ pushes

    def _push_bytes(self, header: Push) -> int:
        self._check_slots([told.slot for told in header.slots])
        self._check_slots(header.names)
        total = 0
        for told in header.slots:
            size = self.spec.layouts[told.slot].push_bytes(told.blocks, told.rows)
            if size != told.size:
                raise SlotFrameError(f"a push of {told.size} bytes to slot {told.slot}, which are {size}")
            total += size
        rates_module.check(self.spec.rules, header.rates)
        if header.pulls and len(header.pulls) != self.spec.slots:
            raise SlotFrameError(f"pulls of {len(header.pulls)} slots")
        return total

    def _push(self, header: Push, body: memoryview) -> Answer:
        layouts, at = self.spec.layouts, 0
        name = TaskName(header.dataset, header.epoch, header.task)
        push = pushes.Push(name, header.lease, header.generation)
        parts = []
        read = push_parts(layouts, [(one.slot, one.blocks, one.rows, one.size) for one in header.slots], body)
        for told, part in zip(header.slots, read, strict=True):
            start, at = at, at + told.size
            seen = Seen(told.life, told.version) if told.life >= 0 else None
            parts.append(_SlotPush(told.slot, told, seen, part, body[start:at]))
        try:
            check_parts([(layouts[one.slot], one.part) for one in parts])
        except NonFiniteGradient:
            self._figures.non_finite += 1
            raise
        self._require_room([(one.slot, one.part) for one in parts if one.part.rows])
        self._holdings.lease_seen = max(self._holdings.lease_seen, header.lease)
        parts += [_SlotPush(slot) for slot in header.names]
        parts.sort(key=itemgetter(0))
        if not all(one.slot < after.slot for one, after in pairwise(parts)):
            raise SlotFrameError("a push names a slot twice")
        answers = [answer for batch in _batches(parts) for answer in self._push_slots(header, push, batch)]

        def answer() -> tuple[Header, Sequence[Piece]]:
            said: dict[Said, list[int]] = {}
            before: Said | None = None
            for slot, what, held, barrier in answers:
                if held is not None and (not held.wait(barrier) if barrier else held.gone):
                    what = (_MOVED, -1, -1, 0)
                if what is not before:
                    before, slots = what, said.setdefault(what, [])
                slots.append(slot)
            return Pushed(
                self._holdings.map.generation, [PushedSlots(slots, *what) for what, slots in said.items()]
            ), ()

        return Answer(answer, any(barrier for *_, barrier in answers))

    def _require_room(self, parts: Sequence[tuple[int, PushPart]]) -> None:
        """Raise PsMemoryError if new rows would not fit."""
        owned = self._holdings.owned
        left = self._room.left_bytes() if parts else None
        if left is None:
            return
        there = [(held, part) for slot, part in parts if (held := owned.get(slot)) is not None]
        if sum(held.weights.most_bytes(part) for held, part in there) <= left:
            return
        needed: Counter[int] = Counter()
        for held, part in there:
            with held.lock:
                needed.update(held.weights.new_bytes(part))
        if needed.total() and needed.total() > left:
            table = self.spec.tables[needed.most_common(1)[0][0]].name
            raise _too_little(f"new rows, most of {table!r}", needed.total(), left, table=table)

    def _require_room_of(self, slots: Sequence[int]) -> None:
        """Raise PsMemoryError if the blocks of slots with their optimizer states would not fit."""
        spec, owned = self.spec, self._holdings.owned
        needed = 0
        for slot in slots:
            if (held := owned.get(slot)) is None or held.weights.initialised:
                continue
            layout = spec.layout(slot)
            for size, tensor in zip(layout.initial_sections, layout.tensors, strict=True):
                needed += size * (1 + STATES[spec.tensors[tensor].rule])
        left = self._room.left_bytes() if needed else None
        if left is not None and needed > left:
            raise _too_little("dense tensors, with what their optimizers may keep,", needed, left)

    def _push_slots(
        self, header: Push, push: pushes.Push, batch: Sequence[_SlotPush]
    ) -> list[tuple[int, Said, HeldSlot | None, Barrier]]:
        """Check and apply a push at several slots, under all their locks.

        The locks are taken in ascending order, and no other code takes more than one.
        """
        owned, locked = self._holdings.owned, list[HeldSlot]()
        try:
            for one in batch:
                if (held := owned.get(one.slot)) is not None:
                    held.lock.acquire()
                    locked.append(held)
            return self._push_locked(header, push, batch, {h.slot: h for h in locked if not h.gone})
        finally:
            for held in locked:
                held.lock.release()

    def _push_locked(
        self, header: Push, push: pushes.Push, batch: Sequence[_SlotPush], there: dict[int, HeldSlot]
    ) -> list[tuple[int, Said, HeldSlot | None, Barrier]]:
        asked = [(one.slot, one.seen) for one in batch if one.slot in there]
        judged = iter(self._holdings.judge.judge_all(push, asked))
        absent: Said = (self._absent(header.generation), -1, -1, 0)
        said: list[tuple[int, Said, HeldSlot | None]] = []
        applied: dict[float, list[tuple[_SlotPush, HeldSlot]]] = {}
        before: pushes.Answer | None = None
        for one in batch:
            held = there.get(one.slot)
            if held is None:
                said.append((one.slot, absent, None))
                continue
            answer = next(judged)
            if answer is not before:
                before, staleness = answer, answer.staleness
                judgement: Said = (CODES[answer.verdict], answer.life, answer.version, staleness)
                is_applied = answer.verdict is Verdict.APPLIED
                scale = 1 / (1 + staleness) if self._settings.scale_by_staleness else 1.0
                group = applied.setdefault(scale, [])
            what = judgement
            if is_applied:
                if held.weights.initialised:
                    group.append((one, held))
                else:
                    what = (CODE_UNINITIALISED, -1, -1, 0)
            said.append((one.slot, what, held))
        for scale, parts in applied.items():
            if parts:
                self._apply(header, push, parts, scale)
        self._figures.answered([(code, staleness) for _, (code, _, _, staleness), _ in said])
        return [
            (
                slot,
                what,
                held,
                held.barrier() if held is not None and held.copies and what[0] in _DONE else (),
            )
            for slot, what, held in said
        ]

    def _apply(
        self, header: Push, push: pushes.Push, parts: Sequence[tuple[_SlotPush, HeldSlot]], scale: float
    ) -> None:
        changed = [(held.weights, one.part) for one, held in parts if one.told is not None]
        try:
            if changed:
                apply_all(prepare_all(changed, header.rates), header.rates, scale)
            self._holdings.judge.record_all([held.slot for _, held in parts], push)
        except BaseException as error:
            slots = [one.slot for one, _ in parts]
            raise PsFault(f"a push to slots {slots} could not be applied: {error!r}") from error
        for one, held in parts:
            held.pushes += 1
            if held.copies or self._settings.journal is not None:
                self._pass_on(header, one, held, scale)

    def _pass_on(self, header: Push, one: _SlotPush, held: HeldSlot, scale: float) -> None:
        """Send an applied push to the slot's copies and the journal."""
        told = one.told or PushSlot(one.slot, -1, -1)
        sections = cut(one.body, self.spec.layouts[one.slot].push_sections(told.blocks, told.rows))
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

    # ------------------------------------------------------------------ initial values, audits

    def _init(self, header: Init, body: memoryview) -> Answer:
        self._require_room_of(header.slots)
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
        if not all(map(lt, slots, slots[1:])):
            raise SlotFrameError("slots of a request are not ascending")
        if slots and not 0 <= slots[0] <= slots[-1] < self.spec.slots:
            raise SlotFrameError(f"the model has {self.spec.slots} slots", hint="it is fixed with the job")


def _too_little(what: str, needed_bytes: int, left_bytes: int, **facts: object) -> PsMemoryError:
    return PsMemoryError(
        f"{what} need {needed_bytes} bytes, and {max(0, left_bytes)} are left",
        hint="start more parameter servers (--ps), or give each more memory",
        bytes=needed_bytes,
        **facts,
    )


def _batches(parts: Sequence[_SlotPush]) -> Iterator[Sequence[_SlotPush]]:
    """Divide a push into batches, each applied under one hold of the slots' locks."""
    start, size = 0, 0
    for number, one in enumerate(parts):
        own = one.told.size if one.told is not None else 0
        if number > start and size + own > BATCH_BYTES:
            yield parts[start:number]
            start, size = number, 0
        size += own
    if start < len(parts):
        yield parts[start:]


def timed(figures: Figures, header: Header, began: float, received: int, sent: int) -> None:
    """Count an answered request."""
    if isinstance(header, frames.Push | frames.Pull):
        kind = "push" if isinstance(header, frames.Push) else "pull"
        figures.frame(kind, time.monotonic() - began, received, sent)
