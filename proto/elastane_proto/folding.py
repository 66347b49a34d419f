"""Folding of routine events, so that a day of checkpoints takes one line between important events. Pure.

Used where people read events: `elastane events`, `elastane top` and the master's dashboard.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, TypeVar

from elastane_proto.history.events import CheckpointRequested, CheckpointSaved
from elastane_proto.history.fold import DatedEvent

ROUTINE: Final = frozenset({CheckpointRequested.kind, CheckpointSaved.kind})
"""Kinds of events that only confirm normal operation and repeat often."""

FOLDED_MIN: Final = 3
"""Shortest run that is folded. A single request and its save stay as two lines."""

Event = TypeVar("Event")


def folded(events: Iterable[Event], kind: Callable[[Event], str]) -> Iterator[tuple[Event, ...]]:
    """Yield the events in order: a run of routine events as one tuple, every other event alone."""
    run: list[Event] = []
    for event in events:
        if kind(event) in ROUTINE:
            run.append(event)
            continue
        yield from _closed(run)
        run = []
        yield (event,)
    yield from _closed(run)


def _closed(run: list[Event]) -> Iterator[tuple[Event, ...]]:
    if len(run) >= FOLDED_MIN:
        yield tuple(run)
    else:
        yield from ((event,) for event in run)


def fold_words(dated: Sequence[DatedEvent]) -> str:
    """Summarise a run of routine events: "17 checkpoints saved, of steps 10 to 170"."""
    steps = [one.event.at_step for one in dated if isinstance(one.event, CheckpointSaved)]
    if not steps:
        return f"{len(dated)} checkpoints were asked for, none is saved yet"
    if len(steps) == 1:
        return f"1 checkpoint saved, of step {steps[0]}"
    return f"{len(steps)} checkpoints saved, of steps {steps[0]} to {steps[-1]}"
