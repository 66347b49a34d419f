"""Storage of finished jobs that no master holds in memory, and their deletion.

  over and unused --> CLOSE: its record is stored --> DELETE, or read completely and served again
  a master starts: LOOK at every job, TAKE those with a record (one answer each), read the others completely

The record is a field of the fence. It is valid only while the last write is the one it was made after, so any
later write invalidates it implicitly. A master that takes a closed job over raises its fencing token as for
any other job, and stores its own id, as whoever acquires an open job does: an older master that is just
reopening or deleting the job is fenced, or finds the other id.

A deleted job leaves its fence for a day. A master that served the job long ago and was suspended since finds
that it is fenced; without the fence it would see a store that lost everything, and write the job again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from elastane_master.store.connection import StoreRedis
from elastane_master.store.fenced_scripts import require_ours
from elastane_master.store.format import check_written
from elastane_master.store.keys import JobKeys
from elastane_master.store.pinned import Word

TOMBSTONE_SECONDS = 86_400
"""Time the fence of a deleted job is kept."""

JOBS_AT_ONCE = 500
"""Jobs per pipelined request: a few hundred kilobytes of answers."""

LOOK = """
-- KEYS: fence. Returns 'format:state:' and 'closed', 'deleted' or 'open'; changes nothing.
local fence = redis.call('HMGET', KEYS[1], 'format', 'state', 'sequence', 'closed', 'deleted')
local how = 'open'
if fence[5] then how = 'deleted' elseif fence[4] and fence[4] == fence[3] then how = 'closed' end
return (fence[1] or '0') .. ':' .. (fence[2] or '0') .. ':' .. how
"""

TAKE = """
-- KEYS: fence. ARGV: 1 id of the taker. Returns 'token:record', or '' for a job that is not closed any more,
-- or 'deleted' for one that was deleted since it was looked at.
local fence = redis.call('HMGET', KEYS[1], 'sequence', 'closed', 'record', 'deleted')
if fence[4] then return 'deleted' end
if not fence[2] or fence[1] ~= fence[2] then return '' end
redis.call('HSET', KEYS[1], 'holder', ARGV[1])
return redis.call('HINCRBY', KEYS[1], 'token', 1) .. ':' .. fence[3]
"""

CLOSE = """
-- KEYS: fence. ARGV: 1 token, 2 sequence, 3 record, 4 id of the closer.
-- Returns 'OK', 'FENCED:holder' or 'GAP:last sequence stored'.
local fence = redis.call('HMGET', KEYS[1], 'token', 'sequence')
if tonumber(fence[1] or '0') > tonumber(ARGV[1]) then return 'FENCED:' .. fence[1] end
if fence[1] ~= ARGV[1] or fence[2] ~= ARGV[2] then return 'GAP:' .. (fence[2] or '0') end
redis.call('HSET', KEYS[1], 'closed', ARGV[2], 'record', ARGV[3], 'holder', ARGV[4])
return 'OK'
"""

_MINE = """
-- KEYS: fence. ARGV: 1 token, 2 id of the caller.
local fence = redis.call('HMGET', KEYS[1], 'token', 'holder')
local token = fence[1] or '0'
if tonumber(token) > tonumber(ARGV[1]) and fence[2] ~= ARGV[2] then return 'FENCED:' .. token end
"""

CHECK = (
    _MINE
    + """
-- Returns 'OK' while the closed job is the caller's, else 'FENCED:token'.
return 'OK'
"""
)

DELETE = (
    _MINE
    + """
-- KEYS: and log, snapshot, history, events. ARGV: and 3 request id, 4 milliseconds that the fence stays.
-- Returns as above, also when it is asked again: the answer may have been lost.
-- UNLINK: millions of entries are freed beside the store's work.
redis.call('UNLINK', KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5])
redis.call('HSET', KEYS[1], 'token', token, 'deleted', ARGV[3], 'holder', ARGV[2])
redis.call('PEXPIRE', KEYS[1], ARGV[4])
return 'OK'
"""
)


@dataclass(frozen=True, slots=True)
class Closed:
    """A closed job as stored. token: fencing token of the master that holds it."""

    token: int
    record: bytes


@dataclass(frozen=True, slots=True)
class Listed:
    """The jobs of a store. closed: by name. open: to be read completely.

    deleted: to be removed from the list.
    """

    closed: dict[str, Closed]
    open: list[str]
    deleted: list[str]


class ClosedJobs:
    """Access to the closed jobs' records in one store. Raises redis errors, and the errors named below."""

    def __init__(self, redis: StoreRedis) -> None:
        self._redis = redis

    async def take_over(self, jobs: Sequence[str], state_version: int) -> Listed:
        """Take over the closed jobs, and list the others.

        Raises StoreFormatUnknown, before anything is changed, when a newer master wrote one of them.
        """
        listed = Listed({}, [], [])
        closed: list[str] = []
        look, take = self._redis.pinned_script(LOOK), self._redis.pinned_script(TAKE)
        for some in _parts(jobs):
            answers = await look.many([([JobKeys.of(job).fence], ()) for job in some])
            for job, answer in zip(some, answers, strict=True):
                found_format, found_state, how = answer.decode().split(":")
                check_written(job, int(found_format), int(found_state), state_version)
                {"closed": closed, "deleted": listed.deleted, "open": listed.open}[how].append(job)
        for some in _parts(closed):
            answers = await take.many([([JobKeys.of(job).fence], [self._redis.holder]) for job in some])
            for job, answer in zip(some, answers, strict=True):
                token, _, record = answer.partition(b":")
                if answer == b"deleted":
                    listed.deleted.append(job)
                elif answer:
                    listed.closed[job] = Closed(int(token), record)
                else:
                    listed.open.append(job)
        return listed

    async def close(self, job: str, token: int, sequence: int, record: bytes) -> bool:
        """Store the record of a job whose log is closed; False if the store lost the job's last writes.

        Raises Fenced.
        """
        keys = [JobKeys.of(job).fence]
        close = self._redis.pinned_script(CLOSE)
        answer = await close(keys=keys, args=[token, sequence, record, self._redis.holder])
        return require_ours(job, token, answer.decode()) == "OK"

    async def check(self, job: str, token: int) -> None:
        """Raise Fenced if the closed job, held with `token`, belongs to another master."""
        check = self._redis.pinned_script(CHECK)
        answer = await check(keys=[JobKeys.of(job).fence], args=[token, self._redis.holder])
        require_ours(job, token, answer.decode())

    async def delete(self, job: str, token: int, request_id: str) -> None:
        """Delete all data of a closed job, leaving only the mark that it was deleted. Raises Fenced."""
        keys = JobKeys.of(job)
        names = [keys.fence, keys.log, keys.snapshot, keys.history, keys.events]
        delete = self._redis.pinned_script(DELETE)
        args: list[Word] = [token, self._redis.holder, request_id, TOMBSTONE_SECONDS * 1000]
        require_ours(job, token, (await delete(keys=names, args=args)).decode())

    async def deleted_by(self, job: str) -> str | None:
        """Return the id of the request that deleted the job within the last day, or None."""
        found = await self._redis.hget(JobKeys.of(job).fence, "deleted")
        return None if found is None else cast("bytes", found).decode()


def _parts(jobs: Sequence[str]) -> list[Sequence[str]]:
    return [jobs[start : start + JOBS_AT_ONCE] for start in range(0, len(jobs), JOBS_AT_ONCE)]
