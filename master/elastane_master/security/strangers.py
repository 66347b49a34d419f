"""Which connections of strangers are heard, and which are ended. Pure: places, times, bytes and calls in.

A stranger is a connection on which no call with a known token has come yet. It is let in with the first
one; until then it may stand for `seconds`, be heard for `bytes_max` and `calls_max` (what comes after that
waits), be refused `calls_max` times, and be one of `per_address_max` of its address and `strangers_max` of
all. Of too many, those go first that are not heard any more or were refused something, then whom the dice
choose: not the oldest, who are next to be heard where thousands of workers come at once, nor the newest,
since then whoever stands there first keeps everybody else out.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StrangerLimits:
    """What strangers may take up; every number is a maximum.

    bytes_max: a handshake and the headers of a call are less, and its request can wait for the gate.
    """

    seconds: float = 20.0
    calls_max: int = 8
    bytes_max: int = 16 * 1024
    per_address_max: int = 64
    strangers_max: int = 256


@dataclass(slots=True)
class _Stranger:
    address: str
    since: float
    bytes: int = 0
    calls: int = 0


class Strangers:
    """All strangers at a port, by the number of their connection. dice: choose among equals."""

    def __init__(self, limits: StrangerLimits, dice: random.Random) -> None:
        self._limits = limits
        self._dice = dice
        self._strangers: dict[int, _Stranger] = {}
        self._of_address: Counter[str] = Counter()

    def arrived(self, connection: int, address: str, now: float) -> int | None:
        """A connection is made; which one is to be ended for it, if any: it may be this one."""
        self._strangers[connection] = _Stranger(address, now)
        self._of_address[address] += 1
        if self._of_address[address] > self._limits.per_address_max:
            return self._chosen(key for key, one in self._strangers.items() if one.address == address)
        if len(self._strangers) > self._limits.strangers_max:
            return self._chosen(self._strangers)
        return None

    def gone(self, connection: int) -> None:
        """It was let in, or has ended."""
        one = self._strangers.pop(connection, None)
        if one is not None:
            self._of_address[one.address] -= 1
            if not self._of_address[one.address]:
                del self._of_address[one.address]

    def asked(self, connection: int) -> bool:
        """A call came without a known token; whether the connection is to be ended for that."""
        one = self._strangers.get(connection)
        if one is None:
            return False
        one.calls += 1
        return one.calls >= self._limits.calls_max

    def exhausted(self, connection: int) -> None:
        """It began more calls than it may, and is not heard on."""
        if (one := self._strangers.get(connection)) is not None:
            one.bytes = self._limits.bytes_max

    def sent(self, connection: int, count: int) -> bool:
        """So many bytes came; whether it is heard on."""
        one = self._strangers.get(connection)
        if one is None:
            return True
        one.bytes += count
        return one.bytes < self._limits.bytes_max

    def overdue(self, now: float) -> list[int]:
        """Which have stood for too long."""
        limit = self._limits.seconds
        return [key for key, one in self._strangers.items() if now - one.since > limit]

    def _chosen(self, among: Iterable[int]) -> int:
        connections = list(among)
        done = [key for key in connections if self._is_done(self._strangers[key])]
        return self._dice.choice(done or connections)

    def _is_done(self, one: _Stranger) -> bool:
        return one.calls > 0 or one.bytes >= self._limits.bytes_max
