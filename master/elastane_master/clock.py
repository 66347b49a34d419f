"""The time the decisions see: it does not run while the master could not have heard anybody.

Deadlines of leases and of heartbeats are kept on this clock, and some are stored and outlive the
master. Three things must not make every deadline pass at once:

- the wall clock is set forward: it is read once, from there on only the monotonic clock counts;
- the master itself is stopped for a while (SIGSTOP, a sleeping machine, a blocked loop): messages wait
  unread in its sockets. The clock is read often (`keep`); a longer gap counts as a short one;
- the store does not answer: workers wait for acknowledgements the master may not give (`pause`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

STEP_SECONDS_MAX = 1.0
"""What a gap between two readings counts at most."""

KEEP_SECONDS = 0.25


class Clock:
    """Seconds since the Unix epoch, never going back. Used from one event loop."""

    def __init__(
        self, wall: Callable[[], float] = time.time, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._wall = wall
        self._monotonic = monotonic
        self._now = wall()
        self._read_at = monotonic()
        self._pauses = 0
        self._timer: asyncio.TimerHandle | None = None

    def __call__(self) -> float:
        read_at = self._monotonic()
        if not self._pauses:
            self._now += min(max(read_at - self._read_at, 0.0), STEP_SECONDS_MAX)
        self._read_at = read_at
        return self._now

    def begin(self) -> None:
        """Takes the wall clock's time, if that is later: nobody was served until now, nothing was missed."""
        self._now = max(self._now, self._wall())
        self._read_at = self._monotonic()

    def at_least(self, stored: float) -> None:
        """Goes on from `stored`, a time that was decided at, if that is later."""
        self._now = max(self(), stored)

    def pause(self) -> None:
        """Stops until `resume` has been called as often."""
        self()
        self._pauses += 1

    def resume(self) -> None:
        """Ends one `pause`."""
        self()
        self._pauses = max(0, self._pauses - 1)

    def keep(self) -> None:
        """Reads the clock again and again, so that only a stop of the loop makes a gap."""
        self()
        self._timer = asyncio.get_running_loop().call_later(KEEP_SECONDS, self.keep)

    def stop(self) -> None:
        """Ends `keep`."""
        if self._timer is not None:
            self._timer.cancel()
