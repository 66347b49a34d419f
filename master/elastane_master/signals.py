"""Notification of changes: waiters miss none, and nothing is queued."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


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


@dataclass(slots=True)
class _Watched:
    signal: Signal
    watchers: int = 0


class SignalsByKey(Generic[K]):
    """A signal for each key that is watched: news of one wake its own waiters alone.

    Nothing is kept for a key that nobody watches. Used from one event loop.
    """

    def __init__(self) -> None:
        self._watched: dict[K, _Watched] = {}

    def __len__(self) -> int:
        return len(self._watched)

    @contextmanager
    def watching(self, key: K) -> Iterator[Signal]:
        """Give the signal of a key; it announces all news of the key inside the block."""
        watched = self._watched.setdefault(key, _Watched(Signal()))
        watched.watchers += 1
        try:
            yield watched.signal
        finally:
            watched.watchers -= 1
            if not watched.watchers:
                del self._watched[key]

    def announce(self, key: K) -> None:
        """Wake those who watch this key."""
        if (watched := self._watched.get(key)) is not None:
            watched.signal.announce()

    def announce_all(self) -> None:
        """Wake everybody."""
        for watched in self._watched.values():
            watched.signal.announce()
