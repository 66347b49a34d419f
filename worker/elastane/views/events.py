"""Events as lines, and which of them a filter selects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from elastane.views.text import local_time, one_line
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
    "faulty",
    "liar",  # the same in events of before
    "undecided",
)


def fold_line(run: Sequence[ring_pb2.Event]) -> Text:
    """Routine events that follow each other on the line of their last; one event as it is."""
    from elastane_proto.history_wire import told_of

    if len(run) == 1:
        return event_line(run[0])
    last = type(run[-1])()
    last.CopyFrom(run[-1])
    last.kind, last.worker_id = f"{last.kind} x{len(run)}", ""
    last.reason = fold_words([told_of(event) for event in run])
    return event_line(last)


def event_line(event: ring_pb2.Event) -> Text:
    """One event on one line: number, local time, kind, generation and step, worker, reason.

    Of an event of another day the date too.
    """
    from rich.text import Text

    alarming = any(word in event.kind for word in _ALARMING)
    line = Text()
    line.append(f"{event.sequence:>5} ", style="dim")
    line.append(f"{local_time(event.time.seconds + event.time.nanos / 1e9)} ", style="cyan")
    line.append(f"{event.kind:<20} ", style="bold red" if alarming else "bold")
    line.append(f"g{event.generation} s{event.step} ", style="dim")
    if event.worker_id:
        line.append(f"{event.worker_id}  ", style="green")
    line.append(_beside_its_worker(event))
    return one_line(line)


def is_wanted(event: ring_pb2.Event, wanted: EventFilter) -> bool:
    """True if the filter selects the event."""
    from elastane_proto.history_wire import told_of

    return wanted.wants(told_of(event))


def _beside_its_worker(event: ring_pb2.Event) -> str:
    """The reason without the worker's name at its beginning, which stands before it anyway."""
    reason, name = event.reason, event.worker_id
    if name and reason.startswith((f"{name}: ", f"{name} ")):
        return reason[len(name) :].lstrip(": ")
    return reason
