"""Which connections of strangers are ended. Pure: places, times, bytes and calls in, the places to end out.

A stranger is a connection on which no call with a known token has come yet. It is let in with the first
one; until then it may stand for `seconds`, send `bytes_max`, ask `calls_max` times, and be one of
`per_address_max` of its address and `strangers_max` of all, who together may send `bytes_in_all_max`. Of
too many, those go first that were refused something already, then whom the dice choose: not the oldest, who
are next to be heard where thousands of workers come at once, nor the newest, since then whoever stands
there first keeps everybody else out. Of those who send too much together, those go who sent the most:
whoever has a token needs few bytes to show it.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

Place = tuple[str, int]
"""Where a connection comes from: address and port."""


_NOT_SEEN = 0
"""Identity of a connection whose first call came before it was looked at."""


@dataclass(frozen=True, slots=True)
class StrangerLimits:
    """What strangers may take up; every number is a maximum."""

    seconds: float = 20.0
    calls_max: int = 8
    bytes_max: int = 256 * 1024
    bytes_in_all_max: int = 16 * 1024 * 1024
    per_address_max: int = 64
    strangers_max: int = 256


@dataclass(slots=True)
class _Connection:
    """One connection. identity: tells it from a later one of the same place."""

    identity: int
    since: float
    member: bool = False
    calls: int = 0


class Strangers:
    """All connections to a port. dice: choose among equals."""

    def __init__(self, limits: StrangerLimits, dice: random.Random) -> None:
        self._limits = limits
        self._dice = dice
        self._connections: dict[Place, _Connection] = {}

    @property
    def any(self) -> bool:
        """Whether one stood there at the last look."""
        return any(not connection.member for connection in self._connections.values())

    def let_in(self, place: Place, now: float) -> None:
        """A call of this connection bore a known token."""
        self._at(place, now).member = True

    def asked(self, place: Place, now: float) -> bool:
        """A call came without a known token; whether the connection is to be ended for that."""
        connection = self._at(place, now)
        connection.calls += 1
        return not connection.member and connection.calls > self._limits.calls_max

    def standing(
        self, present: Mapping[Place, int], received: Callable[[Place], int], now: float
    ) -> list[Place]:
        """Which connections to end of those that stand now.

        present: what identifies each, by its place; received: how many bytes one has sent since it was made.
        """
        self._connections = {place: self._known(place, identity, now) for place, identity in present.items()}
        return self._too_many(received, now)

    def _known(self, place: Place, identity: int, now: float) -> _Connection:
        connection = self._connections.get(place)
        if connection is None or connection.identity not in (identity, _NOT_SEEN):
            return _Connection(identity, now)
        connection.identity = identity
        return connection

    def _too_many(self, received: Callable[[Place], int], now: float) -> list[Place]:
        limits = self._limits
        strangers = [
            (one.calls > 0, self._dice.random(), received(place), place, one)
            for place, one in self._connections.items()
            if not one.member
        ]
        strangers.sort(key=lambda stranger: stranger[:2])
        of_address: Counter[str] = Counter()
        ended: list[Place] = []
        stay: list[tuple[int, Place]] = []
        for _, _, size, place, one in strangers:
            if (
                now - one.since > limits.seconds
                or one.calls > limits.calls_max
                or size > limits.bytes_max
                or of_address[place[0]] >= limits.per_address_max
                or len(stay) >= limits.strangers_max
            ):
                ended.append(place)
            else:
                of_address[place[0]] += 1
                stay.append((size, place))
        stay.sort(reverse=True)
        surplus = sum(size for size, _ in stay) - limits.bytes_in_all_max
        for size, place in stay:
            if surplus <= 0:
                break
            surplus -= size
            ended.append(place)
        return ended

    def _at(self, place: Place, now: float) -> _Connection:
        return self._connections.setdefault(place, _Connection(_NOT_SEEN, now))
