"""Requests to parameter servers, and those of first rounds that are in flight."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from elastane.slots.connection import PsConnection, Reply
from elastane.slots.conversations import Conversation, bounded
from elastane.slots.map_message import ToldMap
from elastane.slots.map_watch import MapWatch
from elastane_common.errors import ElastaneError

#: A request is divided if it, or its answer, has more.
REQUEST_BYTES_MAX: Final = 2**28
#: How long the follower of the map waits for the next one, before it looks whether it is still needed.
_FOLLOW_SECONDS: Final = 1.0


@dataclass(eq=False)
class Asked:
    """A request that was sent. owner: the parameter server. future: its answer."""

    owner: str
    slots: list[int]
    future: Future[Reply]
    connection: PsConnection


class FirstRounds:
    """Requests of first rounds that are in flight.

    Those to who owns none of their slots any more are given up as soon as a map says so, by a thread.
    """

    def __init__(self, watch: MapWatch) -> None:
        self._watch = watch
        self._lock = threading.Lock()
        self._in_flight: set[Asked] = set()
        self._closed = False
        self._follower: threading.Thread | None = None

    def add(self, asked: list[Asked], answered: Callable[[list[Asked]], None]) -> None:
        """Follow a round. answered: called once with `asked`, from a thread that reads answers, when all have
        come or failed."""
        left = len(asked)

        def one_came(request: Asked) -> None:
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
            give_up([request for request in asked if not request.future.done()], self._watch.newest)

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
                give_up(in_flight, told)


def by_owner(told: ToldMap, slots: Iterable[int]) -> dict[str, list[int]]:
    """Return slots, ascending, by who owns them; those that nobody does are left out."""
    owned: dict[str, list[int]] = defaultdict(list)
    for slot in sorted(slots):
        if slot < len(told.map.places) and (owner := told.map.places[slot].owner):
            owned[owner].append(slot)
    return owned


def send(
    conversation: Conversation[Any], told: ToldMap, owner: str, slots: list[int], connection: PsConnection
) -> list[Asked]:
    """Send requests for slots to their owner."""
    asked = []
    for part, most_bytes in _divided(slots, conversation.size):
        header, body = conversation.request(told.map.generation, part)
        future = connection.send(header, body, bounded(most_bytes))
        asked.append(Asked(owner, part, future, connection))
    return asked


def give_up(requests: Iterable[Asked], told: ToldMap) -> None:
    """Close connections to who owns none of a request's slots any more."""
    places = told.map.places
    for request in requests:
        if all(places[slot].owner != request.owner for slot in request.slots):
            request.connection.close()


def _divided(slots: list[int], size: Callable[[Sequence[int]], int]) -> Iterator[tuple[list[int], int]]:
    """Divide slots into requests of at most REQUEST_BYTES_MAX, or of one slot, each with its bytes."""
    if (total := size(slots)) <= REQUEST_BYTES_MAX:
        yield slots, total
        return
    part: list[int] = []
    total = 0
    for slot in slots:
        own = size([slot])
        if part and total + own > REQUEST_BYTES_MAX:
            yield part, size(part)
            part, total = [], 0
        part.append(slot)
        total += own
    if part:
        yield part, size(part)
