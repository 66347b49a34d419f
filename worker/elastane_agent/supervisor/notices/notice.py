"""The notice that this node is to be taken away."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final, Literal

from elastane_common.errors import ElastaneError

Kind = Literal["reclaim", "rebalance"]

LEFT_MIN_SECONDS: Final = 5.0
"""Least time to leave, as draining takes about a step: applies even if the announced time is past, because a
clock may be wrong, and a worker that gives up before the node is gone loses that step for nothing."""


class NoticeFormatError(ElastaneError):
    """A source's answer is not in its documented form, so nothing can be concluded from it."""

    code = "ELA407"


@dataclass(frozen=True)
class Notice:
    """The notice of a source.

    kind: "reclaim": the node will be taken away; "rebalance": that has become more likely. source: name of
    the source, such as "aws". reason: one line for people. at: when the node is taken away, in seconds since
    the epoch; None: unknown, assume `lead_seconds` after the notice. notified_at: time of the notice by the
    source's own clock; None: unknown.
    """

    kind: Kind
    source: str
    reason: str
    at: float | None = None
    lead_seconds: float = 30.0
    notified_at: float | None = None

    def seconds_left(self, now: float) -> float:
        """Return the seconds from reading the notice until the node is taken away, at least LEFT_MIN_SECONDS.

        now: this node's time in seconds since the epoch, used only if `notified_at` is unknown: the
        difference should be between two times of the same clock.
        """
        if self.at is None:
            return max(self.lead_seconds, LEFT_MIN_SECONDS)
        return max(self.at - (now if self.notified_at is None else self.notified_at), LEFT_MIN_SECONDS)


def parse_time(text: str, source: str) -> float:
    """Parse "2026-11-21T08:22:00Z" or "Sat, 21 Nov 2026 08:22:00 GMT" into seconds since the epoch.

    A time without a zone is UTC. source: for the error. Raises NoticeFormatError.
    """
    text = text.strip()
    try:
        if text[:1].isdigit():
            moment = datetime.fromisoformat(text)
        else:
            moment = parsedate_to_datetime(text)
        return (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        raise NoticeFormatError(f"{source}: not a time: {text[:80]!r}", source=source) from None
