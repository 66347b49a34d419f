"""Time limits of tests that bound what is waited for, and not how long others keep the machine busy.

A limit is given in seconds of a machine with processors to spare. While the test's processes have to wait
for a processor, it runs slower, by the share of the time in which they had one: at a load of 40 on two
cores, what computes takes twenty times as long although it goes on. What hangs is ended all the same, later
by the same factor.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple, TypeVar

import psutil
import pytest_timeout

T = TypeVar("T")

LOOK_SECONDS = 1.0
"""Least time between two looks at what the processes got."""


class Usage(NamedTuple):
    """Nanoseconds that a thread has run, and that it could have run but had no processor."""

    ran: int
    waited: int


def usage_of(*process_ids: int) -> dict[str, Usage]:
    """Return the usage of each living thread of these processes; empty where the kernel does not count it."""
    found = {}
    for process_id in process_ids:
        with contextlib.suppress(OSError):  # the process has ended
            for thread in Path(f"/proc/{process_id}/task").iterdir():
                with contextlib.suppress(OSError):  # the thread has
                    ran, waited, _ = (thread / "schedstat").read_text().split()
                    found[thread.name] = Usage(int(ran), int(waited))
    return found


def usage_of_tree() -> dict[str, Usage]:
    """Return the usage of this process and its descendants."""
    children = psutil.Process().children(recursive=True)
    return usage_of(os.getpid(), *(child.pid for child in children))


class Patience:
    """A limit that runs slower than the clock while this process and its descendants lack processors."""

    def __init__(
        self,
        seconds: float,
        *,
        now: Callable[[], float] = time.monotonic,
        usage: Callable[[], dict[str, Usage]] = usage_of_tree,
    ) -> None:
        self._left = seconds
        self._now, self._usage = now, usage
        # Without the descendants, whose usage counts from their start: every test begins here, at no cost.
        self._looked_at, self._seen = now(), usage_of(os.getpid())

    def left(self) -> float:
        """Return how many seconds are left with processors for all from now on; 0 once it is over."""
        seconds = self._now() - self._looked_at
        if seconds < self._left:
            return self._left - seconds
        seen = self._usage()
        self._left -= seconds * _share(self._seen, seen)
        self._looked_at, self._seen = self._looked_at + seconds, seen
        return max(0.0, self._left)

    def next_look(self) -> float | None:
        """Return after how many seconds to ask again; None once it is over."""
        left = self.left()
        return max(LOOK_SECONDS, left) if left else None


def _share(before: dict[str, Usage], after: dict[str, Usage]) -> float:
    """Return how much of the time in which the threads wanted a processor they had one."""
    none = Usage(0, 0)
    ran = sum(usage.ran - before.get(thread, none).ran for thread, usage in after.items())
    waited = sum(usage.waited - before.get(thread, none).waited for thread, usage in after.items())
    return ran / (ran + waited) if ran > 0 and waited > 0 else 1.0


@contextlib.asynccontextmanager
async def within(seconds: float) -> AsyncIterator[None]:
    """As `asyncio.timeout`, with patience: the block raises TimeoutError when it takes longer."""
    loop, patience = asyncio.get_running_loop(), Patience(seconds)
    async with asyncio.timeout(None) as scope:

        def look() -> None:
            nonlocal timer
            wait_seconds = patience.next_look()
            if wait_seconds is None:
                scope.reschedule(loop.time())
            else:
                timer = loop.call_later(wait_seconds, look)

        timer = loop.call_later(seconds, look)
        try:
            yield
        finally:
            timer.cancel()


async def wait_for(awaitable: Awaitable[T], seconds: float) -> T:
    """As `asyncio.wait_for`, with patience."""
    async with within(seconds):
        return await awaitable


def wait(waiting: Callable[[float], T], seconds: float) -> T:
    """Return what `waiting` returns, a wait of so many seconds that is begun again while patience lasts.

    Raises what it raises in the end: TimeoutExpired of a process, Empty of a queue.
    """
    patience, wait_seconds = Patience(seconds), seconds
    while True:
        try:
            return waiting(wait_seconds)
        except (subprocess.TimeoutExpired, queue.Empty):
            if (left := patience.next_look()) is None:
                raise
            wait_seconds = left


def communicate(process: subprocess.Popen[Any], seconds: float) -> tuple[Any, Any]:
    """As `Popen.communicate` with that timeout, with patience."""
    return wait(lambda left: process.communicate(timeout=left), seconds)


def run(
    command: Sequence[str],
    *,
    timeout: float,
    capture_output: bool = False,
    check: bool = False,
    **options: Any,
) -> subprocess.CompletedProcess[Any]:
    """As `subprocess.run`, with patience. options: of Popen."""
    if capture_output:
        options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, **options) as process:
        try:
            said, errors = communicate(process, timeout)
        except BaseException:
            process.kill()
            raise
    done = subprocess.CompletedProcess(process.args, process.returncode, said, errors)
    if check:
        done.check_returncode()
    return done


def set_timer(item: Any, settings: Any) -> bool:
    """Start the limit of a test, as pytest-timeout's hook of that name; ends the test by SIGALRM."""
    patience = Patience(settings.timeout)

    def expired(signum: int, frame: FrameType | None) -> None:
        __tracebackhide__ = True
        wait_seconds = patience.next_look()
        if wait_seconds is None:
            pytest_timeout.timeout_sigalrm(item, settings)
        else:
            signal.setitimer(signal.ITIMER_REAL, wait_seconds)

    def cancel() -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)

    item.cancel_timeout = cancel
    signal.signal(signal.SIGALRM, expired)
    signal.setitimer(signal.ITIMER_REAL, settings.timeout)
    return True
