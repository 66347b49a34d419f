"""Reading of a job at takeover: the snapshot, and the records written after it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

from redis.exceptions import ResponseError

from elastane_master.store.connection import StoreRedis
from elastane_master.store.errors import Damage, Fenced
from elastane_master.store.fenced_scripts import ACQUIRE
from elastane_master.store.format import EMPTY, FORMAT, Chain, check_written
from elastane_master.store.keys import JobKeys
from elastane_master.store.streams import Ends, Entry, read_ends, read_stream
from elastane_master.store.wholeness import Fence, Found, Whole, examine, require_readable

_ENTRIES_AT_ONCE = 500


@dataclass(frozen=True, slots=True)
class Recovered:
    """State of a job as stored.

    token: fencing token of the reader. sequence: number of the last write. snapshot: None for a job that was
    never stored. records: those after the snapshot, in order. event_sequence: number of the newest event, 0
    without one. chain: its end. commits: number of the newest commit. history, events: numbers of stored
    entries. damages: what is missing; the records then end before the first hole. useless: keys that hold
    foreign data. state_commits: number of the last commit included in the state, if known; after a loss,
    later commits are done again.
    """

    token: int
    sequence: int
    snapshot: bytes | None
    records: list[bytes] = field(default_factory=list)
    event_sequence: int = 0
    chain: Chain = EMPTY
    commits: int = 0
    history: int = 0
    events: int = 0
    damages: tuple[Damage, ...] = ()
    useless: tuple[str, ...] = ()
    state_commits: int | None = None

    @property
    def exists(self) -> bool:
        """True if anything of the job is stored."""
        return self.sequence > 0 or self.snapshot is not None or bool(self.damages)


@dataclass(frozen=True, slots=True)
class Readable:
    """Versions that a master can read.

    state: newest version of the job's own state. version_of: version of a stored state, 0 if it cannot be
    determined.
    """

    state: int = 1
    version_of: Callable[[bytes], int] = lambda state: 0


async def recover(redis: StoreRedis, job: str, readable: Readable) -> Recovered:
    """Acquire the fence, then read and check; no older master can write from then on.

    A newer master can: it may replace the snapshot and trim the log between two reads, so the result is valid
    only if the fence is still this master's afterwards. Raises Fenced, JobTooNew (a newer master wrote the
    job, according to the fence, the snapshot or the log), and redis errors if the store does not answer.
    """
    keys = JobKeys.of(job)
    answer = await _acquire(redis, job, readable)
    token = int(answer[0])
    fence = Fence.of(dict(zip(answer[1::2], answer[2::2], strict=True)))
    reader = _Reader(redis)
    found = Found(
        fence,
        await reader.value(keys.snapshot),
        await reader.entries(keys.log),
        await reader.ends(keys.history),
        await reader.ends(keys.events),
    )
    require_readable(job, found.snapshot, found.log, readable.state, readable.version_of)
    # Read after everything else: a newer master may have changed the data in between.
    holder = int(cast("bytes | None", await redis.hget(keys.fence, "token")) or 0)
    if holder > token:
        raise Fenced("another master took the job over while it was read", token=token, holder=holder)
    whole = examine(job, found)
    whole.damages[:0] = reader.damages
    whole.foreign.extend(damage.key for damage in reader.damages)
    return _recovered(keys, token, found, whole)


async def _acquire(redis: StoreRedis, job: str, readable: Readable) -> list[Any]:
    """Acquire the fence; return the script's answer. Raises JobTooNew before changing anything of the job."""
    keys = JobKeys.of(job)
    acquire = redis.register_script(ACQUIRE)
    known: list[Any] = [FORMAT, readable.state]
    answer = cast("list[Any]", await acquire(keys=[keys.fence], args=[*known, "", redis.holder]))
    if int(answer[0]) == -1:
        reader = _Reader(redis)
        snapshot, log = await reader.value(keys.snapshot), await reader.entries(keys.log)
        require_readable(job, snapshot, log, readable.state, readable.version_of)
        answer = cast("list[Any]", await acquire(keys=[keys.fence], args=[*known, "1", redis.holder]))
    if int(answer[0]) == 0:
        check_written(job, int(answer[1]), int(answer[2]), readable.state)
    return answer


def _recovered(keys: JobKeys, token: int, found: Found, whole: Whole) -> Recovered:
    newest = keys.commits_in(found.history.newest) or 0
    # Commits beyond the usable state are removed by the first write, so they do not count.
    beyond = max(0, newest - whole.commits) if whole.damages and whole.commits is not None else 0
    kept = 0 if keys.history in whole.foreign else max(0, found.history.length - beyond)
    return Recovered(
        # A lost fence counts tokens from 0 again: stay above those of masters that wrote before.
        max(token, whole.token + 1) if whole.damages else token,
        whole.sequence,
        whole.snapshot,
        whole.records,
        keys.event_in(found.events.last) or 0,
        whole.chain,
        keys.commits_in(found.history.last) or 0,
        kept,
        0 if keys.events in whole.foreign else found.events.length,
        tuple(whole.damages),
        tuple(whole.foreign),
        whole.commits,
    )


class _Reader:
    """Reads of a job's keys. damages: keys that hold a value of the wrong type."""

    def __init__(self, redis: StoreRedis) -> None:
        self._redis = redis
        self.damages: list[Damage] = []

    async def value(self, key: str) -> bytes | None:
        try:
            return cast("bytes | None", await self._redis.get(key))
        except ResponseError as error:
            self._is_wrong(key, error)
            return None

    async def entries(self, key: str) -> list[Entry]:
        """Return all entries of a stream."""
        found: list[Entry] = []
        start = "-"
        try:
            while page := await read_stream(self._redis, key, start, _ENTRIES_AT_ONCE):
                found.extend(page)
                start = f"({page[-1].id}"
        except ResponseError as error:
            self._is_wrong(key, error)
        return found

    async def ends(self, key: str) -> Ends:
        try:
            return await read_ends(self._redis, key)
        except ResponseError as error:
            self._is_wrong(key, error)
            return Ends()

    def _is_wrong(self, key: str, error: ResponseError) -> None:
        if "WRONGTYPE" not in str(error):
            raise error
        self.damages.append(Damage(key, 1, "it holds something else; its own data is lost"))
