"""Cancellation of tasks that may swallow the first request, and work that outlives its caller."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, Final, TypeVar

import structlog

T = TypeVar("T")
logger = structlog.get_logger(__name__)

AGAIN_SECONDS: Final = 2.0
"""Time for a task to clean up before it is cancelled again."""


async def cancel(*tasks: asyncio.Task[Any]) -> None:
    """Cancel the tasks and wait until all have ended.

    `asyncio.wait_for` of Python 3.11 swallows a cancellation that arrives just as the awaited future
    completes (CPython issue 86296, fixed in 3.12), and `redis.asyncio` sends each command through it. So a
    task that continues is cancelled again.
    """
    pending = {task for task in tasks if not task.done()}
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=AGAIN_SECONDS)


async def end_all(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel the tasks, and return when all have ended, however they did: their errors are dropped.

    A task that takes long to clean up is waited for, and not cancelled again as by `cancel`.
    """
    ended = list(tasks)
    for task in ended:
        task.cancel()
    await asyncio.gather(*ended, return_exceptions=True)


async def to_its_end(work: Coroutine[Any, Any, T]) -> T:
    """Await `work`. If the caller is cancelled, `work` runs to its end, and its error is logged.

    With `asyncio.shield` alone such a failure is reported as an exception that nobody retrieved.
    """
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        task.add_done_callback(_log_failure)
        raise


def _log_failure(task: asyncio.Future[Any]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.info("a request failed after its caller had left", error=str(error))
