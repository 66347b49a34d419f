"""Rewrite of the store's append-only file where its end may be unusable although the server accepts writes.

No command reports either of these states; a rewritten file has neither.

A full disk: a server that could write only part of a command removes that part again. In a file begun by a
rewrite it nevertheless continues after the position where the part had ended (seen in Valkey 9.1, which
opens such a file without O_APPEND). The gap is filled with zeros; at its next start the server rejects the
file, and everything after the zeros is lost.

A loss of power in the middle of a transaction, which is how a script's writes are stored: a server that
starts with such a file ignores the transaction, but leaves its first commands in the file, without EXEC
(seen in Redis 7.0.15; Valkey 9.1 removes them). What is written from then on follows them. At its next start
the server takes all that for one transaction: writes that had been lost come back, in the place of those
made instead of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

import structlog
from redis.asyncio import Redis
from redis.exceptions import ConnectionError as ConnectionLost
from redis.exceptions import NoPermissionError, RedisError, ResponseError

from elastane_common.cancellation import cancel

logger = structlog.get_logger(__name__)

LOOK_SECONDS: Final = 0.25
"""Polling interval: the server announces neither that it is back nor that its disk has room again."""


class FileRepair:
    """Repair of one store's file. Used from one event loop."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._task: asyncio.Task[None] | None = None
        self._full = ""
        """The error of a full disk, until the file is being rewritten."""
        self._restarted = False
        """The server may have been started since the last look."""

    async def opened(self) -> None:
        """Look at a server that may have been started with a damaged file. Awaited before it is used."""
        self._restarted = True
        if not await self._repaired(self._redis):
            self._start()

    def noted(self, error: BaseException) -> None:
        """Handle an error of the store: one about its file, or one that a restart would cause."""
        text = str(error)
        if "MISCONF" in text and "AOF" in text:
            self._full = text
            self._start()
        elif isinstance(error, (ConnectionLost, OSError)):
            self._restarted = True
            self._start()

    def _start(self) -> None:
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._repair())

    async def _repair(self) -> None:
        # Over a connection of its own: the pool keeps as many as the logs and the lease need.
        pool = self._redis.connection_pool
        own = type(pool)(connection_class=pool.connection_class, max_connections=1, **pool.connection_kwargs)
        async with Redis.from_pool(own) as asked:
            while self._full or self._restarted:
                if not await self._repaired(asked):
                    await asyncio.sleep(LOOK_SECONDS)

    async def _repaired(self, redis: Redis) -> bool:
        """Have the file rewritten if it may be damaged; False if that was not possible yet."""
        full = self._full
        try:
            facts = await redis.info("persistence")
            if full and facts.get("aof_last_write_status") != "ok":
                return False  # still full: a rewrite would fail, too
            if full or is_as_loaded(facts):
                await redis.bgrewriteaof()
                reason = full or "it was started, and its file has not been rewritten since"
                logger.info("the store is rewriting its file, whose end may be damaged", reason=reason)
        except ResponseError as refusal:
            if not _is_final(refusal):  # such as a rewrite that began before
                return False
            logger.warning(
                "the store's file may be damaged at its end; rewrite it with BGREWRITEAOF", why=str(refusal)
            )
        except (RedisError, OSError, TimeoutError):  # away
            return False
        self._restarted = False
        if full:
            self._full = ""
        return True

    async def aclose(self) -> None:
        """Cancel a repair in progress."""
        if self._task is not None:
            await cancel(self._task)


def is_as_loaded(facts: Mapping[str, Any]) -> bool:
    """True if the server continues a file that it has read when it was started. facts: INFO persistence."""
    return (
        facts.get("aof_enabled") == 1
        and facts.get("aof_last_rewrite_time_sec") == -1  # none since the start
        and facts.get("aof_current_size", 0) > facts.get("aof_base_size", 0)
    )


def _is_final(refusal: ResponseError) -> bool:
    """True if the server will never do what it refused."""
    return isinstance(refusal, NoPermissionError) or "unknown command" in str(refusal).lower()
