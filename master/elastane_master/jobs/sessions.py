"""Session of a worker or runner as seen by its server: its outgoing messages and its end."""

from __future__ import annotations

import asyncio
import uuid
from collections import deque
from collections.abc import AsyncIterator
from typing import Generic, Protocol, TypeVar

from elastane_master.decisions.events import Rejection

M = TypeVar("M")
Taken = TypeVar("Taken", contravariant=True)


class Sink(Protocol[Taken]):
    """Takes the messages of a session at once, instead of its stream. unread: number that it still has."""

    @property
    def unread(self) -> int: ...

    def take(self, message: Taken) -> None: ...


class Session(Generic[M]):
    """One stream of one worker or runner, from Hello on; M: its messages. Used from one event loop.

    worker: its id. messages_max: limit of unread messages; whoever exceeds it no longer reads its stream.
    answered: a message was queued. A worker's first is Welcome, which waits for the store; before that,
    the worker does not know how often to send heartbeats. ended: the session takes no more messages.
    """

    __slots__ = (
        "_messages_max",
        "_outgoing",
        "_refusal",
        "_sink",
        "_wake",
        "answered",
        "ended",
        "id",
        "worker",
    )

    def __init__(self, worker: str, messages_max: int = 1000) -> None:
        self._messages_max = messages_max
        self.worker = worker
        self.id = uuid.uuid4().hex
        self._outgoing: deque[M] = deque()
        self._wake: asyncio.Future[None] | None = None
        self.answered = False
        self.ended = False
        self._refusal: Rejection | None = None
        self._sink: Sink[M] | None = None

    def divert(self, sink: Sink[M]) -> None:
        """Give the messages, those already queued first, to `sink` when they are put.

        `outgoing` then yields none and waits for the end.
        """
        self._sink = sink
        while self._outgoing:
            sink.take(self._outgoing.popleft())

    def put(self, message: M) -> bool:
        """Queue a message. False if too many are unread, which ends the session."""
        if self.ended:
            return True
        if (self._sink.unread if self._sink else len(self._outgoing)) >= self._messages_max:
            self._outgoing.clear()
            self.end(
                Rejection(
                    "evicted",
                    f"{self.worker} did not read {self._messages_max} messages",
                    hint="connect again",
                    limit="session_messages_max",
                )
            )
            return False
        self.answered = True
        if self._sink is not None:
            self._sink.take(message)
        else:
            self._outgoing.append(message)
            self._notify()
        return True

    def end(self, refusal: Rejection | None = None) -> None:
        """End the stream after the queued messages: normally, or with a typed error."""
        if not self.ended:
            self.ended = True
            self._refusal = refusal
            self._notify()

    async def outgoing(self) -> AsyncIterator[M]:
        """Yield the messages in order until the session ends; raises its Rejection if it ended with one."""
        while True:
            while self._outgoing:
                yield self._outgoing.popleft()
            if self.ended:
                if self._refusal is not None:
                    raise self._refusal
                return
            self._wake = asyncio.get_running_loop().create_future()
            await self._wake

    def _notify(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)
