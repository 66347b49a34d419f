"""What a worker asks of slots: to be pulled, to take a push, or initial values.

A conversation makes the requests for any of its slots, and takes the answers; `SlotClient` decides who is
asked, and how often.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain
from typing import Generic, TypeVar

from elastane.slots.access import PulledSlots, PushedTask, PushOutcome, Wanted
from elastane.slots.connection import Into, Reply, anywhere
from elastane.slots.frames import (
    CODE_UNINITIALISED,
    Header,
    Init,
    Inited,
    Pull,
    Pulled,
    Push,
    Pushed,
    SlotFrameError,
)
from elastane.slots.push_state import REASONS, PushState, verdict_of
from elastane.slots.wire import Piece, pad
from elastane.tables.by_slot import bytes_in_ranges, in_ranges
from elastane.tables.layout import ID_BYTES, bytes_of, cut, padded, padded_sum, values_of
from elastane.tables.spec import ModelSpec
from elastane_slots.pushes import RETURNED_VERDICTS
from elastane_slots.pushes import Pulled as Seen

Body = Sequence[Piece]
Result = TypeVar("Result")


class Conversation(Generic[Result]):
    """What is asked of several slots: `open` are those without a final answer. Slots are given ascending."""

    open: set[int]

    def size(self, slots: Sequence[int]) -> int:
        """Bytes of a request for slots, or of its answer, the larger."""
        raise NotImplementedError

    def request_bytes(self, slots: Sequence[int]) -> int:
        """Bytes of a request for slots."""
        return self.size(slots)

    def request(self, generation: int, slots: list[int]) -> tuple[Header, Body]:
        raise NotImplementedError

    def answered(self, slots: list[int], reply: Reply) -> None:
        """Take an answer. Raises SlotFrameError for one that does not fit the request."""
        raise NotImplementedError

    def result(self) -> Result:
        """Return what has come of it; called when no slot is open."""
        raise NotImplementedError


class Pulling(Conversation[PulledSlots]):
    """returned: why the lease is not served any more; the slots are read all the same then, without it."""

    def __init__(self, spec: ModelSpec, lease: int, wanted: Wanted) -> None:
        self._lease, self._wanted = lease, wanted
        self._layouts = spec.layouts
        self._dense = frozenset(wanted.dense)
        self.open = set(wanted.slots)
        self.uninitialised: set[int] = set()
        self._found = PulledSlots()
        self.returned = ""

    def size(self, slots: Sequence[int]) -> int:
        return max(self._answer_bytes(slots), self.request_bytes(slots))

    def request_bytes(self, slots: Sequence[int]) -> int:
        return sum(padded(ID_BYTES * sum(one.counts(slots))) for one in self._wanted.rows)

    def result(self) -> PulledSlots:
        return replace(self._found, returned=self.returned)

    def request(self, generation: int, slots: list[int]) -> tuple[Header, Body]:
        rows, ids = [], []
        for one in self._wanted.rows:
            if ranges := one.ranges(slots):
                rows.append((one.table, one.counts(slots)))
                ids.append(bytes_of(in_ranges(one.ids, ranges)))
        dense = [slot for slot in slots if slot in self._dense]
        return Pull(generation, 0 if self.returned else self._lease, slots, dense, rows), pad(ids)

    def answered(self, slots: list[int], reply: Reply) -> None:
        header = reply.header
        if not isinstance(header, Pulled) or sorted(chain(*(one.slots for one in header.answers))) != slots:
            raise SlotFrameError("a pull was answered with something else")
        seen: dict[int, Seen] = {}
        for one in header.answers:
            if one.code == CODE_UNINITIALISED:
                self.uninitialised.update(one.slots)
            elif verdict := verdict_of(one.code):
                if verdict in RETURNED_VERDICTS and one.slots:
                    self.returned = REASONS[verdict].format(one.slots[0])
            elif one.life < 0 or one.version < 0:
                raise SlotFrameError(f"slots {one.slots} are of life {one.life}, version {one.version}")
            else:
                seen.update(dict.fromkeys(one.slots, Seen(one.life, one.version)))
        self._take(seen, reply.body[0] if reply.body else memoryview(b""))

    def _take(self, seen: dict[int, Seen], body: memoryview) -> None:
        """Take the data of the slots that have some."""
        there = sorted(seen)
        if self._answer_bytes(there) != len(body):
            raise SlotFrameError(f"slots {there} were answered with {len(body)} bytes")
        new = [slot for slot in there if slot in self.open]
        found = self._found
        for slot in there:
            if slot in self._dense:
                layout = self._layouts[slot]
                if slot in self.open:
                    found.blocks[slot] = cut(body, layout.block_sizes)
                body = body[layout.padded_blocks_bytes :]
        for one in self._wanted.rows:
            row_bytes = self._layouts[0].wire_rows[one.table]
            start = 0
            for begin, end in one.ranges(there) if len(new) == len(there) else ():
                rows = body[start : start + (end - begin) * row_bytes]
                found.rows.append((one.table, one.ids[begin:end], rows))
                start += len(rows)
            if len(new) < len(there):  # some were answered before
                for slot in there:
                    ids = one.of_slot(slot)
                    rows = body[start : start + len(ids) * row_bytes]
                    if slot in self.open and len(ids):
                        found.rows.append((one.table, ids, rows))
                    start += len(rows)
            body = body[padded(start) :]
        for slot in new:
            found.seen[slot] = seen[slot]
        self.open.difference_update(new)

    def _answer_bytes(self, slots: Sequence[int]) -> int:
        layouts = self._layouts
        total = sum(layouts[slot].padded_blocks_bytes for slot in slots if slot in self._dense)
        for one in self._wanted.rows:
            total += padded(layouts[0].wire_rows[one.table] * sum(one.counts(slots)))
        return total


class Pushing(Conversation[PushOutcome]):
    def __init__(self, spec: ModelSpec, task: PushedTask, *, journal: bool) -> None:
        self._task = task
        self.state = PushState(range(spec.slots))
        layouts, gradients = spec.layouts, task.gradients
        self._touched = frozenset(gradients.slots)
        #: By slot: bitmap, sections and their bytes.
        self._blocks: dict[int, tuple[bytes, Body, int]] = {}
        for slot, blocks in gradients.blocks.items():
            if blocks:
                sections = layouts[slot].block_sections(blocks)
                self._blocks[slot] = (
                    layouts[slot].bitmap(blocks),
                    pad(sections),
                    padded_sum(map(len, sections)),
                )
        #: Of each table: its rows, ids and values as they are sent, bytes of a row's values.
        self._rows = [
            (
                one,
                bytes_of(one.ids),
                values_of(one.values, layouts[0].row_dtype(one.table)),
                layouts[0].wire_rows[one.table],
            )
            for one in gradients.rows
        ]
        self._pulls = list[tuple[int, int]]()
        if journal:
            nothing = Seen(-1, -1)
            seen = [task.seen.get(slot, nothing) for slot in range(spec.slots)]
            self._pulls = [(one.life, one.version) for one in seen]
        self._later = task.later if journal else []

    def result(self) -> PushOutcome:
        assert self.state.outcome is not None
        return self.state.outcome

    @property
    def open(self) -> set[int]:  # type: ignore[override]
        return set() if self.state.outcome is not None else self.state.open

    @property
    def uninitialised(self) -> set[int]:
        return self.state.uninitialised

    def size(self, slots: Sequence[int]) -> int:
        total = sum(self._blocks[slot][2] for slot in slots if slot in self._blocks)
        for one, _, _, row_bytes in self._rows:
            count = sum(one.counts(slots))
            total += padded(ID_BYTES * count) + padded(row_bytes * count)
        return total

    def request(self, generation: int, slots: list[int]) -> tuple[Header, Body]:
        task = self._task
        own = [slot for slot in slots if slot in self._touched]
        blocks, rows, body = [], [], list[Piece]()
        for slot in own:
            if slot in self._blocks:
                bitmap, sections, _ = self._blocks[slot]
                blocks.append((slot, bitmap))
                body += sections
        for one, ids, values, row_bytes in self._rows:
            if ranges := one.ranges(own):
                rows.append((one.table, one.counts(own)))
                parts = bytes_in_ranges(ids, ranges, ID_BYTES), bytes_in_ranges(values, ranges, row_bytes)
                body += pad(parts)
        header = Push(
            generation,
            task.lease,
            task.attempt,
            task.dataset,
            task.epoch,
            task.index,
            task.rates,
            own,
            [(seen.life, seen.version) for seen in map(task.seen.__getitem__, own)],
            blocks,
            rows,
            [slot for slot in slots if slot not in self._touched],
            self._pulls,
            self._later,
        )
        return header, body

    def answered(self, slots: list[int], reply: Reply) -> None:
        header = reply.header
        if not isinstance(header, Pushed) or sorted(chain(*(one.slots for one in header.answers))) != slots:
            raise SlotFrameError("a push was answered with something else")
        for one in header.answers:
            self.state.answered(one.slots, one.code, one.life, one.version, one.staleness, header.generation)


class Initialising(Conversation[None]):
    """Initial values; what is refused here is asked for anew with the pull or push that needed them."""

    def __init__(self, spec: ModelSpec, digest: bytes, initial: Callable[[int], list[memoryview]]) -> None:
        self._spec, self._digest, self._initial = spec, digest, initial

    def size(self, slots: Sequence[int]) -> int:
        return sum(padded_sum(self._spec.layout(slot).initial_sections) for slot in slots)

    def request(self, generation: int, slots: list[int]) -> tuple[Header, Body]:
        body = [part for slot in slots for part in pad(self._initial(slot))]
        return Init(generation, self._digest, slots), body

    def answered(self, slots: list[int], reply: Reply) -> None:
        if not isinstance(reply.header, Inited):
            raise SlotFrameError("initial values were answered with something else")


def bounded(most_bytes: int) -> Into:
    """Memory for an answer that may be this long: what a parameter server announces is not believed."""

    def into(header: Header, size: int) -> Sequence[memoryview]:
        if size > most_bytes:
            raise SlotFrameError(f"an answer of {size} bytes, of {most_bytes} at most")
        return anywhere(header, size)

    return into
