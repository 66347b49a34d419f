"""Spans of a ring change that this worker adds to the master's trace; pure but for the given clock.

Prepare and Go carry the parent of the spans. Every span has the names of the job and the worker, and the
change's generation:

    stop                    from Prepare until Ready: the collective is aborted, or the step applied first
    load                    as the leader of a ring that nobody held state for
    form ring               the group of the generation
    send state, receive state   the hand-over, with its bytes
    first step, replay      the first step of the new ring, from its first batch until it is applied
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from elastane_proto.v1 import ring_pb2

GENERATIONS_KEPT = 16


class SpanSink(Protocol):
    """Receiver of finished spans (`elastane_proto.tracing.Tracer`)."""

    def emit(
        self,
        name: str,
        *,
        begin_ns: int,
        end_ns: int,
        parent: str,
        attributes: Mapping[str, str | bool | int | float],
    ) -> None: ...

    def close(self) -> None: ...


class ChangeSpans:
    """Spans of one worker. Called by session threads under the lock of `WorkerSession`, and by the script's
    thread.

    clock: nanoseconds since the Unix epoch. Without a sink every method returns at once.
    """

    def __init__(self, job: str, worker: str, clock: Callable[[], int]) -> None:
        self._named = {"elastane.job": job, "elastane.worker": worker}
        self._clock = clock
        self._sink: SpanSink | None = None
        self._parents: dict[int, str] = {}
        self._stopping: dict[int, int] = {}
        self._entered = 0

    def open(self, sink: SpanSink | None) -> None:
        """Send spans to `sink` from now on."""
        self._sink = sink

    def close(self) -> None:
        """Flush the remaining spans and record no more; waits only briefly for the receiver."""
        sink, self._sink = self._sink, None
        if sink is not None:
            sink.close()

    def heard(self, message: ring_pb2.AttendResponse, *, in_ring: bool) -> None:
        """Note a message from the master. in_ring: this worker trains and will have to stop for a change."""
        if self._sink is None:
            return
        kind = message.WhichOneof("message")
        change: ring_pb2.Prepare | ring_pb2.Go
        if kind == "prepare":
            change = message.prepare
        elif kind == "prepared" and message.prepared.HasField("then_prepare"):
            change = message.prepared.then_prepare
        elif kind == "go":
            change = message.go
        else:
            return
        if kind != "go" and in_ring and change.traceparent:
            self._stopping.setdefault(change.generation, self._clock())
        if change.traceparent:
            self._parents[change.generation] = change.traceparent
        for known in (self._parents, self._stopping):
            while len(known) > GENERATIONS_KEPT:
                del known[next(iter(known))]

    def said(self, messages: Iterable[ring_pb2.AttendRequest]) -> None:
        """Note messages sent to the master: Ready marks the end of the stop."""
        if not self._stopping:
            return
        for message in messages:
            if message.WhichOneof("message") == "ready":
                generation = message.ready.generation
                began = self._stopping.pop(generation, None)
                if began is not None:
                    step = message.ready.applied_step
                    self._emit("stop", generation, began, {"elastane.step": step})

    def loaded(self, generation: int, seconds: float, *, step: int, checkpoint: str) -> None:
        """Record that the leader loaded a checkpoint, or kept what the script built."""
        self._done("load", generation, seconds, {"elastane.step": step, "elastane.checkpoint": checkpoint})

    def formed(self, generation: int, seconds: float, *, workers: int) -> None:
        """Record that the generation's process group is formed."""
        self._done("form ring", generation, seconds, {"elastane.ring.workers": workers})

    def handed_over(
        self, direction: str, generation: int, seconds: float, *, size_bytes: int, donors: int, receivers: int
    ) -> None:
        """Record a hand-over of state. direction: "send" or "receive"."""
        span_attributes = {"elastane.handover.bytes": size_bytes}
        span_attributes |= {"elastane.handover.donors": donors, "elastane.handover.receivers": receivers}
        self._done(f"{direction} state", generation, seconds, span_attributes)

    def entered(self, generation: int) -> None:
        """Note that this worker trains in the ring: the next step it applies is the ring's first."""
        if self._sink is not None:
            self._entered = generation

    def applied(self, step: int, seconds: float, *, replayed: bool) -> None:
        """Record the first step applied in a ring.

        seconds: since it began; replayed: it had been run before.
        """
        if not self._entered:
            return
        generation, self._entered = self._entered, 0
        name = "replay" if replayed else "first step"
        self._done(name, generation, seconds, {"elastane.step": step, "elastane.step.replayed": replayed})

    def _done(
        self, name: str, generation: int, seconds: float, attributes: Mapping[str, str | bool | int | float]
    ) -> None:
        if self._sink is not None:
            self._emit(name, generation, self._clock() - int(seconds * 1e9), attributes)

    def _emit(
        self, name: str, generation: int, began: int, attributes: Mapping[str, str | bool | int | float]
    ) -> None:
        sink, parent = self._sink, self._parents.get(generation)
        if sink is not None and parent is not None:
            span_attributes = {**self._named, "elastane.ring.generation": generation, **attributes}
            sink.emit(name, begin_ns=began, end_ns=self._clock(), parent=parent, attributes=span_attributes)
