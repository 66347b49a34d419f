"""The leader's lease: one key with a time to live, held by the master that serves the store.

It expires by the store's own clock, so no two hosts have to agree on the time; if that is set back, whoever
asks makes the lease last as long as it was meant to, and no longer. A clean stop gives it
back and wakes a master that waits. A master that listens where the holder listened knows that the
holder is gone (an address is bound by one process only), and need not wait for the time to run out: a
single master that is started again goes on at once.

The lease is for progress. Safety is the fencing token of each job (scripts.py): a holder that lost its
lease without knowing it cannot write.
"""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import RedisError

_PREFIX = "elastane:{leader}:"
LEASE_KEY = _PREFIX + "lease"
TERM_KEY = _PREFIX + "term"
RELEASED_KEY = _PREFIX + "released"

_CLAIM = """
-- KEYS: lease, term, released. ARGV: 1 id, 2 place, 3 address, 4 master, 5 milliseconds
-- Returns {1, token} when the lease is the caller's now, else {0, address, master, milliseconds left}.
local holder = redis.call('HMGET', KEYS[1], 'id', 'place', 'address', 'master', 'milliseconds')
if holder[1] and holder[1] ~= ARGV[1] and (ARGV[2] == '' or holder[2] ~= ARGV[2]) then
  local left, whole = redis.call('PTTL', KEYS[1]), tonumber(holder[5] or ARGV[5])
  if left < 0 or left > whole then -- the clock was set back: a holder that is gone would lead for that long
    redis.call('PEXPIRE', KEYS[1], whole)
    left = whole
  end
  return {0, holder[3], holder[4], left}
end
local term = redis.call('HMGET', KEYS[2], 'token', 'id')
local token = tonumber(term[1] or '0')
if term[2] ~= ARGV[1] then
  token = token + 1
  redis.call('HSET', KEYS[2], 'token', token, 'id', ARGV[1])
end
redis.call('HSET', KEYS[1], 'id', ARGV[1], 'place', ARGV[2], 'address', ARGV[3], 'master', ARGV[4],
  'milliseconds', ARGV[5])
redis.call('PEXPIRE', KEYS[1], ARGV[5])
redis.call('DEL', KEYS[3])
return {1, token}
"""

_RELEASE = """
-- KEYS: lease, term, released. ARGV: 1 id. Whoever waits at `released` is woken.
if redis.call('HGET', KEYS[1], 'id') == ARGV[1] then
  redis.call('DEL', KEYS[1])
  redis.call('RPUSH', KEYS[3], '1')
  redis.call('PEXPIRE', KEYS[3], 1000)
end
return 1
"""

_KEYS = (LEASE_KEY, TERM_KEY, RELEASED_KEY)
_FAULTS = (RedisError, OSError, TimeoutError)


@dataclass(frozen=True, slots=True)
class Claimant:
    """Who claims. address: where clients reach it. place: what only one process can have; empty: unknown."""

    address: str
    master: str
    place: str = ""
    id: str = field(default_factory=lambda: uuid.uuid4().hex)


@dataclass(frozen=True, slots=True)
class LeaseReply:
    """token: of the lease, if it is the claimant's now; else 0, and who holds it for how long still."""

    token: int = 0
    address: str = ""
    master: str = ""
    left_seconds: float = 0.0


class LeaseUnanswered(Exception):  # noqa: N818 - says what happened
    """The store did not answer, or not in time."""


class LeaderLease:
    """The lease of one store, as one claimant asks for it. Used from one event loop."""

    def __init__(self, redis: Redis, claimant: Claimant, lease_seconds: float) -> None:
        self.claimant = claimant
        self.lease_seconds = lease_seconds
        self._redis = redis
        self._claim = redis.register_script(_CLAIM)
        self._release = redis.register_script(_RELEASE)

    async def claim(self) -> LeaseReply:
        """Takes or renews the lease, or says who has it. Raises LeaseUnanswered."""
        who = self.claimant
        arguments: list[str | int] = [
            who.id,
            who.place,
            who.address,
            who.master,
            round(self.lease_seconds * 1000),
        ]
        try:
            # A store that swallows requests must not keep the holder from noticing that time runs out.
            async with asyncio.timeout(self.lease_seconds / 2):
                reply: list[Any] = await self._claim(keys=_KEYS, args=arguments)
        except _FAULTS as error:
            raise LeaseUnanswered(str(error) or type(error).__name__) from error
        if reply[0]:
            return LeaseReply(int(reply[1]))
        return LeaseReply(0, reply[1].decode(), reply[2].decode(), max(reply[3], 0) / 1000)

    async def released(self, seconds: float) -> None:
        """Returns when a holder gives the lease back, or after about `seconds`."""
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        try:
            # The server counts in hundredths; the client's own limit is for a server that is gone.
            async with asyncio.timeout(seconds + 1.0):
                await self._redis.blpop([RELEASED_KEY], timeout=max(seconds, 0.01))
        except _FAULTS:
            # A store that is away refuses at once: the pace is kept without it.
            await asyncio.sleep(max(0.0, until - loop.time()))

    async def release(self) -> None:
        """Gives the lease back, if it is ours; does not fail when the store is gone."""
        try:
            async with asyncio.timeout(self.lease_seconds):
                await self._release(keys=_KEYS, args=[self.claimant.id])
        except _FAULTS:
            return  # it expires


def place_of(address: str) -> str:
    """What tells that two processes cannot both listen at `address`: this machine's boot, its network.

    Empty where the system does not say (then only the time to live tells that a holder is gone).
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        network = Path("/proc/self/ns/net").stat().st_ino
    except OSError:
        return ""
    return f"{boot}/{network}/{address}"
