"""Executes the span operations of `ring_spans`, and provides the parent of workers' spans."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from elastane_master.decisions.effects import Effect
from elastane_master.decisions.events import AnyEvent
from elastane_master.decisions.state import JobState
from elastane_master.jobs.ring_spans import Begin, Covers, End, Event, Key, Operation, RingSpans
from elastane_proto.history.fold import Cause
from elastane_proto.tracing import OpenSpan, Tracer, now_ns

GENERATIONS_KEPT = 16
"""Messages of older ones are not sent any more."""


class RingTracing:
    """Tracing of one job's ring changes. Used from one event loop."""

    def __init__(self, job: str, state: JobState, tracer: Tracer) -> None:
        self._tracer = tracer
        self._spans = RingSpans(job, state)
        self._open: dict[Key, OpenSpan] = {}
        self._sent: dict[int, str] = {}

    def decided(
        self, event: AnyEvent, effects: Iterable[Effect], state: JobState, cause: Cause
    ) -> partial[None] | None:
        """Return the action due once the decision is durable, before its messages are sent; None: no action.

        Uses the wall clock, because the clock of decisions stops while the store is unreachable.
        """
        operations = self._spans.decided(event, effects, state, cause, now_ns() / 1e9)
        return partial(self._perform, operations) if operations else None

    def stopped(self, outcome: str) -> None:
        """End open spans with `outcome`: this master no longer serves the job."""
        self._perform(self._spans.stopped(outcome, now_ns() / 1e9))

    def traceparent(self, generation: int) -> str:
        """Return the parent of workers' spans for this generation's change; empty: not traced."""
        return self._sent.get(generation, "")

    def _perform(self, operations: Iterable[Operation]) -> None:
        # A span whose decision never became durable does not exist when its end comes.
        for operation in operations:
            span = self._open.get(operation.key)
            match operation:
                case Begin(key, parent, at, attributes):
                    above = self._open.get(parent) if parent is not None else None
                    self._open[key] = self._tracer.begin(
                        key[1],
                        at_ns=_ns(at),
                        parent=above.traceparent if above is not None else "",
                        attributes=attributes,
                    )
                case Covers(_, generation) if span is not None:
                    self._sent[generation] = span.traceparent
                    while len(self._sent) > GENERATIONS_KEPT:
                        del self._sent[next(iter(self._sent))]
                case Event(_, name, at, attributes) if span is not None:
                    span.event(name, _ns(at), attributes)
                case End(key, at, attributes) if span is not None:
                    del self._open[key]
                    span.end(_ns(at), attributes)


def _ns(seconds: float) -> int:
    return int(seconds * 1e9)
