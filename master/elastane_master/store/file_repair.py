"""Rewrite of the store's append-only file after its disk was full.

A server that could write only part of a command removes that part again. In a file begun by a rewrite it
nevertheless continues after the position where the part had ended (seen in Valkey 9.1, which opens such a
file without O_APPEND). The gap is filled with zeros; at its next start the server rejects the file, and
everything after the zeros is lost. No command reports this state. A rewritten file has no such gap.
"""

from __future__ import annotations

import asyncio

import structlog
from redis.asyncio import Redis
from redis.exceptions import NoPermissionError, RedisError

from elastane_master.cancellation import cancel

logger = structlog.get_logger(__name__)

LOOK_SECONDS = 0.25
"""Polling interval: the server does not announce that its disk has room again."""


class FileRepair:
    """Repair of one store's file. Used from one event loop."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._task: asyncio.Task[None] | None = None

    def noted(self, error: BaseException) -> None:
        """Handle an error of the store: one about its file starts the repair."""
        text = str(error)
        if "MISCONF" in text and "AOF" in text and (self._task is None or self._task.done()):
            self._task = asyncio.get_running_loop().create_task(self._repair(text))

    async def _repair(self, error: str) -> None:
        while not await self._rewritten():
            await asyncio.sleep(LOOK_SECONDS)
        logger.warning("the store could not write its file for a while, and is rewriting it", error=error)

    async def _rewritten(self) -> bool:
        """True if the server has begun to rewrite its file, or never will."""
        try:
            facts = await self._redis.info("persistence")
            if facts.get("aof_last_write_status") != "ok":
                return False  # still full: a rewrite would fail, too
            await self._redis.bgrewriteaof()
        except NoPermissionError as refusal:
            logger.error("the store's file may have a gap; rewrite it with BGREWRITEAOF", why=str(refusal))
        except (RedisError, OSError, TimeoutError):  # away, or at a rewrite that began before
            return False
        return True

    async def aclose(self) -> None:
        """Cancel a repair in progress."""
        if self._task is not None:
            await cancel(self._task)
