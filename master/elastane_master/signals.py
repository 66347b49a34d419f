"""Notification of changes: waiters miss none, and nothing is queued."""

from __future__ import annotations

import asyncio


class Signal:
    """A repeatable event. Used from one event loop.

    A waiter remembers the `count` it has seen and waits for a higher one. It never misses an announcement,
    and a slow waiter sees several as one, so no memory is kept for it.
    """

    def __init__(self) -> None:
        self.count = 0
        self._event: asyncio.Event | None = (
            None  # only while somebody waits: most news are waited for by nobody
        )

    def announce(self) -> None:
        """Wake all waiters."""
        self.count += 1
        if self._event is not None:
            self._event.set()
            self._event = None

    async def beyond(self, seen: int) -> int:
        """Return the count once it is higher than `seen`."""
        while self.count <= seen:
            if self._event is None:
                self._event = asyncio.Event()
            await self._event.wait()
        return self.count
