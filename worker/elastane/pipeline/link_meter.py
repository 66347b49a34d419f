"""Bandwidth of the links to a worker, measured in frames that it receives anyway.

A message flows once both ends have asked for it. Some frames are sent in two messages, of which the receiver
asks for the second when it has the first and so knows the size (`ring_links`). Its sender has asked by then:
from there to its arrival the link is waited for, on the receiver's clock alone. What hosts that are busy add
to that only makes a link look slower: the fastest of the last messages counts. A link that has become slower
shows when all of these have passed over it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

#: Smaller messages say more of a link's latency than of its bandwidth.
BYTES_MIN: Final = 1 << 16
#: Messages of a link of which the fastest is taken.
SAMPLES: Final = 5
#: Links that a worker tells of.
LINKS_MAX: Final = 32


class LinkMeter:
    """Links to one worker from the members of its ring. Used by the script's thread."""

    def __init__(self) -> None:
        self._members: tuple[str, ...] = ()
        self._samples: dict[str, deque[float]] = {}

    def entered(self, members: Sequence[str]) -> None:
        """Adopt a ring: worker ids by index. Of workers that are not in it nothing is known any more."""
        self._members = tuple(members)
        self._samples = {one: kept for one, kept in self._samples.items() if one in self._members}

    def received(self, peer: int, nbytes: int, seconds: float) -> None:
        """Note a message from a member that took so long from when both ends had asked for it."""
        if nbytes < BYTES_MIN or seconds <= 0 or peer >= len(self._members):
            return
        worker = self._members[peer]
        if worker not in self._samples and len(self._samples) >= LINKS_MAX:
            return
        self._samples.setdefault(worker, deque(maxlen=SAMPLES)).append(nbytes / seconds)

    @property
    def bytes_per_second(self) -> dict[str, float]:
        """Bandwidth of the link from each worker that has sent large frames."""
        return {worker: max(found) for worker, found in self._samples.items()}
