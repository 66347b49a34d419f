"""Cancellation of tasks that may swallow the first request."""

from __future__ import annotations

import asyncio
from typing import Any, Final

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
