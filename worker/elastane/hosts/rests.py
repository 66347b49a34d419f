"""Which hosts are left out for a while: pure. Times are seconds of any clock that only goes forward.

Three things make a host rest: its processes fail again and again while others do well; nothing can be started
there; it says that it will be taken away. None of them says anything of the script.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

FAILURES_MAX: Final = 3
"""A host whose processes fail so often without one that lasted is left out for a while."""

REST_SECONDS: Final = 300.0
CALM_SECONDS: Final = 60.0
"""A process that lasted so long clears what its host failed before."""

UNREACHABLE_MIN_SECONDS: Final = 5.0
"""A host where nothing can be started is tried again after so long, then after twice that, up to a rest."""


class HostRests:
    """The hosts that rest, and those that have failed of late."""

    def __init__(self) -> None:
        self._failures: dict[str, int] = {}
        self._unreachable: dict[str, int] = {}
        self._until: dict[str, float] = {}

    def failed(self, now: float, host: str, *, alone: bool) -> float:
        """A process of the host failed; for how many seconds the host rests now, or 0.

        alone: no other host could do its work, so it is not left out.
        """
        self._failures[host] = self._failures.get(host, 0) + 1
        if self._failures[host] < FAILURES_MAX or alone:
            return 0.0
        del self._failures[host]
        return self.rest(now, host, REST_SECONDS)

    def unreachable(self, now: float, host: str) -> float:
        """Nothing could be started on the host; for how many seconds it rests."""
        if self._until.get(host, 0.0) > now:
            return self._until[host] - now  # its other slots met the same
        count = self._unreachable.get(host, 0)
        self._unreachable[host] = count + 1
        return self.rest(now, host, min(UNREACHABLE_MIN_SECONDS * 2.0 ** min(count, 10), REST_SECONDS))

    def rest(self, now: float, host: str, seconds: float) -> float:
        """The host is left out for so long at least; gives the seconds back."""
        self._until[host] = max(self._until.get(host, 0.0), now + seconds)
        return seconds

    def clear(self, hosts: Iterable[str]) -> None:
        """Processes of these hosts did well: what they failed before no longer counts."""
        for host in hosts:
            self._failures.pop(host, None)
            self._unreachable.pop(host, None)

    def resting(self, now: float) -> frozenset[str]:
        """The hosts that are left out now."""
        self._until = {host: until for host, until in self._until.items() if until > now}
        return frozenset(self._until)

    def next_due(self) -> float | None:
        """When the first of them is done with its rest."""
        return min(self._until.values(), default=None)
