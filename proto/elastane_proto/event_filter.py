"""Event filters of `elastane events`, `elastane top` and the dashboard. Pure."""

from __future__ import annotations

import datetime
import re
from dataclasses import dataclass
from typing import Final

from elastane_proto.history.fold import DatedEvent

_DURATION: Final = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)(s|m|h|d)")
_SECONDS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_DIGITS_MAX: Final = 18


@dataclass(frozen=True, slots=True)
class EventFilter:
    """Criteria that an event must meet; empty fields match every event.

    kinds: "worker_lost", or "worker" for every kind that begins with "worker_". workers: worker ids.
    sequence: lowest event number. since: earliest time, in seconds since the Unix epoch. text: words in the
    kind, the worker or the reason, in any case of letters.
    """

    kinds: tuple[str, ...] = ()
    workers: tuple[str, ...] = ()
    sequence: int = 0
    since: float = 0.0
    text: str = ""

    def wants(self, dated: DatedEvent) -> bool:
        """True if an event passes. One that forms a ring belongs to all its members."""
        if dated.sequence < self.sequence or dated.time < self.since:
            return False
        if self.kinds and not any(
            dated.kind == one or dated.kind.startswith(f"{one}_") for one in self.kinds
        ):
            return False
        if self.text and not self._says(dated):
            return False
        if not self.workers or dated.worker in self.workers:
            return True
        return any(place.worker in self.workers for place in dated.members or ())

    def _says(self, dated: DatedEvent) -> bool:
        wanted = self.text.casefold()
        words = (dated.kind, dated.kind.replace("_", " "), dated.worker, dated.reason)
        return any(wanted in one.casefold() for one in words)


EVERYTHING: Final = EventFilter()


def parse_since(text: str, now: float) -> tuple[int, float]:
    """Parse "42", "10m" or "2026-01-31T12:00" into (sequence number, seconds since the Unix epoch).

    Raises ValueError with a message for users.
    """
    if text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX:
        return int(text), 0.0
    if found := _DURATION.fullmatch(text):
        return 0, now - float(found[1]) * _SECONDS[found[2]]
    try:
        return 0, datetime.datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        raise ValueError(
            f"{text[:40]!r} is no number of an event, no time ago like 90s, 10m, 2h or 1d, and no time like"
            " 2026-01-31T12:00"
        ) from None
