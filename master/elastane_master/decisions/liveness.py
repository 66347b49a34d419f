"""Time of each session's last message: detects nodes that fell silent without closing their stream.

Not part of the durable state: every message would change it, and after a restart of the master nobody has
been heard yet. The caller polls `silent` at short intervals and submits a StreamLost for each result. A
worker that is heard but does not go on with its step is found by `deadlines`.
"""

from __future__ import annotations


class Liveness:
    """Last message per session. Times in seconds, of any origin, the same for all calls."""

    __slots__ = ("_last_heard",)

    def __init__(self) -> None:
        self._last_heard: dict[tuple[str, str], float] = {}

    def heard(self, worker: str, session: str, now: float) -> None:
        """Record a message of the session, or its beginning."""
        self._last_heard[worker, session] = now

    def forget(self, worker: str, session: str) -> None:
        """Forget a session that ended."""
        self._last_heard.pop((worker, session), None)

    def last_heard(self, worker: str, session: str) -> float | None:
        """Time of the session's last message; None for an unknown session."""
        return self._last_heard.get((worker, session))

    def silent(self, now: float, timeout_seconds: float) -> list[tuple[str, str]]:
        """Return (worker, session) not heard for more than `timeout_seconds`, longest silent first."""
        overdue = [(at, key) for key, at in self._last_heard.items() if now - at > timeout_seconds]
        return [key for _, key in sorted(overdue)]

    def next_deadline(self, timeout_seconds: float) -> float | None:
        """Time at which the next session will count as silent; None without sessions."""
        longest_silent = min(self._last_heard.values(), default=None)
        return None if longest_silent is None else longest_silent + timeout_seconds
