"""What a worker asks of slots: to be pulled, to take a push, or initial values.

A conversation makes the requests for any of its slots, and takes the answers; `SlotClient` decides who is
asked, and how often.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, Generic, TypeVar

from elastane.slots.access import PulledSlot, PulledSlots, PushedTask, PushOutcome, Wanted
from elastane.slots.connection import Into, Reply, anywhere
from elastane.slots.frames import (
    CODE_UNINITIALISED,
    Header,
    Init,
    Inited,
    Pull,
    Pulled,
    PullSlot,
    Push,
    Pushed,
    PushSlot,
    SlotFrameError,
)
from elastane.slots.push_state import REASONS, PushState, verdict_of
from elastane.slots.wire import Piece, pad
from elastane.tables.layout import bytes_of, cut, padded_sum, push_messages
from elastane.tables.spec import ModelSpec
from elastane_slots.pushes import RETURNED_VERDICTS
from elastane_slots.pushes import Pulled as Seen

Body = Sequence[Piece]
Result = TypeVar("Result")


class Conversation(Generic[Result]):
    """What is asked of several slots: `open` are those without a final answer."""

    open: set[int]

    def size(self, slot: int) -> int:
        """Bytes of the request and of its answer, the larger."""
        raise NotImplementedError

    def request_bytes(self, slot: int) -> int:
        """Bytes of the request."""
        return self.size(slot)

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

    def __init__(self, spec: ModelSpec, lease: int, wanted: Mapping[int, Wanted]) -> None:
        self._lease, self._wanted = lease, wanted
        self.open = set(wanted)
        self._rows = {slot: [(table, len(ids)) for table, ids in one.rows] for slot, one in wanted.items()}
        layouts = spec.layouts
        #: By slot, bytes of the sections of its answer.
        self._sections = {
            slot: layouts[slot].pulled_sections(one.dense, self._rows[slot]) for slot, one in wanted.items()
        }
        self._answer_bytes = {slot: padded_sum(sizes) for slot, sizes in self._sections.items()}
        self._request_bytes = {slot: layouts[slot].pull_bytes(rows) for slot, rows in self._rows.items()}
        self.uninitialised: set[int] = set()
        self.found: dict[int, PulledSlot] = {}
        self.returned = ""

    def size(self, slot: int) -> int:
        return max(self._answer_bytes[slot], self._request_bytes[slot])

    def request_bytes(self, slot: int) -> int:
        return self._request_bytes[slot]

    def result(self) -> PulledSlots:
        return PulledSlots(self.found, self.returned)

    def request(self, generation: int, slots: list[int]) -> tuple[Header, Body]:
        asked = [PullSlot(slot, self._wanted[slot].dense, self._rows[slot]) for slot in slots]
        body = pad([bytes_of(ids) for slot in slots for _, ids in self._wanted[slot].rows])
        return Pull(generation, 0 if self.returned else self._lease, asked), body

    def answered(self, slots: list[int], reply: Reply) -> None:
        header = reply.header
        if not isinstance(header, Pulled) or [entry.slot for entry in header.slots] != slots:
            raise SlotFrameError("a pull was answered with something else")
        rest = reply.body[0] if reply.body else memoryview(b"")
        for entry in header.slots:
            if entry.code == CODE_UNINITIALISED:
                self.uninitialised.add(entry.slot)
            elif verdict := verdict_of(entry.code):
                if verdict in RETURNED_VERDICTS:
                    self.returned = REASONS[verdict].format(entry.slot)
            else:
                taken = self._answer_bytes[entry.slot]
                if taken > len(rest) or entry.life < 0 or entry.version < 0:
                    raise SlotFrameError(f"slot {entry.slot} was answered with {len(rest)} bytes")
                if entry.slot in self.open:
                    sections = cut(rest, self._sections[entry.slot])
                    self.found[entry.slot] = PulledSlot(Seen(entry.life, entry.version), sections)
                    self.open.discard(entry.slot)
                rest = rest[taken:]


class Pushing(Conversation[PushOutcome]):
    def __init__(self, spec: ModelSpec, task: PushedTask, *, journal: bool) -> None:
        self._task = task
        self.state = PushState(range(spec.slots))
        parts = {slot: part for slot, part in task.parts.items() if part.blocks or part.rows}
        messages = push_messages(spec.layouts, parts)
        self._slots = {slot: self._slot(slot, *message) for slot, message in messages.items()}
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

    def size(self, slot: int) -> int:
        return self._slots[slot][0].size if slot in self._slots else 0

    def request(self, generation: int, slots: list[int]) -> tuple[Header, Body]:
        task = self._task
        header = Push(
            generation,
            task.lease,
            task.attempt,
            task.dataset,
            task.epoch,
            task.index,
            task.rates,
            [self._slots[slot][0] for slot in slots if slot in self._slots],
            [slot for slot in slots if slot not in self._slots],
            self._pulls,
            self._later,
        )
        return header, [piece for slot in slots if slot in self._slots for piece in self._slots[slot][1]]

    def answered(self, slots: list[int], reply: Reply) -> None:
        header = reply.header
        if not isinstance(header, Pushed) or sorted(chain(*(one.slots for one in header.answers))) != slots:
            raise SlotFrameError("a push was answered with something else")
        for one in header.answers:
            self.state.answered(one.slots, one.code, one.life, one.version, one.staleness, header.generation)

    def _slot(
        self, slot: int, bitmap: bytes, rows: list[tuple[int, int]], sections: list[memoryview]
    ) -> tuple[PushSlot, Body]:
        seen = self._task.seen[slot]
        size = padded_sum(map(len, sections))
        return PushSlot(slot, seen.life, seen.version, bitmap, rows, size), pad(sections)


class Initialising(Conversation[None]):
    """Initial values; what is refused here is asked for anew with the pull or push that needed them."""

    def __init__(self, spec: ModelSpec, digest: bytes, initial: Callable[[int], list[memoryview]]) -> None:
        self._spec, self._digest, self._initial = spec, digest, initial

    def size(self, slot: int) -> int:
        return padded_sum(self._spec.layout(slot).initial_sections)

    def request(self, generation: int, slots: list[int]) -> tuple[Header, Body]:
        body = [part for slot in slots for part in pad(self._initial(slot))]
        return Init(generation, self._digest, slots), body

    def answered(self, slots: list[int], reply: Reply) -> None:
        if not isinstance(reply.header, Inited):
            raise SlotFrameError("initial values were answered with something else")


def bounded(conversation: Conversation[Any], slots: Iterable[int]) -> Into:
    """Memory for an answer that may be this long: what a parameter server announces is not believed."""
    most = sum(conversation.size(slot) for slot in slots)

    def into(header: Header, size: int) -> Sequence[memoryview]:
        if size > most:
            raise SlotFrameError(f"an answer of {size} bytes, of {most} at most")
        return anywhere(header, size)

    return into
