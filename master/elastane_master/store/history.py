"""Paged reads of the committed history and the events, for users."""

from __future__ import annotations

import asyncio
import re

from redis.asyncio import Redis

from elastane_master.store.keys import JobKeys
from elastane_master.store.streams import Entry, read_stream

_ENTRY_ID = re.compile(r"[0-9]{1,20}-[0-9]{1,20}")


def is_history_token(token: str) -> bool:
    """True if `token` is a valid page token of the history: empty, or an entry's id."""
    return not token or _ENTRY_ID.fullmatch(token) is not None


class JobHistory:
    """Bounded reads of one job's streams. Redis errors pass through.

    gate: limits concurrent reads; each takes a connection to the store.
    """

    def __init__(self, redis: Redis, job: str, gate: asyncio.Semaphore | None = None) -> None:
        self._gate = gate or asyncio.Semaphore()
        self._redis = redis
        self._keys = JobKeys.of(job)

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
        async with self._gate:
            return await read_stream(self._redis, self._keys.history, f"({token}" if token else "-", count)

    async def events(self, since: int, count: int) -> list[tuple[int, bytes]]:
        """Return up to `count` events as (number, payload), from number `since` on."""
        async with self._gate:
            entries = await read_stream(self._redis, self._keys.events, f"{max(since, 0)}-0", count)
        return [(entry.number, entry.payload) for entry in entries]
