"""TLS handshakes, done outside the event loop: a few at a time, and addresses take turns.

Signing takes half a millisecond, with large RSA keys several: in the loop, strangers could stop the master by
handshakes alone. OpenSSL works without the interpreter's lock, so one thread costs the loop little, and
all handshakes together take at most that thread's core.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, Generic, Protocol, TypeVar

THREADS: Final = 1

T = TypeVar("T")


class FairQueue(Generic[T]):
    """A queue that serves addresses in turn, however many entries each has. Pure."""

    def __init__(self) -> None:
        #: The next one's turn is the first address's.
        self._waiting: dict[str, deque[T]] = {}

    def add(self, address: str, one: T) -> None:
        """Add an entry of `address`."""
        self._waiting.setdefault(address, deque()).append(one)

    def take(self) -> T | None:
        """Remove and return the next entry; None if the queue is empty."""
        if not self._waiting:
            return None
        address, its = next(iter(self._waiting.items()))
        one = its.popleft()
        del self._waiting[address]
        if its:
            self._waiting[address] = its
        return one


class Step(Protocol):
    """A step of a handshake."""

    def wanted(self) -> bool:
        """False if its caller has left meanwhile."""
        ...

    def run(self) -> Any:
        """Run the step; called in a thread."""
        ...

    def done(self, result: asyncio.Future[Any]) -> None:
        """Process the result; called in the event loop."""
        ...


class Handshakes:
    """Runs steps of handshakes. Used from one event loop; each caller has one step waiting at most."""

    def __init__(self, threads: int = THREADS) -> None:
        self._free = threads
        self._turns: FairQueue[Step] = FairQueue()
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="handshakes")

    def submit(self, address: str, step: Step) -> None:
        """Run a step of a caller at `address` when it is that address's turn."""
        self._turns.add(address, step)
        self._run()

    def close(self) -> None:
        """Run no more steps."""
        self._free = 0
        self._turns = FairQueue()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _run(self) -> None:
        while self._free and (step := self._turns.take()) is not None:
            if step.wanted():
                self._free -= 1
                loop = asyncio.get_running_loop()
                running: asyncio.Future[Any]
                try:
                    running = loop.run_in_executor(self._pool, step.run)
                except RuntimeError as error:  # no thread can be started now
                    running = loop.create_future()
                    running.set_exception(error)
                running.add_done_callback(self._finished(step))

    def _finished(self, step: Step) -> Callable[[asyncio.Future[Any]], None]:
        def finished(result: asyncio.Future[Any]) -> None:
            if result.cancelled():
                return  # closed meanwhile
            self._free += 1
            try:
                step.done(result)
            finally:
                self._run()

        return finished
