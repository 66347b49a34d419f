"""Options `--kind`, `--worker` and `--since` of `elastane events` and `elastane top`: the events to show."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from elastane_proto.event_filter import EventFilter, parse_since

if TYPE_CHECKING:
    pass

KindOption = Annotated[
    list[str] | None,
    typer.Option(
        "--kind",
        "-k",
        metavar="KIND",
        help="Only events of this kind (worker_lost) or group of kinds (worker); repeatable.",
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
        help="First event to show: a number, an age (90s, 10m, 2h, 1d), or a time (2026-01-31T12:00).",
        show_default="all events kept",
    ),
]


def filter_of(kind: list[str] | None, worker: list[str] | None, since: str, now: float) -> EventFilter:
    """Build the filter from the three options. now: seconds since the Unix epoch. Raises BadParameter."""
    try:
        return EventFilter(tuple(kind or ()), tuple(worker or ()), *parse_since(since, now))
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--since") from None
