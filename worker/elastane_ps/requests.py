"""Executes pulls, pushes and initial values, after checking each request as a whole.

The rows of a request are read or updated in one step, under the locks of all its slots. A frame is checked
completely before its first slot is processed. Requests that no client of ours sends raise
SlotFrameError or InvalidRequest, which closes the connection. Each request has two steps: `do`, in the order
in which frames arrive, and `answer`, which waits for the slots' copies and may be called later.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import lt
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
    PulledSlots,
    Push,
    Pushed,
    PushedSlots,
    Replicate,
    ReplicateInit,
    SlotFrameError,
)
from elastane.slots.wire import Piece, pad
from elastane.tables.by_slot import TaskGradients, check_gradients, totals
from elastane.tables.dense_rules import STATES
from elastane.tables.journal_records import Record
from elastane.tables.layout import ID_BYTES, NonFiniteGradient, cut, padded, padded_sum
from elastane.tables.slot_weights import SlotWeights, apply_all, prepare_all
from elastane.tables.spec import ModelSpec
from elastane_ps.figures import Figures
from elastane_ps.held import Barrier, HeldSlot, Holdings
from elastane_ps.journal import entry_of
from elastane_ps.memory import Room
from elastane_ps.pulled_rows import PulledRows
from elastane_ps.received_push import ReceivedPush, push_bytes
from elastane_slots import pushes
from elastane_slots.pushes import DONE_VERDICTS, Verdict
from elastane_slots.tasks import TaskName

#: (code, life, version, staleness) of a slot's answer to a push; (code, life, version) to a pull.
Said = tuple[int, int, int, int]
PullSaid = tuple[int, int, int]
_MOVED: Final = CODES[Verdict.MOVED]
_PULL_MOVED: Final = (_MOVED, -1, -1)
_DONE: Final = frozenset(CODES[verdict] for verdict in DONE_VERDICTS)
#: Bytes of a request done under one hold of its slots' locks, unless a single slot has more.
BATCH_BYTES: Final = 4 * 2**20


@dataclass(frozen=True)
class Answer:
    """make: returns header and body, after waiting for copies. waits: True if it may have to wait."""

    make: Callable[[], tuple[Header, Sequence[Piece]]]
    waits: bool = False


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
            self._check_slots(header.slots)
            self._check_slots(header.dense)
            if not set(header.slots).issuperset(header.dense):
                raise SlotFrameError("a pull of blocks of slots that it does not ask for")
            rows = totals(self.spec.layouts[0], header.slots, header.rows)
            return sum(padded(count * ID_BYTES) for _, count in rows)
        if isinstance(header, Push):
            self._check_slots(header.slots)
            self._check_slots(header.names)
            return push_bytes(self.spec, header)
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
        rows = PulledRows(self.spec, header.slots, header.rows, body)
        dense = frozenset(header.dense)
        parts = [
            part
            for batch in self._pull_batches(header, dense, len(body))
            for part in self._pull_slots(header, batch, dense, rows)
        ]
        rows.complete()

        def answer() -> tuple[Header, Sequence[Piece]]:
            said: dict[PullSaid, list[int]] = {}
            there, sections = list[int](), list[memoryview]()
            before: PullSaid | None = None
            for position, (what, blocks, held, barrier) in enumerate(parts):
                if held is not None and (not held.wait(barrier) if barrier else held.gone):
                    what = _PULL_MOVED
                elif held is not None:
                    there.append(position)
                    sections += blocks
                if what is not before:
                    before, slots = what, said.setdefault(what, [])
                slots.append(header.slots[position])
            answers = [PulledSlots(slots, *what) for what, slots in said.items()]
            return Pulled(self._holdings.map.generation, answers), pad([*sections, *rows.sections(there)])

        return Answer(answer, any(barrier for *_, barrier in parts))

    def _pull_batches(self, header: Pull, dense: frozenset[int], body_bytes: int) -> Iterator[range]:
        """Divide a pull into batches, by position of its slots, each read under one hold of their locks."""
        layouts = self.spec.layouts
        blocks = sum([layouts[slot].padded_blocks_bytes for slot in dense])
        if blocks + body_bytes // ID_BYTES * max(layouts[0].wire_rows, default=0) <= BATCH_BYTES:
            yield range(len(header.slots))
            return
        sizes = [layouts[slot].padded_blocks_bytes if slot in dense else 0 for slot in header.slots]
        for table, counts in header.rows:
            row_bytes = layouts[0].wire_rows[table]
            sizes = [size + count * row_bytes for size, count in zip(sizes, counts, strict=True)]
        start, total = 0, 0
        for position, size in enumerate(sizes):
            if position > start and total + size > BATCH_BYTES:
                yield range(start, position)
                start, total = position, 0
            total += size
        if sizes:
            yield range(start, len(sizes))

    def _pull_slots(
        self, header: Pull, batch: range, dense: frozenset[int], rows: PulledRows
    ) -> list[tuple[PullSaid, Sequence[memoryview], HeldSlot | None, Barrier]]:
        """Read several slots, ascending, under all their locks, which are taken as for a push."""
        owned, slots = self._holdings.owned, header.slots[batch.start : batch.stop]
        asked = [owned.get(slot) for slot in slots]
        absent = ((self._absent(header.generation), -1, -1), (), None, ())
        parts: list[tuple[PullSaid, Sequence[memoryview], HeldSlot | None, Barrier]] = []
        read: list[tuple[int, SlotWeights]] = []
        before: tuple[int, int] | None = None
        locked = [held for held in asked if held is not None]
        for one in locked:
            one.lock.acquire()
        try:
            judged = self._holdings.judge.judge_pulls(slots, header.lease, header.generation)
            for position, slot, held, refused in zip(batch, slots, asked, judged, strict=True):
                if held is None or held.gone:
                    parts.append(absent)
                    continue
                weights = held.weights
                if refused is not None or not weights.initialised:
                    code = CODES[refused] if refused is not None else CODE_UNINITIALISED
                    parts.append(((code, -1, -1), (), None, ()))
                    continue
                blocks: Sequence[memoryview] = ()
                if slot in dense:
                    blocks = [np.empty(size, np.uint8).data for size in weights.layout.block_sizes]
                    weights.pull_dense(blocks)
                held.pulls += 1
                record = held.record
                state = record.life, record.version
                if state != before:
                    before, said = state, (CODE_OK, *state)
                parts.append((said, blocks, held, held.barrier() if held.copies else ()))
                read.append((position, weights))
            rows.read(read)
        finally:
            for one in locked:
                one.lock.release()
        return parts

    def _absent(self, generation: int) -> int:
        return CODES[Verdict.NOT_YET] if generation > self._holdings.judge.generation else _MOVED

    # ------------------------------------------------------------------ pushes

    def _push(self, header: Push, body: memoryview) -> Answer:
        name = TaskName(header.dataset, header.epoch, header.task)
        push = pushes.Push(name, header.lease, header.generation)
        received = ReceivedPush(self.spec, header, body)
        try:
            check_gradients(self.spec.layouts, received.gradients)
        except NonFiniteGradient:
            self._figures.non_finite += 1
            raise
        self._require_room(received.gradients)
        self._holdings.lease_seen = max(self._holdings.lease_seen, header.lease)
        answers = [
            answer
            for batch in _batches(received)
            for answer in self._push_slots(header, push, received, batch)
        ]

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

    def _require_room(self, gradients: TaskGradients) -> None:
        """Raise PsMemoryError if new rows would not fit."""
        if not gradients.rows or (left := self._room.left_bytes()) is None:
            return
        owned = self._holdings.owned
        there = [(held, slot) for slot in gradients.slots if (held := owned.get(slot)) is not None]
        if not there or there[0][0].weights.most_bytes(gradients) <= left:
            return
        needed: Counter[int] = Counter()
        for held, slot in there:
            part = gradients.part(slot)
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
        self, header: Push, push: pushes.Push, received: ReceivedPush, batch: Sequence[int]
    ) -> list[tuple[int, Said, HeldSlot | None, Barrier]]:
        """Check and apply a push at several slots, ascending, under all their locks.

        The locks are taken in ascending order, and no other code takes more than one.
        """
        owned, locked = self._holdings.owned, list[HeldSlot]()
        try:
            for slot in batch:
                if (held := owned.get(slot)) is not None:
                    held.lock.acquire()
                    locked.append(held)
            there = {held.slot: held for held in locked if not held.gone}
            return self._push_locked(header, push, received, batch, there)
        finally:
            for held in locked:
                held.lock.release()

    def _push_locked(
        self,
        header: Push,
        push: pushes.Push,
        received: ReceivedPush,
        batch: Sequence[int],
        there: dict[int, HeldSlot],
    ) -> list[tuple[int, Said, HeldSlot | None, Barrier]]:
        seen = received.seen
        asked = [(slot, seen[slot]) for slot in batch if slot in there]
        judged = iter(self._holdings.judge.judge_all(push, asked))
        absent: Said = (self._absent(header.generation), -1, -1, 0)
        said: list[tuple[int, Said, HeldSlot | None]] = []
        applied: dict[float, list[HeldSlot]] = {}
        before: pushes.Answer | None = None
        for slot in batch:
            held = there.get(slot)
            if held is None:
                said.append((slot, absent, None))
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
                    group.append(held)
                else:
                    what = (CODE_UNINITIALISED, -1, -1, 0)
            said.append((slot, what, held))
        for scale, parts in applied.items():
            if parts:
                self._apply(header, push, received, parts, scale)
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
        self,
        header: Push,
        push: pushes.Push,
        received: ReceivedPush,
        applied: Sequence[HeldSlot],
        scale: float,
    ) -> None:
        slots, gradients = [held.slot for held in applied], received.gradients
        weights = {held.slot: held.weights for held in applied}
        if not weights.keys() >= set(gradients.slots):
            gradients = gradients.only(slots)
        try:
            apply_all(prepare_all(weights, gradients, header.rates), header.rates, scale)
            self._holdings.judge.record_all(slots, push)
        except BaseException as error:
            raise PsFault(f"a push to slots {slots} could not be applied: {error!r}") from error
        for held in applied:
            held.pushes += 1
            if held.copies or self._settings.journal is not None:
                self._pass_on(header, received, held, scale)

    def _pass_on(self, header: Push, received: ReceivedPush, held: HeldSlot, scale: float) -> None:
        """Send an applied push to the slot's copies and the journal."""
        bitmap, rows, sections = received.message(held.slot)
        message = Replicate(
            generation=self._holdings.map.generation,
            sender=self._holdings.ps_id,
            slot=held.slot,
            life=held.record.life,
            version=held.record.version,
            lease=header.lease,
            attempt=header.attempt,
            dataset=header.dataset,
            epoch=header.epoch,
            task=header.task,
            rates=header.rates,
            scale=scale,
            blocks=bitmap,
            rows=rows,
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


def _batches(received: ReceivedPush) -> Iterator[Sequence[int]]:
    """Divide a push into batches of slots, each applied under one hold of their locks."""
    slots = list(received.seen)
    if received.body_bytes <= BATCH_BYTES:
        if slots:
            yield slots
        return
    sizes = received.bytes
    start, total = 0, 0
    for number, slot in enumerate(slots):
        own = sizes.get(slot, 0)
        if number > start and total + own > BATCH_BYTES:
            yield slots[start:number]
            start, total = number, 0
        total += own
    if start < len(slots):
        yield slots[start:]


def timed(figures: Figures, header: Header, began: float, received: int, sent: int) -> None:
    """Count an answered request."""
    if isinstance(header, frames.Push | frames.Pull):
        kind = "push" if isinstance(header, frames.Push) else "pull"
        figures.frame(kind, time.monotonic() - began, received, sent)
