"""Time source of the decisions. It stands still while the master cannot have received messages.

Deadlines of leases and heartbeats use this clock, and some are stored and outlive the master. Three events
must not make every deadline expire at once:

- the wall clock is set forward: it is read once, and from then on only the monotonic clock counts;
- the master itself is stopped for a while (SIGSTOP, a sleeping machine, a blocked loop) while messages wait
  unread in its sockets: the clock is read often (`keep`), and a longer gap counts as a short one;
- the store does not answer: workers wait for acknowledgements that the master must not give (`pause`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

STEP_SECONDS_MAX = 1.0
"""Largest amount by which one reading may advance the clock."""

KEEP_SECONDS = 0.25


class Clock:
    """Seconds since the Unix epoch, never decreasing. Used from one event loop."""

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
        seconds = read_at - self._read_at
        if seconds > 0 and not self._pauses:
            self._now += seconds if seconds < STEP_SECONDS_MAX else STEP_SECONDS_MAX
        self._read_at = read_at
        return self._now

    def begin(self) -> None:
        """Advance to the wall clock's time.

        Only before serving: no deadline is pending, so a jump is harmless.
        """
        self._now = max(self._now, self._wall())
        self._read_at = self._monotonic()

    def at_least(self, stored: float) -> None:
        """Advance to `stored`, the time of a stored decision, if it is later."""
        self._now = max(self(), stored)

    def pause(self) -> None:
        """Stop the clock until `resume` has been called once per `pause`."""
        self()
        self._pauses += 1

    def resume(self) -> None:
        """End one `pause`."""
        self()
        self._pauses = max(0, self._pauses - 1)

    def keep(self) -> None:
        """Read the clock periodically, so that only a stopped event loop causes a gap."""
        self()
        self._timer = asyncio.get_running_loop().call_later(KEEP_SECONDS, self.keep)

    def stop(self) -> None:
        """End `keep`."""
        if self._timer is not None:
            self._timer.cancel()
