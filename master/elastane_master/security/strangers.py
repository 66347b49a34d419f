"""Which connections of strangers are heard, and which are ended. Pure: places, times, bytes and calls in.

A stranger is a connection on which no call with a known token has come yet. It is let in with the first
one; until then it may stand for `seconds`, be heard for `bytes_max` and for `calls_max` without an answer
(what comes after that waits, and gRPC gives it up after `unheard_seconds`), be refused `refusals_max` times,
and be one of `per_address_max` of its address and `strangers_max` of all. Of too many, those go first that
were refused something, then whom the dice choose: not the oldest, who are next to be heard where thousands
of workers come at once, nor the newest, since then whoever stands there first keeps everybody else out.

Where many are refused, or say more than they may, new connections of the addresses they come from take turns,
`turns_per_second`: what gRPC keeps of a connection that was ended outlives it by a moment, and it is their
number that fills the memory. Who shares no address with them waits for nobody, unless they come from more
addresses than are remembered. Workers that come back by the thousand have tokens, and so cause no turns.
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
    calls_max: a caller's next ones wait until the gate has seen the first one's token.
    turns_per_second: while more than `refused_max` have been refused, of whom so many a second are forgotten.
    refused_address_seconds: so long after its last refusal an address takes turns.
    """

    seconds: float = 20.0
    calls_max: int = 1
    refusals_max: int = 5
    bytes_max: int = 16 * 1024
    unheard_seconds: float = 0.5
    silent_seconds: float = 5.0
    per_address_max: int = 64
    strangers_max: int = 1024
    turns_per_second: float = 200.0
    refused_max: int = 16
    refused_per_second: float = 10.0
    refused_address_seconds: float = 10.0
    refused_addresses_max: int = 4096


@dataclass(slots=True)
class _Stranger:
    address: str
    since: float
    bytes: int = 0
    refusals: int = 0
    refused: bool = False
    unheard_since: float | None = None


class Strangers:
    """All strangers at a port, by the number of their connection. dice: choose among equals."""

    def __init__(self, limits: StrangerLimits, dice: random.Random) -> None:
        self._limits = limits
        self._dice = dice
        self._strangers: dict[int, _Stranger] = {}
        self._of_address: Counter[str] = Counter()
        self._refused = 0.0
        self._refused_at = float("-inf")
        #: When something of each was last refused; the oldest first.
        self._refused_addresses: dict[str, float] = {}

    def __contains__(self, connection: int) -> bool:
        return connection in self._strangers

    def take_turns(self, address: str, now: float) -> bool:
        """Whether new connections of `address` are handed on one after the other, and not as they come."""
        if self._recently_refused(now) <= self._limits.refused_max:
            return False
        self._forget_addresses(now)
        many = len(self._refused_addresses) >= self._limits.refused_addresses_max
        return many or address in self._refused_addresses

    def arrived(self, connection: int, address: str, now: float) -> int | None:
        """A connection is made; which one is to be ended for it, if any: it may be this one."""
        self._strangers[connection] = _Stranger(address, now)
        self._of_address[address] += 1
        if self._of_address[address] > self._limits.per_address_max:
            return self._chosen(key for key, one in self._strangers.items() if one.address == address)
        if len(self._strangers) > self._limits.strangers_max:
            return self._chosen(self._strangers)
        return None

    def let_in(self, connection: int, now: float) -> None:
        """It has shown a known token: what was held against it was only haste."""
        one = self._strangers.get(connection)
        if one is not None and one.refused:
            self._refused, self._refused_at = max(0.0, self._recently_refused(now) - 1), now
            self._refused_addresses.pop(one.address, None)
        self.gone(connection)

    def gone(self, connection: int) -> None:
        """It has ended."""
        one = self._strangers.pop(connection, None)
        if one is not None:
            self._of_address[one.address] -= 1
            if not self._of_address[one.address]:
                del self._of_address[one.address]

    def asked(self, connection: int, now: float) -> bool:
        """A call came without a known token; whether the connection is to be ended for that."""
        one = self._strangers.get(connection)
        if one is None:
            return False
        self._count_refused(one, now)
        one.refusals += 1
        return one.refusals >= self._limits.refusals_max

    def heard_again(self, connection: int) -> None:
        """A call of it was answered: the next one is heard."""
        if (one := self._strangers.get(connection)) is not None:
            one.unheard_since = None

    def sent(self, connection: int, count: int, now: float, *, too_many_calls: bool = False) -> bool:
        """So many bytes came, and began more calls than may be; whether it is heard on."""
        one = self._strangers.get(connection)
        if one is None:
            return True
        one.bytes += count
        if one.bytes < self._limits.bytes_max and not too_many_calls:
            return True
        self._count_refused(one, now)
        one.unheard_since = now
        return False

    def overdue(self, now: float) -> list[int]:
        """Which have stood for too long."""
        limit = self._limits.seconds
        return [key for key, one in self._strangers.items() if now - one.since > limit]

    def unheard(self, now: float) -> dict[int, bool]:
        """Which have not been heard for so long that gRPC is to give them up; each is told of once.

        True: the gate has refused it, so it is to be ended. False: it stands in silence for `silent_seconds`;
        ended, it would be made again at once.
        """
        since = now - self._limits.unheard_seconds
        found = [
            key
            for key, one in self._strangers.items()
            if one.unheard_since is not None and one.unheard_since < since
        ]
        for key in found:
            one = self._strangers[key]
            one.unheard_since = float("inf")
            one.since = min(one.since, now + self._limits.silent_seconds - self._limits.seconds)
        return {key: self._strangers[key].refusals > 0 for key in found}

    def _chosen(self, among: Iterable[int]) -> int:
        connections = list(among)
        done = [key for key in connections if self._strangers[key].refused]
        return self._dice.choice(done or connections)

    def _count_refused(self, one: _Stranger, now: float) -> None:
        """It was refused; each counts once."""
        if not one.refused:
            one.refused = True
            self._refused, self._refused_at = self._recently_refused(now) + 1, now
        self._refused_addresses.pop(one.address, None)
        if len(self._refused_addresses) < self._limits.refused_addresses_max:
            self._refused_addresses[one.address] = now

    def _forget_addresses(self, now: float) -> None:
        """Forgets those who were refused nothing for long."""
        since = now - self._limits.refused_address_seconds
        while self._refused_addresses and (oldest := next(iter(self._refused_addresses.items())))[1] < since:
            del self._refused_addresses[oldest[0]]

    def _recently_refused(self, now: float) -> float:
        return max(0.0, self._refused - (now - self._refused_at) * self._limits.refused_per_second)
