"""The leader's lease: one key with a time to live, held by the master that serves the store.

It expires by the store's own clock, so hosts need not agree on the time; if that clock is set back, the next
claim limits the lease to its intended duration. A clean stop releases the lease and wakes a waiting master. A
master that listens on the holder's address knows that the holder is gone (only one process can bind an
address) and need not wait for the expiry: a single master that is restarted continues at once.

The lease provides liveness. Safety comes from the fencing token of each job (fenced_scripts.py): a holder
that lost its lease without noticing cannot write.
"""

from __future__ import annotations

import asyncio
import time
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

_ACQUIRE = """
-- KEYS: lease, term, released. ARGV: 1 id, 2 place, 3 address, 4 master, 5 milliseconds, 6 started at
-- Returns {1, token} when the lease is the caller's now, else {0, address, master, milliseconds left}.
local holder = redis.call('HMGET', KEYS[1], 'id', 'place', 'address', 'master', 'milliseconds', 'started_at')
local succeeds = ARGV[2] ~= '' and holder[2] == ARGV[2] and tonumber(ARGV[6]) >= tonumber(holder[6] or '0')
if holder[1] and holder[1] ~= ARGV[1] and not succeeds then
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
  'milliseconds', ARGV[5], 'started_at', ARGV[6])
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

#: Runs on while the machine is suspended; systems without it have no boot id either (`place_of`).
_SINCE_BOOT = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

_KEYS = (LEASE_KEY, TERM_KEY, RELEASED_KEY)
_FAULTS = (RedisError, OSError, TimeoutError)


@dataclass(frozen=True, slots=True)
class LeaseCandidate:
    """A master that asks for the lease. address: as reached by clients.

    place: see `place_of`; empty: unknown. started_at: seconds since this machine's boot; comparable between
    processes of one place.
    """

    address: str
    master: str
    place: str = ""
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    started_at: float = field(default_factory=lambda: time.clock_gettime(_SINCE_BOOT))


@dataclass(frozen=True, slots=True)
class LeaseReply:
    """Answer to `LeaderLease.acquire`.

    token: the lease's, if the candidate has it; else 0, with the holder and its time left.
    """

    token: int = 0
    address: str = ""
    master: str = ""
    left_seconds: float = 0.0


class LeaseUnanswered(Exception):  # noqa: N818 - says what happened
    """The store did not answer, or not in time."""


class LeaderLease:
    """One candidate's access to the lease of a store. Used from one event loop."""

    def __init__(self, redis: Redis, candidate: LeaseCandidate, lease_seconds: float) -> None:
        self.candidate = candidate
        self.lease_seconds = lease_seconds
        self._redis = redis
        self._acquire = redis.register_script(_ACQUIRE)
        self._release = redis.register_script(_RELEASE)

    async def acquire(self) -> LeaseReply:
        """Take or renew the lease, or return its holder. Raises LeaseUnanswered."""
        who = self.candidate
        arguments: list[str | int] = [
            who.id,
            who.place,
            who.address,
            who.master,
            round(self.lease_seconds * 1000),
            f"{who.started_at:.3f}",
        ]
        try:
            # A store that swallows requests must not keep the holder from noticing that its lease runs out.
            async with asyncio.timeout(self.lease_seconds / 2):
                reply: list[Any] = await self._acquire(keys=_KEYS, args=arguments)
        except _FAULTS as error:
            raise LeaseUnanswered(str(error) or type(error).__name__) from error
        if reply[0]:
            return LeaseReply(int(reply[1]))
        return LeaseReply(0, reply[1].decode(), reply[2].decode(), max(reply[3], 0) / 1000)

    async def released(self, seconds: float) -> None:
        """Return when a holder releases the lease, or after about `seconds`."""
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        try:
            # The server's timeout has a resolution of 10 ms; the client's own timeout is for a dead server.
            async with asyncio.timeout(seconds + 1.0):
                await self._redis.blpop([RELEASED_KEY], timeout=max(seconds, 0.01))
        except _FAULTS:
            # An unreachable store fails at once: sleep, so as not to poll faster than intended.
            await asyncio.sleep(max(0.0, until - loop.time()))

    async def release(self) -> None:
        """Release the lease if this candidate holds it; does not fail if the store is gone."""
        try:
            async with asyncio.timeout(self.lease_seconds):
                await self._release(keys=_KEYS, args=[self.candidate.id])
        except _FAULTS:
            return  # it expires


def place_of(address: str) -> str:
    """Return a text that two processes can share only if they cannot both listen at `address`.

    It consists of this machine's boot id, its network namespace and the address. Empty if the system provides
    no boot id; then only the expiry shows that a holder is gone.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        network = Path("/proc/self/ns/net").stat().st_ino
    except OSError:
        return ""
    return f"{boot}/{network}/{address}"
