"""Formats events as lines of text, and applies filters to them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from elastane_cli.views.text import local_time, one_line
from elastane_proto.event_filter import EventFilter
from elastane_proto.folding import fold_words

if TYPE_CHECKING:
    from rich.text import Text

    from elastane_proto.v1 import ring_pb2

_ALARMING = (
    "lost",
    "died",
    "evicted",
    "failed",
    "broken",
    "rejected",
    "stuck",
    "refused",
    "unusable",
    "forgotten",
    "incomplete",
    "faulty",
    "liar",  # earlier releases' word for "faulty"
    "undecided",
)


def fold_line(run: Sequence[ring_pb2.Event]) -> Text:
    """Format a run of consecutive routine events on one line, with the number and time of the last.

    A run of one is formatted by `event_line`.
    """
    return event_line(folded_event(run))


def folded_event(run: Sequence[ring_pb2.Event]) -> ring_pb2.Event:
    """Return the event that stands for a run of consecutive routine events: the last, with the run's words.

    A run of one is its event.
    """
    from elastane_proto.history_wire import dated_event_of

    if len(run) == 1:
        return run[0]
    last = type(run[-1])()
    last.CopyFrom(run[-1])
    last.kind, last.worker_id = f"{last.kind} x{len(run)}", ""
    last.reason = fold_words([dated_event_of(event) for event in run])
    return last


def event_line(event: ring_pb2.Event) -> Text:
    """Format an event on one line.

    The line has number, local time (with the date unless today), kind, generation, step, worker and reason.
    """
    from rich.text import Text

    line = Text()
    line.append(f"{event.sequence:>5} ", style="dim")
    line.append(f"{local_time(event.time.seconds + event.time.nanos / 1e9)} ", style="cyan")
    line.append(f"{event.kind:<20} ", style="bold red" if is_alarming(event) else "bold")
    line.append(f"g{event.generation} s{event.step} ", style="dim")
    if event.worker_id:
        line.append(f"{event.worker_id}  ", style="green")
    line.append(reason_beside_worker(event))
    return one_line(line)


def is_alarming(event: ring_pb2.Event) -> bool:
    """True if the event tells of a loss or a fault, by its kind."""
    return any(word in event.kind for word in _ALARMING)


def is_wanted(event: ring_pb2.Event, wanted: EventFilter) -> bool:
    """True if the filter selects the event."""
    from elastane_proto.history_wire import dated_event_of

    return wanted.wants(dated_event_of(event))


def reason_beside_worker(event: ring_pb2.Event) -> str:
    """Return the reason without the worker's name at its start, because the line shows the name already."""
    reason, name = event.reason, event.worker_id
    if name and reason.startswith((f"{name}: ", f"{name} ")):
        return reason[len(name) :].lstrip(": ")
    return reason
