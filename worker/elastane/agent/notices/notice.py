"""A notice that this node is to be taken away."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final, Literal

from elastane.errors import ElastaneError

Kind = Literal["reclaim", "rebalance"]

LEFT_MIN_SECONDS: Final = 5.0
"""Leaving takes about a step. Who gave up sooner than the node goes would lose that step for nothing, so a
time that is past (a clock that is ahead, an agent that came late) still leaves so much."""


class NoticeFormatError(ElastaneError):
    """A source answered, but not as documented: nothing may be concluded from it."""


@dataclass(frozen=True)
class Notice:
    """What a source said.

    kind: "reclaim", the node goes; "rebalance", it is more likely than before to go, nothing is sure yet.
    source: name of the source, "aws". reason: one line for people. at: seconds since the epoch at which
    the node goes; None: the source does not say, `lead_seconds` after the notice at the latest. told_at: the
    source's own clock when it said so; None: it did not tell.
    """

    kind: Kind
    source: str
    reason: str
    at: float | None = None
    lead_seconds: float = 30.0
    told_at: float | None = None

    def seconds_left(self, now: float) -> float:
        """From when the notice was read until the node goes, at least LEFT_MIN_SECONDS.

        now: seconds since the epoch by this node's clock, used where the source's is not known: both times of
        one notice should come from one clock.
        """
        if self.at is None:
            return max(self.lead_seconds, LEFT_MIN_SECONDS)
        return max(self.at - (now if self.told_at is None else self.told_at), LEFT_MIN_SECONDS)


def parse_time(text: str, source: str) -> float:
    """Seconds since the epoch of "2026-11-21T08:22:00Z" or "Sat, 21 Nov 2026 08:22:00 GMT".

    A time without a zone is UTC. Raises NoticeFormatError.
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
