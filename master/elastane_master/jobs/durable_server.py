"""Serves a state machine whose decisions become durable before their effects leave.

  submit --> the machine decides (at once, one event at a time) --> log.append
                                     | durable
              streams, watchers, answers  <-- effects, in order

The machine is ahead of the store by the writes in flight, and nobody outside may act on that: effects wait
until everything appended before them is durable. An effect that needs no write still waits for the decisions
before it, so a receiver gets its messages in the order of the decisions.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Iterator
from typing import Generic, NoReturn, Protocol, TypeVar

from elastane_master.decisions.events import Rejection
from elastane_master.jobs.clock import Clock
from elastane_master.jobs.limits import Limits
from elastane_master.store.errors import LogClosed
from elastane_master.store.log import JobLog, LogListener

CONFIRM_SECONDS = 5.0
"""Time a refusal waits for a store that does not answer."""

E = TypeVar("E")


class Decided(Protocol):
    """A decision as a server handles it. result: the answer to a request."""

    @property
    def result(self) -> object: ...


class DurableServer(LogListener, Generic[E]):
    """Base of the servers of jobs and of runs; E: their events. Used from one event loop.

    stopping: no more decisions are made. paused: refusal of every request while paused; else None.
    """

    def __init__(self, log: JobLog, clock: Clock, limits: Limits | None = None) -> None:
        self.log = log
        self.clock = clock
        self.limits = limits or Limits()
        self.stopping = False
        self.paused: Rejection | None = None
        self._ends: dict[Callable[[Rejection], None], None] = {}
        self._outbox: deque[tuple[int, Callable[[], None]]] = deque()

    # ---------------------------------------------------------------- requests

    async def submit(self, event: E) -> object:
        """Decide on a request; return its result once everything it depends on is durable.

        Raises Rejection, MachineBroken, and StoreError if the log has ended.
        """
        self.require_taking()
        try:
            result, durable = self.begin(event)
        except Rejection:
            await self.confirm()
            raise
        if durable is not None:
            # The write is shared by all its waiters: a caller that leaves must not cancel it.
            await asyncio.shield(durable)
        return result

    def require_taking(self) -> None:
        """Raise Rejection while no request can be accepted."""
        if self.paused is not None:
            raise self.paused
        if not self.log.reachable and self.log.appended - self.log.durable > self.limits.backlog_requests_max:
            raise Rejection(
                "store_unavailable",
                "the store does not answer, and too many requests wait for it",
                hint="ask again later",
                limit="backlog_requests_max",
                maximum=self.limits.backlog_requests_max,
            )

    def begin(self, event: E) -> tuple[object, asyncio.Future[None] | None]:
        """Decide on a request at once; return its result and the future to await before answering.

        The future is None if nothing is pending. It is shared: await it through `asyncio.shield`. Raises as
        `submit`; a Rejection, too, must not be sent before `confirm` returns.
        """
        decision = self._decide(event)
        return decision.result, self.log.pending

    async def confirm(self) -> None:
        """Return once the store has confirmed, after this call, that the log is still this master's.

        A refusal depends on the state as any answer does: a master that lost it without knowing would refuse
        what the new master accepts. Raises StoreError if the log has ended, and Rejection if the store does
        not answer for `CONFIRM_SECONDS`.
        """
        if self.stopping or self.log.failure is not None:
            raise self.log.failure or self._log_closed()
        try:
            async with asyncio.timeout(CONFIRM_SECONDS):
                await asyncio.shield(self.log.append(None))
        except TimeoutError:
            raise Rejection(
                "store_unavailable",
                "the store does not answer: it is unknown whether this master still leads and may refuse",
                hint="ask again in a moment",
            ) from None

    async def refuse(self, refusal: Rejection) -> NoReturn:
        """Raise the refusal of a request once it is `confirm`ed."""
        await self.confirm()
        raise refusal

    @contextlib.contextmanager
    def ending(self, end: Callable[[Rejection], None]) -> Iterator[None]:
        """Call `end` if the service is paused inside the block; for streams that wait for the store."""
        self._ends[end] = None
        try:
            yield
        finally:
            del self._ends[end]

    # ---------------------------------------------------------------- decisions and their effects

    def _decide(self, event: E) -> Decided:
        """Decide on one event, store it and schedule its effects."""
        raise NotImplementedError

    def _require_deciding(self) -> None:
        """Raise StoreError if nothing more may be decided."""
        if self.log.failure is not None:
            raise self.log.failure
        if self.stopping:
            # The last snapshot would contain the decision, but the history would not.
            raise self._log_closed()

    def _log_closed(self) -> LogClosed:
        return LogClosed(f"the log of {self.log.job} is closed", job=self.log.job)

    def _when_durable(self, action: Callable[[], None], *, hurries: bool = True) -> None:
        """Run `action` when everything appended so far is durable, after the actions scheduled before it.

        hurries: False if it may wait for the log's next write.
        """
        if not self._outbox and self.log.durable >= self.log.appended:
            action()
            return
        self._outbox.append((self.log.appended, action))
        if hurries:
            self.log.hurry()

    def durable(self, position: int) -> None:
        while self._outbox and self._outbox[0][0] <= position:
            self._outbox.popleft()[1]()
