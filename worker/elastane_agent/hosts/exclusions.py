"""Hosts excluded for a while: pure. Times are seconds of any monotonic clock.

A host is excluded for three reasons: its processes fail again and again while others succeed; nothing can be
started there; it has announced its termination. None of them is evidence against the script.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

FAILURES_MAX: Final = 3
"""A host with this many failures, and no process that lasted, is excluded for a while."""

EXCLUDED_SECONDS: Final = 300.0
CALM_SECONDS: Final = 60.0
"""A process that lasted this long clears its host's earlier failures."""

UNREACHABLE_MIN_SECONDS: Final = 5.0
"""Delay before a host where nothing can be started is tried again; doubled each time, up to a rest."""


class HostExclusions:
    """The excluded hosts, and those with recent failures."""

    def __init__(self) -> None:
        self._failures: dict[str, int] = {}
        self._unreachable: dict[str, int] = {}
        self._until: dict[str, float] = {}

    def failed(self, now: float, host: str, *, alone: bool) -> float:
        """Note that a process of the host failed; return for how many seconds the host is excluded now, or 0.

        alone: no other host could do its work, so it is not excluded.
        """
        self._failures[host] = self._failures.get(host, 0) + 1
        if self._failures[host] < FAILURES_MAX or alone:
            return 0.0
        del self._failures[host]
        return self.exclude(now, host, EXCLUDED_SECONDS)

    def unreachable(self, now: float, host: str) -> float:
        """Note that nothing could be started on the host; return for how many seconds it is excluded."""
        if self._until.get(host, 0.0) > now:
            return self._until[host] - now  # reported by another slot already
        count = self._unreachable.get(host, 0)
        self._unreachable[host] = count + 1
        return self.exclude(now, host, min(UNREACHABLE_MIN_SECONDS * 2.0 ** min(count, 10), EXCLUDED_SECONDS))

    def exclude(self, now: float, host: str, seconds: float) -> float:
        """Exclude the host for at least this time; returns `seconds`."""
        self._until[host] = max(self._until.get(host, 0.0), now + seconds)
        return seconds

    def clear(self, hosts: Iterable[str]) -> None:
        """Forget the failures of these hosts, because their processes have succeeded."""
        for host in hosts:
            self._failures.pop(host, None)
            self._unreachable.pop(host, None)

    def excluded(self, now: float) -> frozenset[str]:
        """Return the hosts excluded now."""
        self._until = {host: until for host, until in self._until.items() if until > now}
        return frozenset(self._until)

    def next_due(self) -> float | None:
        """Return the time at which the first exclusion ends, or None."""
        return min(self._until.values(), default=None)
