"""When each session was last heard: finds nodes that fell silent without closing their stream.

Not part of the durable state: every message would change it, and after a restart of the master nobody
has been heard yet. The edge asks `silent` in short intervals and feeds a StreamLost for each.
"""

from __future__ import annotations


class Liveness:
    """Times in seconds, of any origin, the same for all calls."""

    __slots__ = ("_last_heard",)

    def __init__(self) -> None:
        self._last_heard: dict[tuple[str, str], float] = {}

    def heard(self, worker: str, session: str, now: float) -> None:
        """A message of the session arrived, or the session began."""
        self._last_heard[worker, session] = now

    def forget(self, worker: str, session: str) -> None:
        """The session ended."""
        self._last_heard.pop((worker, session), None)

    def last_heard(self, worker: str, session: str) -> float | None:
        """When the session was last heard; None for one that is not known."""
        return self._last_heard.get((worker, session))

    def silent(self, now: float, timeout_seconds: float) -> list[tuple[str, str]]:
        """(worker, session) not heard for more than `timeout_seconds`, longest silent first."""
        overdue = [(at, key) for key, at in self._last_heard.items() if now - at > timeout_seconds]
        return [key for _, key in sorted(overdue)]

    def next_deadline(self, timeout_seconds: float) -> float | None:
        """When the next session would count as silent; None without sessions."""
        longest_silent = min(self._last_heard.values(), default=None)
        return None if longest_silent is None else longest_silent + timeout_seconds
