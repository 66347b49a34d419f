"""Pulls and pushes at the parameter servers that the newest map names.

Slots without a final answer are asked for again, at whoever has them by then. Requests of one round are in
flight together; a round ends when all have answered, or those that have not are no owners any more.

What is begun, and small, is sent by the caller's thread, and its answers are taken by the thread that reads
the last of them: where every slot answers at once, no other thread is woken. The rest goes on in a thread of
its own.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Final, Generic, TypeVar

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
#: What is begun is sent by the caller's thread if it has no more: a socket takes that without waiting.
AT_ONCE_BYTES_MAX: Final = 2**18
#: How often it is looked whether the map still names those that have not answered.
_LOOK_SECONDS: Final = 0.05
#: How long it is tried again what a parameter server has refused: it may not know the model yet.
REFUSED_SECONDS: Final = 10.0
#: How often it is said that slots are waited for.
_SAY_SECONDS: Final = 10.0
#: Pulls and pushes at the same time whose first round was not enough.
_THREADS: Final = 8
#: How long the follower of the map waits for the next one, before it looks whether it is still needed.
_FOLLOW_SECONDS: Final = 1.0

Body = Sequence[Piece]
Result = TypeVar("Result")


class PsUnreachableError(ElastaneError):
    """A slot was not served within the time limit."""

    code = "ELA485"


class _Conversation(Generic[Result]):
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


@dataclass(eq=False)
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
        self._threads = ThreadPoolExecutor(_THREADS, "elastane-slots")
        self._first_rounds = _FirstRounds(watch)

    def pull(self, lease: int, generation: int, wanted: Mapping[int, Wanted]) -> PulledSlots:
        pulling = _Pulling(self._spec, lease, wanted)
        self._know(generation)
        self._converse(pulling)
        return pulling.result()

    def push(self, task: PushedTask) -> PushOutcome:
        pushing = _Pushing(self._spec, task, journal=self._journal)
        self._know(task.generation)
        self._converse(pushing)
        return pushing.result()

    def begin_pull(self, lease: int, generation: int, wanted: Mapping[int, Wanted]) -> Future[PulledSlots]:
        return self._begin(_Pulling(self._spec, lease, wanted), generation)

    def begin_push(self, task: PushedTask) -> Future[PushOutcome]:
        return self._begin(_Pushing(self._spec, task, journal=self._journal), task.generation)

    def close(self) -> None:
        """End all connections, and the watch. Requests in flight fail."""
        self._first_rounds.close()
        self._connections.close()
        self._watch.close()
        self._threads.shutdown(wait=False)

    def _begin(self, conversation: _Conversation[Result], generation: int) -> Future[Result]:
        future: Future[Result] = Future()

        def go_on() -> None:
            try:
                self._know(generation)
                self._converse(conversation)
                result = conversation.result()
            except BaseException as error:  # noqa: BLE001 - raised where the future is read
                future.set_exception(error)
            else:
                future.set_result(result)

        def answered(asked: list[_Asked]) -> None:
            try:
                self._take(conversation, asked)
                if conversation.open:
                    self._threads.submit(go_on)
                    return
                result = conversation.result()
            except Exception as error:  # noqa: BLE001 - raised where the future is read
                future.set_exception(error)
            else:
                future.set_result(result)

        if asked := self._ask_at_once(conversation, generation):
            self._first_rounds.add(asked, answered)
        else:
            self._threads.submit(go_on)
        return future

    def _ask_at_once(self, conversation: _Conversation[Any], generation: int) -> list[_Asked]:
        """Ask for all slots, if that can be done without waiting; else for none."""
        slots = conversation.open
        if sum(map(conversation.request_bytes, slots)) > AT_ONCE_BYTES_MAX:
            return []
        try:
            told = self._watch.newest
        except ElastaneError:
            return []  # raised again by `_know`
        if told.map.generation < generation:
            return []
        owned = _by_owner(told, slots)
        standing = {}
        for owner in owned:
            if (connection := self._connections.standing(owner, told.addresses.get(owner))) is None:
                return []
            standing[owner] = connection
        if sum(map(len, owned.values())) < len(slots):
            return []  # nobody has the others
        return [
            request
            for owner, own in owned.items()
            for request in _sent(conversation, told, owner, own, standing[owner])
        ]

    def _know(self, generation: int) -> None:
        """Wait for the map of a lease."""
        until = time.monotonic() + self._timeout_seconds
        while self._watch.beyond(generation - 1, 1.0).map.generation < generation:
            self._require_open()
            if time.monotonic() > until:
                raise PsUnreachableError(f"the slot map of generation {generation} has not come")

    def _converse(self, conversation: _Conversation[Any]) -> None:
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
            if self._connections.closed:
                raise SlotFrameError("the connections to parameter servers were closed")
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

    def _ask(self, told: ToldMap, conversation: _Conversation[Any], slots: Iterable[int]) -> list[_Asked]:
        """Send requests for slots to their owners, in `told`."""
        asked = []
        for owner, own in _by_owner(told, slots).items():
            address = told.addresses.get(owner)
            connection = self._connections.open(owner, address) if address is not None else None
            if connection is not None:
                asked += _sent(conversation, told, owner, own, connection)
        return asked

    def _await(self, asked: list[_Asked]) -> None:
        """Wait for answers; a connection to who owns none of the slots any more is given up."""
        for request in asked:
            while not request.future.done():
                try:
                    request.future.exception(_LOOK_SECONDS)
                except TimeoutError:
                    _give_up([one for one in asked if not one.future.done()], self._watch.newest)

    def _take(
        self, conversation: _Conversation[Any], asked: list[_Asked], patience: _Patience | None = None
    ) -> None:
        """Take answers. Raises SlotFrameError for one that does not fit its request, and, with `patience`,
        a refusal that lasts."""
        for request in asked:
            try:
                reply = request.future.result()
            except ElastaneError as error:
                if patience is not None and "refused" in error.facts:
                    patience.refused(error)
                continue  # the connection is broken: asked again, where the slots are by then
            except OSError:
                continue
            conversation.answered(request.slots, reply)
            if patience is not None:
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


class _FirstRounds:
    """Requests of first rounds that are in flight.

    Those to who owns none of their slots any more are given up as soon as a map says so, by a thread.
    """

    def __init__(self, watch: MapWatch) -> None:
        self._watch = watch
        self._lock = threading.Lock()
        self._in_flight: set[_Asked] = set()
        self._closed = False
        self._follower: threading.Thread | None = None

    def add(self, asked: list[_Asked], answered: Callable[[list[_Asked]], None]) -> None:
        """Follow a round. answered: called once with `asked`, from a thread that reads answers, when all have
        come or failed."""
        left = len(asked)

        def one_came(request: _Asked) -> None:
            nonlocal left
            with self._lock:
                self._in_flight.discard(request)
                left -= 1
                is_last = left == 0
            if is_last:
                answered(asked)

        with self._lock:
            self._in_flight.update(asked)
            if self._follower is None:
                self._follower = threading.Thread(target=self._follow, name="elastane-slots-map", daemon=True)
                self._follower.start()
        for request in asked:
            request.future.add_done_callback(lambda _, request=request: one_came(request))  # type: ignore[misc]
        # A map that came since they were sent has not seen them.
        with suppress(ElastaneError):  # the follower meets it, too
            _give_up([request for request in asked if not request.future.done()], self._watch.newest)

    def close(self) -> None:
        self._closed = True

    def _follow(self) -> None:
        generation = -1
        while not self._closed:
            try:
                told = self._watch.beyond(generation, _FOLLOW_SECONDS)
            except ElastaneError:
                told = None  # no map comes any more: who waits is told so
            with self._lock:
                in_flight = list(self._in_flight)
            if told is None:
                for request in in_flight:
                    request.connection.close()
                return
            if told.map.generation > generation:
                generation = told.map.generation
                _give_up(in_flight, told)


@dataclass
class _Connections:
    """Open connections by parameter server."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    opened: dict[str, tuple[tuple[str, bytes], PsConnection]] = field(default_factory=dict)
    #: Held while one is opened: a host that does not answer keeps nobody else waiting.
    opening: dict[str, threading.Lock] = field(default_factory=dict)
    closed: bool = False

    def standing(self, owner: str, address: tuple[str, bytes] | None) -> PsConnection | None:
        """Return a connection that is open already; None if there is none."""
        known, connection = self.opened.get(owner, (None, None))
        stands = connection is not None and known == address and connection.error is None
        return connection if stands else None

    def open(self, owner: str, address: tuple[str, bytes]) -> PsConnection | None:
        """Return a connection that stands; None if it cannot be opened now."""
        with self.lock:
            opening = self.opening.setdefault(owner, threading.Lock())
        with opening:
            if (connection := self.standing(owner, address)) is not None:
                return connection
            if owner in self.opened:
                self.opened[owner][1].close()
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


class _Pulling(_Conversation[PulledSlots]):
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


class _Pushing(_Conversation[PushOutcome]):
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


class _Initialising(_Conversation[None]):
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


def bounded(conversation: _Conversation[Any], slots: Iterable[int]) -> Into:
    """Memory for an answer that may be this long: what a parameter server announces is not believed."""
    most = sum(conversation.size(slot) for slot in slots)

    def into(header: Header, size: int) -> Sequence[memoryview]:
        if size > most:
            raise SlotFrameError(f"an answer of {size} bytes, of {most} at most")
        return anywhere(header, size)

    return into


def _by_owner(told: ToldMap, slots: Iterable[int]) -> dict[str, list[int]]:
    """Return slots, ascending, by who owns them; those that nobody does are left out."""
    owned: dict[str, list[int]] = defaultdict(list)
    for slot in sorted(slots):
        if slot < len(told.map.places) and (owner := told.map.places[slot].owner):
            owned[owner].append(slot)
    return owned


def _sent(
    conversation: _Conversation[Any], told: ToldMap, owner: str, slots: list[int], connection: PsConnection
) -> list[_Asked]:
    """Send requests for slots to their owner."""
    asked = []
    for part in _divided(slots, conversation.size):
        header, body = conversation.request(told.map.generation, part)
        sent = connection.send(header, body, bounded(conversation, part))
        asked.append(_Asked(owner, part, sent, connection))
    return asked


def _give_up(requests: Iterable[_Asked], told: ToldMap) -> None:
    """Close connections to who owns none of a request's slots any more."""
    places = told.map.places
    for request in requests:
        if all(places[slot].owner != request.owner for slot in request.slots):
            request.connection.close()


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
