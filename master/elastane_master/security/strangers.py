"""Limits for strangers' connections: which are read, and which are ended. Pure.

A stranger is a connection without any call with a known token so far. The first such call makes it trusted;
until then it may exist for `seconds`, send `bytes_max` (and `opaque_bytes_max` for TLS itself) and begin
`calls_max` calls without an answer (the rest waits, and the connection to gRPC is closed after
`unheard_seconds`), be refused `refusals_max` times, and be one of `per_address_max` of its address and
`strangers_max` in total. A handshake that its caller wastes counts as refused. If there are too many, those
that were refused go first, then random ones: not the oldest, which are the next to be served when thousands
of workers connect at once, and not the newest, because then early idle connections would keep everybody else
out.

When many are refused, or send more than they may, new connections from their addresses are admitted one by
one, `turns_per_second`: gRPC's memory for an ended connection outlives it by a moment, and the number of
those fills the memory. Callers at other addresses do not wait, unless there are more offending addresses than
are remembered. Workers that reconnect by the thousand have tokens, and so cause no such delays.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StrangerLimits:
    """Limits for strangers; every number is a maximum.

    bytes_max: more than the headers of a call need; its request can wait for the gate. opaque_bytes_max:
    bytes of TLS that are not the caller's data: a handshake's, and those of a record (16 KiB) begun.
    calls_max: a caller's further calls wait until the gate has seen the first one's token. turns_per_second:
    applies while more than `refused_max` refusals are remembered; `refused_per_second` of them are forgotten.
    refused_address_seconds: time after its last refusal during which an address takes turns.
    """

    seconds: float = 20.0
    calls_max: int = 1
    refusals_max: int = 5
    bytes_max: int = 16 * 1024
    opaque_bytes_max: int = 40 * 1024
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
    """All strangers at a port, by connection number. dice: chooses among equals."""

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
        """True if new connections of `address` must be admitted one after the other."""
        if self._recently_refused(now) <= self._limits.refused_max:
            return False
        self._forget_addresses(now)
        many = len(self._refused_addresses) >= self._limits.refused_addresses_max
        return many or address in self._refused_addresses

    def arrived(self, connection: int, address: str, now: float) -> int | None:
        """Register a new connection; return the number of a connection to end for it, if any."""
        self._strangers[connection] = _Stranger(address, now)
        self._of_address[address] += 1
        if self._of_address[address] > self._limits.per_address_max:
            return self._chosen(key for key, one in self._strangers.items() if one.address == address)
        if len(self._strangers) > self._limits.strangers_max:
            return self._chosen(self._strangers)
        return None

    def let_in(self, connection: int, now: float) -> None:
        """Forget a connection that has shown a known token, and take back its refusals: it was only early."""
        one = self._strangers.get(connection)
        if one is not None and one.refused:
            self._refused, self._refused_at = max(0.0, self._recently_refused(now) - 1), now
            self._refused_addresses.pop(one.address, None)
        self.gone(connection)

    def gone(self, connection: int) -> None:
        """Forget a connection that has ended."""
        one = self._strangers.pop(connection, None)
        if one is not None:
            self._of_address[one.address] -= 1
            if not self._of_address[one.address]:
                del self._of_address[one.address]

    def asked(self, connection: int, now: float) -> bool:
        """Count a call without a known token; True if the connection must be ended for it."""
        one = self._strangers.get(connection)
        if one is None:
            return False
        self._count_refused(one, now)
        one.refusals += 1
        return one.refusals >= self._limits.refusals_max

    def broke_off(self, connection: int, now: float) -> None:
        """Count a connection that its caller ends after a handshake was spent on it."""
        one = self._strangers.get(connection)
        if one is not None:
            self._count_refused(one, now)

    def heard_again(self, connection: int) -> None:
        """Resume a connection: one of its calls was answered."""
        if (one := self._strangers.get(connection)) is not None:
            one.unheard_since = None

    def sent(self, connection: int, count: int, now: float, *, too_many_calls: bool = False) -> bool:
        """Count received bytes; False if the connection must be paused for them or for a surplus call."""
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
        """Connections that have existed for too long."""
        limit = self._limits.seconds
        return [key for key, one in self._strangers.items() if now - one.since > limit]

    def unheard(self, now: float) -> dict[int, bool]:
        """Connections paused so long that gRPC's side must be closed; each is returned once.

        True: the gate has refused it, so it must be ended. False: it stays open and silent for
        `silent_seconds`, because it would reconnect at once if ended.
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
        """Count a stranger's first refusal, and remember its address."""
        if not one.refused:
            one.refused = True
            self._refused, self._refused_at = self._recently_refused(now) + 1, now
        self._refused_addresses.pop(one.address, None)
        if len(self._refused_addresses) < self._limits.refused_addresses_max:
            self._refused_addresses[one.address] = now

    def _forget_addresses(self, now: float) -> None:
        """Forget addresses whose last refusal is long ago."""
        since = now - self._limits.refused_address_seconds
        while self._refused_addresses and (oldest := next(iter(self._refused_addresses.items())))[1] < since:
            del self._refused_addresses[oldest[0]]

    def _recently_refused(self, now: float) -> float:
        return max(0.0, self._refused - (now - self._refused_at) * self._limits.refused_per_second)
