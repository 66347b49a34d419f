"""Pulls and pushes at the parameter servers that the newest map names.

Slots without a final answer are asked for again, at whoever has them by then. Requests of one round are in
flight together; a round ends when all have answered, or those that have not are no owners any more.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from typing import Final

import structlog

from elastane.slots.access import PulledSlot, PulledSlots, PushedTask, PushOutcome, Wanted
from elastane.slots.connection import Into, PsConnection, Reply, anywhere
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
from elastane.slots.handshake import PsHandshakeError
from elastane.slots.map_message import ToldMap
from elastane.slots.map_watch import MapWatch
from elastane.slots.push_state import REASONS, PushState, pause_seconds, verdict_of
from elastane.slots.wire import Piece, pad
from elastane.tables.layout import bytes_of, cut, padded_sum, push_messages
from elastane.tables.spec import ModelSpec
from elastane_common.errors import ElastaneError
from elastane_slots.pushes import RETURNED_VERDICTS
from elastane_slots.pushes import Pulled as Seen

_log = structlog.get_logger(__name__)

#: A request is divided if it, or its answer, has more.
REQUEST_BYTES_MAX: Final = 2**28
#: How often it is looked whether the map still names those that have not answered.
_LOOK_SECONDS: Final = 0.05
#: How long it is tried again what a parameter server has refused: it may not know the model yet.
REFUSED_SECONDS: Final = 10.0
#: How often it is said that slots are waited for.
_SAY_SECONDS: Final = 10.0

Body = Sequence[Piece]


class PsUnreachableError(ElastaneError):
    """A slot was not served within the time limit."""

    code = "ELA485"


class _Conversation:
    """What is asked of several slots: `open` are those without a final answer."""

    open: set[int]

    def size(self, slot: int) -> int:
        """Bytes of the request and of its answer, the larger."""
        raise NotImplementedError

    def request(self, generation: int, slots: list[int]) -> tuple[Header, Body]:
        raise NotImplementedError

    def answered(self, slots: list[int], reply: Reply) -> None:
        """Take an answer. Raises SlotFrameError for one that does not fit the request."""
        raise NotImplementedError


@dataclass
class _Asked:
    owner: str
    slots: list[int]
    future: Future[Reply]
    connection: PsConnection


class SlotClient:
    """Implements SlotAccess. initial: returns the initial blocks of a slot, as the model was registered.

    digest: of these values. timeout_seconds: how long slots may be without an answer. require_open: called
    while slots are waited for; raises what ends the waiting, as when the job is over.
    """

    def __init__(
        self,
        spec: ModelSpec,
        watch: MapWatch,
        *,
        digest: bytes,
        initial: Callable[[int], list[memoryview]],
        timeout_seconds: float,
        require_open: Callable[[], None] = lambda: None,
        journal: bool = False,
    ) -> None:
        self._spec, self._watch, self._digest, self._initial = spec, watch, digest, initial
        self._timeout_seconds = timeout_seconds
        self._require_open = require_open
        self._journal = journal
        self._connections = _Connections()

    def pull(self, lease: int, generation: int, wanted: Mapping[int, Wanted]) -> PulledSlots:
        self._know(generation)
        pulling = _Pulling(self._spec, lease, wanted)
        self._converse(pulling)
        return PulledSlots(pulling.found, pulling.returned)

    def push(self, task: PushedTask) -> PushOutcome:
        self._know(task.generation)
        pushing = _Pushing(self._spec, task, journal=self._journal)
        self._converse(pushing)
        assert pushing.state.outcome is not None
        return pushing.state.outcome

    def close(self) -> None:
        """End all connections, and the watch. Requests in flight fail."""
        self._connections.close()
        self._watch.close()

    def _know(self, generation: int) -> None:
        """Wait for the map of a lease."""
        until = time.monotonic() + self._timeout_seconds
        while self._watch.beyond(generation - 1, 1.0).map.generation < generation:
            self._require_open()
            if time.monotonic() > until:
                raise PsUnreachableError(f"the slot map of generation {generation} has not come")

    def _converse(self, conversation: _Conversation) -> None:
        """Ask until no slot is open. Raises PsUnreachableError, and SlotFrameError if it is refused."""
        rounds, since = 0, time.monotonic()
        patience, initial = _Patience(since), _Patience(since)
        while left := set(conversation.open):
            told = self._watch.newest
            asked = self._ask(told, conversation, left)
            self._await(asked)
            self._take(conversation, asked, patience)
            if uninitialised := getattr(conversation, "uninitialised", None):
                self._initialise(told, sorted(uninitialised), initial)
                uninitialised.clear()
            if not conversation.open:
                return
            now = time.monotonic()
            if len(conversation.open) < len(left):
                rounds, since = 0, now
                continue
            self._require_open()
            if now - since > self._timeout_seconds:
                raise PsUnreachableError(
                    f"slot {min(conversation.open)} and {len(conversation.open) - 1} others were not served"
                    f" for {self._timeout_seconds:g} s",
                    hint="are there parameter servers? `elastane ps JOB` shows who has which slots",
                    slots=sorted(conversation.open),
                )
            patience.say(now, len(conversation.open))
            self._watch.beyond(told.map.generation, pause_seconds(rounds))
            rounds += 1

    def _initialise(self, told: ToldMap, slots: list[int], patience: _Patience) -> None:
        """Give slots their initial values, once: whoever is refused asks again in the next round."""
        initialising = _Initialising(self._spec, self._digest, self._initial)
        asked = self._ask(told, initialising, slots)
        self._await(asked)
        self._take(initialising, asked, patience)

    def _ask(self, told: ToldMap, conversation: _Conversation, slots: Iterable[int]) -> list[_Asked]:
        """Send requests for slots to their owners, in `told`."""
        owned: dict[str, list[int]] = defaultdict(list)
        for slot in sorted(slots):
            if slot < len(told.map.places) and (owner := told.map.places[slot].owner):
                owned[owner].append(slot)
        asked = []
        for owner, own in owned.items():
            address = told.addresses.get(owner)
            connection = self._connections.open(owner, address) if address is not None else None
            if connection is None:
                continue
            for part in _divided(own, conversation.size):
                header, body = conversation.request(told.map.generation, part)
                sent = connection.send(header, body, bounded(conversation, part))
                asked.append(_Asked(owner, part, sent, connection))
        return asked

    def _await(self, asked: list[_Asked]) -> None:
        """Wait for answers; a connection to who owns none of the slots any more is given up."""
        pending = list(asked)
        while pending:
            wait([request.future for request in pending], timeout=_LOOK_SECONDS)
            pending = [request for request in pending if not request.future.done()]
            places = self._watch.newest.map.places
            for request in pending:
                if all(places[slot].owner != request.owner for slot in request.slots):
                    request.connection.close()

    def _take(self, conversation: _Conversation, asked: list[_Asked], patience: _Patience) -> None:
        for request in asked:
            try:
                reply = request.future.result()
            except ElastaneError as error:
                if "refused" in error.facts:
                    patience.refused(error)
                continue  # the connection is broken: asked again, where the slots are by then
            except OSError:
                continue
            conversation.answered(request.slots, reply)
            patience.refused_since = None


@dataclass
class _Patience:
    """How long one conversation has waited. said: when this was last told."""

    said: float
    refused_since: float | None = None

    def refused(self, error: ElastaneError) -> None:
        """Raise a refusal that lasts."""
        now = time.monotonic()
        self.refused_since = self.refused_since or now
        if now - self.refused_since > REFUSED_SECONDS:
            raise error

    def say(self, now: float, slots: int) -> None:
        if now - self.said > _SAY_SECONDS:
            self.said = now
            _log.info("waiting for parameter servers", slots=slots)


@dataclass
class _Connections:
    """Open connections by parameter server."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    opened: dict[str, tuple[tuple[str, bytes], PsConnection]] = field(default_factory=dict)
    #: Held while one is opened: a host that does not answer keeps nobody else waiting.
    opening: dict[str, threading.Lock] = field(default_factory=dict)
    closed: bool = False

    def open(self, owner: str, address: tuple[str, bytes]) -> PsConnection | None:
        """Return a connection that stands; None if it cannot be opened now."""
        with self.lock:
            opening = self.opening.setdefault(owner, threading.Lock())
        with opening:
            known, connection = self.opened.get(owner, (None, None))
            if connection is not None and known == address and connection.error is None:
                return connection
            if connection is not None:
                connection.close()
            try:
                opened = PsConnection(*address)
            except (OSError, SlotFrameError, PsHandshakeError) as error:
                _log.debug("a parameter server cannot be reached", ps=owner, error=str(error))
                return None
            with self.lock:
                if self.closed:
                    opened.close()
                    return None
                self.opened[owner] = (address, opened)
            return opened

    def close(self) -> None:
        with self.lock:
            self.closed = True
            opened = [connection for _, connection in self.opened.values()]
            self.opened.clear()
        for connection in opened:
            with suppress(OSError):
                connection.close()


class _Pulling(_Conversation):
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
        self._bytes = {
            slot: max(size, layouts[slot].pull_bytes(self._rows[slot]))
            for slot, size in self._answer_bytes.items()
        }
        self.uninitialised: set[int] = set()
        self.found: dict[int, PulledSlot] = {}
        self.returned = ""

    def size(self, slot: int) -> int:
        return self._bytes[slot]

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


class _Pushing(_Conversation):
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


class _Initialising(_Conversation):
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


def bounded(conversation: _Conversation, slots: Iterable[int]) -> Into:
    """Memory for an answer that may be this long: what a parameter server announces is not believed."""
    most = sum(conversation.size(slot) for slot in slots)

    def into(header: Header, size: int) -> Sequence[memoryview]:
        if size > most:
            raise SlotFrameError(f"an answer of {size} bytes, of {most} at most")
        return anywhere(header, size)

    return into


def _divided(slots: list[int], size: Callable[[int], int]) -> Iterator[list[int]]:
    """Divide slots into requests of at most REQUEST_BYTES_MAX, or of one slot."""
    part: list[int] = []
    total = 0
    for slot in slots:
        own = size(slot)
        if part and total + own > REQUEST_BYTES_MAX:
            yield part
            part, total = [], 0
        part.append(slot)
        total += own
    if part:
        yield part
