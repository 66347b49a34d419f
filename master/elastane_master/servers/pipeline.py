"""Concurrent processing of one stream's requests, with answers in order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from types import TracebackType
from typing import Any, Generic, TypeVar

Request = TypeVar("Request")
Answer = TypeVar("Answer")


class Decided(Generic[Answer]):
    """A known answer that may be sent once `durable` has resolved; None: at once."""

    __slots__ = ("answer", "durable")

    def __init__(self, answer: Answer, durable: asyncio.Future[None] | None) -> None:
        self.answer = answer
        self.durable = durable

    @property
    def may_be_sent(self) -> bool:
        """True once it is durable."""
        durable = self.durable
        return durable is None or (durable.done() and not durable.cancelled() and durable.exception() is None)


class Pipeline(Generic[Request, Answer]):
    """Reads `requests` ahead, up to `most` unanswered ones; iterating yields the answers.

    begin: called for each request on arrival, so its effects are in order; returns the answer, or a task that
    computes it. Errors of begin, the task or the requests are raised at their place; what was begun after
    them is cancelled.

    After `end`, iterating raises at once, wherever it waits.

    A context manager: leaving it cancels everything in progress.
    """

    def __init__(
        self,
        begin: Callable[[Request], Decided[Answer] | asyncio.Task[Answer]],
        requests: AsyncIterator[Request],
        most: int,
    ) -> None:
        self._begin = begin
        self._requests = requests
        self._room = asyncio.Semaphore(most)
        self._begun: asyncio.Queue[Decided[Answer] | asyncio.Task[Answer] | None] = asyncio.Queue()
        self._front: list[Decided[Answer] | asyncio.Task[Answer] | None] = []
        self._reader: asyncio.Task[None] | None = None
        self._current: asyncio.Future[Any] | None = None
        self._ended: BaseException | None = None

    async def __aenter__(self) -> Pipeline[Request, Answer]:
        self._reader = asyncio.create_task(self._read())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        left: list[object] = [self._reader, self._current, *self._front]
        while not self._begun.empty():
            left.append(self._begun.get_nowait())
        tasks = [task for task in left if isinstance(task, asyncio.Task)]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def end(self, error: BaseException) -> None:
        """Give no more answers, known or not: iterating raises `error`."""
        self._ended = error
        if self._current is not None:
            self._current.cancel()
        self._begun.put_nowait(None)

    async def __aiter__(self) -> AsyncIterator[Answer]:
        while (begun := await self._first()) is not None and self._ended is None:
            try:
                if isinstance(begun, Decided):
                    if begun.durable is not None:
                        # The write is shared with other waiters: a caller that leaves must not cancel it.
                        done = begun.durable.done()
                        self._current = begun.durable if done else asyncio.shield(begun.durable)
                        await self._current
                    answer = begun.answer
                else:
                    self._current = begun
                    answer = await begun
            except asyncio.CancelledError:
                task = asyncio.current_task()
                # `end` cancels only what is awaited; a cancellation of this iteration itself must propagate.
                if self._ended is None or (task is not None and task.cancelling()):
                    raise
                break
            finally:
                self._current = None
            self._room.release()
            yield answer
        if self._ended is not None:
            raise self._ended
        assert self._reader is not None
        await self._reader  # raises the error that reading the requests raised

    async def batches(self) -> AsyncIterator[list[Answer]]:
        """Yield the answers in order, those that are there together; they do not wait for others."""
        async for answer in self:
            known = [answer]
            while not self._begun.empty():
                begun = self._begun.get_nowait()
                if not (isinstance(begun, Decided) and begun.may_be_sent):
                    self._front.append(begun)
                    break
                self._room.release()
                known.append(begun.answer)
            yield known

    async def _first(self) -> Decided[Answer] | asyncio.Task[Answer] | None:
        """Take what was begun first."""
        return self._front.pop() if self._front else await self._begun.get()

    async def _read(self) -> None:
        try:
            async for request in self._requests:
                await self._room.acquire()
                self._begun.put_nowait(self._begin(request))
        finally:
            self._begun.put_nowait(None)
