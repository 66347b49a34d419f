"""Estimates the bandwidth of links to a worker from the frames that it receives anyway.

A transfer starts once both ends have posted it. Some frames are sent as two messages; the receiver posts the
second once the first has told it the size (`ring_links`), when the sender has already posted its side. The
time from then until arrival is spent on the link, and measured by the receiver's clock alone. Busy hosts can
only make a link look slower, so the fastest of the last messages counts. A link that becomes slower is
noticed once that many messages have passed over it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

#: Smaller messages, in bytes, measure a link's latency rather than its bandwidth.
BYTES_MIN: Final = 1 << 16
#: Number of a link's last messages of which the fastest counts.
SAMPLES: Final = 5
#: Maximum number of links that a worker reports.
LINKS_MAX: Final = 32


class LinkMeter:
    """Measures the links from the members of a ring to this worker. Used by the script's thread."""

    def __init__(self) -> None:
        self._members: tuple[str, ...] = ()
        self._samples: dict[str, deque[float]] = {}

    def entered(self, members: Sequence[str]) -> None:
        """Adopt a ring. members: worker ids by index. Forgets workers that are not in it."""
        self._members = tuple(members)
        self._samples = {one: kept for one, kept in self._samples.items() if one in self._members}

    def received(self, peer: int, nbytes: int, seconds: float) -> None:
        """Record a message. seconds: from when both ends had posted it until it arrived."""
        if nbytes < BYTES_MIN or seconds <= 0 or peer >= len(self._members):
            return
        worker = self._members[peer]
        if worker not in self._samples and len(self._samples) >= LINKS_MAX:
            return
        self._samples.setdefault(worker, deque(maxlen=SAMPLES)).append(nbytes / seconds)

    @property
    def bytes_per_second(self) -> dict[str, float]:
        """Bandwidth in bytes per second, by id of each worker that has sent large frames."""
        return {worker: max(found) for worker, found in self._samples.items()}
