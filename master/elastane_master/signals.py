"""Waiting for news without missing any and without queueing it."""

from __future__ import annotations

import asyncio


class Signal:
    """Something that happens again and again. Used from one event loop.

    A waiter remembers the `count` it has seen and waits for a higher one. It never misses an
    announcement, and one that is slow sees many as one: no memory is kept for it.
    """

    def __init__(self) -> None:
        self.count = 0
        self._event = asyncio.Event()

    def announce(self) -> None:
        """Wakes all who wait."""
        self.count += 1
        self._event.set()
        self._event = asyncio.Event()

    async def beyond(self, seen: int) -> int:
        """Returns the count as soon as it is higher than `seen`."""
        while self.count <= seen:
            await self._event.wait()
        return self.count
