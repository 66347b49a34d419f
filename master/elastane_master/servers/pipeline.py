"""Requests of one stream, several of them in work at once, answered in the order in which they came."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from types import TracebackType
from typing import Generic, TypeVar

Request = TypeVar("Request")
Answer = TypeVar("Answer")


class Pipeline(Generic[Request, Answer]):
    """Reads `requests` ahead, up to `most` unanswered ones; iterating over it gives the answers.

    work: makes the answer. It is begun for each request as it comes, so what it does before it first waits
    is done in order. What it or the requests raise is raised at its place; what was begun behind it is
    cancelled.
    A context manager: leaving it ends everything that is still in work.
    """

    def __init__(
        self, work: Callable[[Request], Awaitable[Answer]], requests: AsyncIterator[Request], most: int
    ) -> None:
        self._work = work
        self._requests = requests
        self._room = asyncio.Semaphore(most)
        self._begun: asyncio.Queue[asyncio.Task[Answer] | None] = asyncio.Queue()
        self._reader: asyncio.Task[None] | None = None
        self._current: asyncio.Task[Answer] | None = None

    async def __aenter__(self) -> Pipeline[Request, Answer]:
        self._reader = asyncio.create_task(self._read())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        left: list[asyncio.Task[Answer] | asyncio.Task[None] | None] = [self._reader, self._current]
        while not self._begun.empty():
            left.append(self._begun.get_nowait())
        tasks = [task for task in left if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def __aiter__(self) -> AsyncIterator[Answer]:
        while (task := await self._begun.get()) is not None:
            self._current = task
            answer = await task
            self._room.release()
            yield answer
        assert self._reader is not None
        await self._reader  # raises what reading the requests raised

    async def _read(self) -> None:
        try:
            async for request in self._requests:
                await self._room.acquire()
                self._begun.put_nowait(asyncio.ensure_future(self._work(request)))
        finally:
            self._begun.put_nowait(None)
