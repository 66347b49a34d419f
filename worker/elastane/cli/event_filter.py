"""Which events are wanted: what `--kind`, `--worker` and `--since` of `elastane events` say. Pure."""

from __future__ import annotations

import datetime
import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final

import typer

if TYPE_CHECKING:
    from elastane_proto.v1 import ring_pb2

_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)(s|m|h|d)")
_SECONDS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


KindOption = Annotated[
    list[str] | None,
    typer.Option(
        "--kind", "-k", metavar="KIND", help="Only events worker_lost, or all of worker; repeatable."
    ),
]
WorkerOption = Annotated[
    list[str] | None,
    typer.Option("--worker", "-w", metavar="ID", help="Only events of this worker; repeatable."),
]
SinceOption = Annotated[
    str,
    typer.Option(
        "--since",
        metavar="WHEN",
        help="First event wanted: a number, a time ago (90s, 10m, 2h, 1d), or a time (2026-01-31T12:00).",
        show_default="all that are kept",
    ),
]


@dataclass(frozen=True, slots=True)
class EventFilter:
    """kinds: "worker_lost", or "worker" for every kind that begins with "worker_"; none: all. workers: by id.

    sequence: the first number wanted. since: the earliest time, seconds since the Unix epoch.
    """

    kinds: tuple[str, ...] = ()
    workers: tuple[str, ...] = ()
    sequence: int = 0
    since: float = 0.0

    def wants(self, event: ring_pb2.Event) -> bool:
        """Whether the event is to be shown. A change of the ring is of all the workers it names."""
        if event.sequence < self.sequence or event.time.ToNanoseconds() / 1e9 < self.since:
            return False
        if self.kinds and not any(
            event.kind == kind or event.kind.startswith(f"{kind}_") for kind in self.kinds
        ):
            return False
        return not self.workers or event.worker_id in self.workers or _names(event, self.workers)


EVERYTHING: Final = EventFilter()


def filter_of(kind: list[str] | None, worker: list[str] | None, since: str, now: float) -> EventFilter:
    """What the three options say; now: seconds since the Unix epoch. Raises BadParameter."""
    return EventFilter(tuple(kind or ()), tuple(worker or ()), *parse_since(since, now))


def parse_since(text: str, now: float) -> tuple[int, float]:
    """A sequence number and a time (seconds since the Unix epoch) out of "42", "10m", "2026-01-31T12:00".

    Raises BadParameter.
    """
    if text.isascii() and text.isdigit():
        return int(text), 0.0
    if found := _DURATION.fullmatch(text):
        return 0, now - float(found[1]) * _SECONDS[found[2]]
    try:
        return 0, datetime.datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        raise typer.BadParameter(
            f"{text!r} is no number of an event, no time ago like 90s, 10m, 2h or 1d, and no time like"
            " 2026-01-31T12:00",
            param_hint="--since",
        ) from None


def _names(event: ring_pb2.Event, workers: Collection[str]) -> bool:
    from elastane.explain import members_of

    members = members_of(event)
    return members is not None and not members.keys().isdisjoint(workers)
