"""Server-side waiting of workers for a dataset that has no task to lease at the moment.

A thousand workers may wait for the last tasks of a dataset. Waking all of them at every change would cost
more than the work itself, so one is woken for tasks that are back in TODO (it wakes the next one if there are
more), and all of them when none needs to wait any longer.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Literal

Wanted = Literal["none", "one", "all"]


class TaskWaiters:
    """Waiting calls by dataset, in order of arrival. Used from one event loop.

    wanted: returns how many waiters of a dataset could get an answer now.
    """

    def __init__(self, wanted: Callable[[str], Wanted]) -> None:
        self._wanted = wanted
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}

    @property
    def count(self) -> int:
        """Number of waiters over all datasets."""
        return sum(map(len, self._waiting.values()))

    async def wait(
        self, dataset: str, timeout_seconds: float, future: asyncio.Future[None] | None = None
    ) -> None:
        """Return when there may be an answer, or after the timeout.

        future: the future to wait for; the caller may resolve it, too, and must call `check` then.
        """
        future = future or asyncio.get_running_loop().create_future()
        self._waiting.setdefault(dataset, deque()).append(future)
        try:
            async with asyncio.timeout(timeout_seconds):
                await future
        except TimeoutError:
            return
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                self.check()  # it was woken but will not ask, so wake another
            raise
        finally:
            waiting = self._waiting.get(dataset)
            if waiting is not None and future in waiting:
                waiting.remove(future)
            if waiting is not None and not waiting:
                del self._waiting[dataset]

    def check(self) -> None:
        """Wake the waiters that a change of the job concerns."""
        for dataset, waiting in self._waiting.items():
            wanted = self._wanted(dataset)
            if wanted == "one":
                _wake(waiting)
            elif wanted == "all":
                while _wake(waiting):
                    pass

    def wake_all(self) -> None:
        """Wake all waiters."""
        for waiting in self._waiting.values():
            while _wake(waiting):
                pass


def _wake(waiting: deque[asyncio.Future[None]]) -> bool:
    """Wake the first one still waiting; False if there is none."""
    while waiting:
        future = waiting.popleft()
        if not future.done():
            future.set_result(None)
            return True
    return False
