"""Concurrent processing of one stream's requests, with answers in order."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from types import TracebackType
from typing import Generic, TypeVar

Message = TypeVar("Message")
Request = TypeVar("Request")
Answer = TypeVar("Answer")


class Decided(Generic[Answer]):
    """A known answer that may be sent once `durable` has resolved; None: at once."""

    __slots__ = ("answer", "durable")

    def __init__(self, answer: Answer, durable: asyncio.Future[None] | None) -> None:
        self.answer = answer
        self.durable = durable

    def result(self) -> Answer:
        """Return the answer. Raises the error for which it cannot become durable."""
        if self.durable is not None:
            self.durable.result()
        return self.answer


class Pipeline(Generic[Message, Request, Answer]):
    """Reads messages ahead, up to `most` unanswered requests, and gives the answers in order.

    requests_of: returns the requests in a message. begin: called for each request on arrival, so its effects
    are in order; returns the answer, or a task that computes it. Errors of these two, the task or the
    messages are raised at their place; what was begun after them is cancelled.

    After `end`, no more answers are given: `batches` raises at once, wherever it waits.

    A context manager: leaving it cancels everything in progress.
    """

    def __init__(
        self,
        messages: AsyncIterator[Message],
        requests_of: Callable[[Message], Iterable[Request]],
        begin: Callable[[Request], Decided[Answer] | asyncio.Task[Answer]],
        most: int,
    ) -> None:
        self._messages = messages
        self._requests_of = requests_of
        self._begin = begin
        self._most = most
        # None: the requests have ended.
        self._begun: deque[Decided[Answer] | asyncio.Task[Answer] | None] = deque()
        self._reader: asyncio.Task[None] | None = None
        self._asleep: asyncio.Future[None] | None = None
        self._full: asyncio.Future[None] | None = None
        self._ended: BaseException | None = None

    async def __aenter__(self) -> Pipeline[Message, Request, Answer]:
        self._reader = asyncio.create_task(self._read())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        tasks = [task for task in (self._reader, *self._begun) if isinstance(task, asyncio.Task)]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def end(self, error: BaseException) -> None:
        """Give no more answers, known or not: `batches` raises `error`."""
        self._ended = error
        self._wake()

    async def batches(
        self, size_of: Callable[[Answer], int] = lambda answer: 0, size_max: int = 0
    ) -> AsyncIterator[list[Answer]]:
        """Yield the answers in order, those that are known at the same time together: none waits for others.

        size_of: of an answer, which goes with others while they have at most `size_max` together.
        """
        while (first := await self._first()) is not None:
            self._begun.popleft()
            batch = [first.result()]
            size = size_of(batch[0]) if self._begun else 0
            while self._begun and (begun := self._begun[0]) is not None and _is_known(begun):
                answer = begun.result()
                size += size_of(answer)
                if size > size_max:
                    break
                self._begun.popleft()
                batch.append(answer)
            _resolve(self._full)
            yield batch
        assert self._reader is not None
        await self._reader  # raises the error that reading the requests raised

    async def _first(self) -> Decided[Answer] | asyncio.Task[Answer] | None:
        """Return what was begun first, once it has its answer or its error; it stays where it is.

        Waits for a future of its own: the write is shared with other waiters, so a caller that leaves must
        not cancel it.
        """
        followed: object = None
        while True:
            if self._ended is not None:
                raise self._ended
            if self._begun:
                begun = self._begun[0]
                awaited = begun.durable if isinstance(begun, Decided) else begun
                if awaited is None or awaited.done():
                    return begun
                if followed is not awaited:
                    awaited.add_done_callback(self._wake)
                    followed = awaited
            self._asleep = asyncio.get_running_loop().create_future()
            await self._asleep

    def _wake(self, done: object = None) -> None:
        _resolve(self._asleep)

    async def _read(self) -> None:
        try:
            async for message in self._messages:
                for request in self._requests_of(message):
                    while len(self._begun) >= self._most:
                        self._full = asyncio.get_running_loop().create_future()
                        await self._full
                    self._put(self._begin(request))
        finally:
            self._put(None)

    def _put(self, begun: Decided[Answer] | asyncio.Task[Answer] | None) -> None:
        self._begun.append(begun)
        if len(self._begun) == 1:
            self._wake()


def _resolve(future: asyncio.Future[None] | None) -> None:
    if future is not None and not future.done():
        future.set_result(None)


def _is_known(begun: Decided[Answer] | asyncio.Task[Answer]) -> bool:
    """True if its answer may be sent now."""
    awaited = begun.durable if isinstance(begun, Decided) else begun
    return awaited is None or (awaited.done() and not awaited.cancelled() and awaited.exception() is None)
