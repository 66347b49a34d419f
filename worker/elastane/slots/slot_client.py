"""Pulls and pushes at the parameter servers that the newest map names.

Slots without a final answer are asked for again, at whoever has them by then. Requests of one round are in
flight together; a round ends when all have answered, or those that have not are no owners any more.

What is begun, and small, is sent by the caller's thread, and its answers are taken by the thread that reads
the last of them: where every slot answers at once, no other thread is woken. The rest goes on in a thread of
its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

import structlog

from elastane.slots.access import PulledSlots, PushedTask, PushOutcome, Wanted
from elastane.slots.conversations import Conversation, Initialising, Pulling, Pushing, Result
from elastane.slots.frames import SlotFrameError
from elastane.slots.map_message import ToldMap
from elastane.slots.map_watch import MapWatch
from elastane.slots.open_connections import OpenConnections
from elastane.slots.push_state import pause_seconds
from elastane.slots.slot_requests import Asked, FirstRounds, by_owner, give_up, send
from elastane.tables.spec import ModelSpec
from elastane_common.errors import ElastaneError

_log = structlog.get_logger(__name__)

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


class PsUnreachableError(ElastaneError):
    """A slot was not served within the time limit."""

    code = "ELA485"


class SlotClient:
    """Implements SlotAccess. initial: returns the initial blocks of a slot, as the model was registered.

    digest: of these values. timeout_seconds: how long slots may be without an answer. require_open: called
    while slots are waited for; raises what ends the waiting, as when the job is over. encrypted: connections
    are TLS, and `pull` and `push` raise RefusedError at a server that does not encrypt.
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
        encrypted: bool,
    ) -> None:
        self._spec, self._watch, self._digest, self._initial = spec, watch, digest, initial
        self._timeout_seconds = timeout_seconds
        self._require_open = require_open
        self._journal = journal
        self._connections = OpenConnections(encrypted)
        self._threads = ThreadPoolExecutor(_THREADS, "elastane-slots")
        self._first_rounds = FirstRounds(watch)

    def pull(self, lease: int, generation: int, wanted: Wanted) -> PulledSlots:
        pulling = Pulling(self._spec, lease, wanted)
        self._know(generation)
        self._converse(pulling)
        return pulling.result()

    def push(self, task: PushedTask) -> PushOutcome:
        pushing = Pushing(self._spec, task, journal=self._journal)
        self._know(task.generation)
        self._converse(pushing)
        return pushing.result()

    def begin_pull(self, lease: int, generation: int, wanted: Wanted) -> Future[PulledSlots]:
        return self._begin(Pulling(self._spec, lease, wanted), generation)

    def begin_push(self, task: PushedTask) -> Future[PushOutcome]:
        return self._begin(Pushing(self._spec, task, journal=self._journal), task.generation)

    def close(self) -> None:
        """End all connections, and the watch. Requests in flight fail."""
        self._first_rounds.close()
        self._connections.close()
        self._watch.close()
        self._threads.shutdown(wait=False)

    def _begin(self, conversation: Conversation[Result], generation: int) -> Future[Result]:
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

        def answered(asked: list[Asked]) -> None:
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

    def _ask_at_once(self, conversation: Conversation[Any], generation: int) -> list[Asked]:
        """Ask for all slots, if that can be done without waiting; else for none."""
        slots = conversation.open
        if conversation.request_bytes(sorted(slots)) > AT_ONCE_BYTES_MAX:
            return []
        try:
            told = self._watch.newest
        except ElastaneError:
            return []  # raised again by `_know`
        if told.map.generation < generation:
            return []
        owned = by_owner(told, slots)
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
            for request in send(conversation, told, owner, own, standing[owner])
        ]

    def _know(self, generation: int) -> None:
        """Wait for the map of a lease."""
        until = time.monotonic() + self._timeout_seconds
        while self._watch.beyond(generation - 1, 1.0).map.generation < generation:
            self._require_open()
            if time.monotonic() > until:
                raise PsUnreachableError(f"the slot map of generation {generation} has not come")

    def _converse(self, conversation: Conversation[Any]) -> None:
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
        initialising = Initialising(self._spec, self._digest, self._initial)
        asked = self._ask(told, initialising, slots)
        self._await(asked)
        self._take(initialising, asked, patience)

    def _ask(self, told: ToldMap, conversation: Conversation[Any], slots: Iterable[int]) -> list[Asked]:
        """Send requests for slots to their owners, in `told`."""
        asked = []
        for owner, own in by_owner(told, slots).items():
            address = told.addresses.get(owner)
            connection = self._connections.open(owner, address) if address is not None else None
            if connection is not None:
                asked += send(conversation, told, owner, own, connection)
        return asked

    def _await(self, asked: list[Asked]) -> None:
        """Wait for answers; a connection to who owns none of the slots any more is given up."""
        for request in asked:
            while not request.future.done():
                try:
                    request.future.exception(_LOOK_SECONDS)
                except TimeoutError:
                    give_up([one for one in asked if not one.future.done()], self._watch.newest)

    def _take(
        self, conversation: Conversation[Any], asked: list[Asked], patience: _Patience | None = None
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
