"""Paged reads of the committed history and the events, for users."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable

from redis.asyncio import Redis

from elastane_master.store.keys import JobKeys
from elastane_master.store.log import JobLog
from elastane_master.store.streams import Entry, read_stream

_ENTRY_ID = re.compile(r"[0-9]{1,20}-[0-9]{1,20}")


def is_history_token(token: str) -> bool:
    """True if `token` is a valid page token of the history: empty, or an entry's id."""
    return not token or _ENTRY_ID.fullmatch(token) is not None


class JobHistory:
    """Bounded reads of one job's streams. Redis errors pass through, and StoreErrors of a log that has ended.

    gate: limits concurrent reads; each takes a connection to the store. log: of the job. With it, a read has
    all that the store had acknowledged before, also if the store has lost some of it: the log writes that
    again first. Without it, a read has what the store has.
    """

    def __init__(
        self, redis: Redis, job: str, gate: asyncio.Semaphore | None = None, log: JobLog | None = None
    ) -> None:
        self._gate = gate or asyncio.Semaphore()
        self._redis = redis
        self._keys = JobKeys.of(job)
        self._log = log

    async def commits(self, after: str, count: int) -> tuple[list[bytes], str]:
        """Return up to `count` commits after the token (empty: from the first), and the next page's token.

        The returned token is empty on the last page.
        """
        entries = await self._after(after, count)
        token = entries[-1].id if len(entries) == count else ""
        return [entry.payload for entry in entries], token

    async def news(self, after: str, count: int) -> tuple[list[bytes], str]:
        """Return up to `count` commits after the token, and the token with which to ask for later ones."""
        entries = await self._after(after, count)
        return [entry.payload for entry in entries], entries[-1].id if entries else after

    async def _after(self, token: str, count: int) -> list[Entry]:
        newest = self._log.acknowledged[0] if self._log is not None else 0
        key, start = self._keys.history, f"({token}" if token else "-"

        def is_whole(entries: list[Entry]) -> bool:
            last = entries[-1].id if entries else token
            return newest == 0 or (last != "" and (self._keys.commits_in(last) or 0) >= newest)

        return await self._read(key, start, count, is_whole)

    async def events(self, since: int, count: int) -> list[tuple[int, bytes]]:
        """Return up to `count` events as (number, payload), from number `since` on."""
        newest = self._log.acknowledged[1] if self._log is not None else 0

        def is_whole(entries: list[Entry]) -> bool:
            return newest < since or newest == 0 or (bool(entries) and entries[-1].number >= newest)

        entries = await self._read(self._keys.events, f"{max(since, 0)}-0", count, is_whole)
        return [(entry.number, entry.payload) for entry in entries]

    async def _read(
        self, key: str, start: str, count: int, is_whole: Callable[[list[Entry]], bool]
    ) -> list[Entry]:
        """Read a page. The last one is read again where it lacks what was acknowledged before."""
        async with self._gate:
            entries = await read_stream(self._redis, key, start, count)
        if self._log is None or len(entries) == count or is_whole(entries):
            return entries
        await self._log.whole()
        async with self._gate:
            return await read_stream(self._redis, key, start, count)
