"""Long computations beside an event loop: one at a time, in a separate thread, with a time limit."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Generic, TypeVar, cast

Result = TypeVar("Result")


class TooSlow(Exception):  # noqa: N818 - named after the fact
    """A computation exceeded its time limit. It continues in its thread, and its result is discarded."""


class StillBusy(TooSlow):
    """An earlier computation that exceeded its limit is still running, so this one was not started."""


class BoundedThread(Generic[Result]):
    """Used from one event loop.

    name: of the thread. seconds_max: for one computation. A thread cannot be ended: while one is late, every
    further computation is refused.
    """

    def __init__(self, name: str, seconds_max: float) -> None:
        self._name = name
        self._seconds_max = seconds_max
        self._late: threading.Thread | None = None

    async def run(self, work: Callable[[], Result]) -> Result:
        """Return what `work` returns. Raises TooSlow, StillBusy, and whatever `work` raises.

        A caller that is cancelled does not wait for the thread either; it counts as late.
        """
        if self._late is not None and self._late.is_alive():
            raise StillBusy("the previous call has not ended")
        self._late = None
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Result] = loop.create_future()

        def settle(result: Result | None, failure: BaseException | None) -> None:
            if answer.done():
                return
            if failure is not None:
                answer.set_exception(failure)
            else:
                answer.set_result(cast("Result", result))

        def compute() -> None:
            result: Result | None = None
            failure: BaseException | None = None
            try:
                result = work()
            except BaseException as error:  # noqa: BLE001 - it must reach whoever waits
                failure = error
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(settle, result, failure)

        # A daemon: a computation that never ends must not keep the process from ending.
        thread = threading.Thread(target=compute, name=self._name, daemon=True)
        thread.start()
        try:
            async with asyncio.timeout(self._seconds_max):
                return await answer
        except TimeoutError:
            if answer.done() and not answer.cancelled():
                raise  # the computation's own
            self._late = thread
            raise TooSlow(f"it took longer than {self._seconds_max:g} s") from None
        except asyncio.CancelledError:
            self._late = thread
            raise
