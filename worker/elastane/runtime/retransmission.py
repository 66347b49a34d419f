"""Messages of a worker that its stream to the master may lose, kept until they are answered or void. Pure.

A member whose stream broke repeats what the master may not have received (`repeated`). A master whose store
has lost its newest writes asks for the step reports again (`reports_since`), also of earlier rings: they are
kept as long as the history of the weights is the same, within `KEPT_BYTES_MAX`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from elastane_proto.v1 import ring_pb2

KEPT_BYTES_MAX = 32 * 2**20
"""Limit of the newest reports kept for a master whose store has lost them: seconds of the fastest
training, minutes of most."""


@dataclass
class RetransmitBuffer:
    """Unanswered messages of one worker, and the step reports of the current history."""

    step_report: ring_pb2.AttendRequest | None = None
    check_report: ring_pb2.AttendRequest | None = None
    interval_report: ring_pb2.AttendRequest | None = None
    loaded: ring_pb2.AttendRequest | None = None
    broken: ring_pb2.AttendRequest | None = None
    ended: ring_pb2.AttendRequest | None = None
    #: Shards and manifest of the newest checkpoint.
    _saved: list[ring_pb2.AttendRequest] = field(default_factory=list)
    #: Reports of this history, oldest first.
    _kept: deque[ring_pb2.AttendRequest] = field(default_factory=deque)
    _kept_bytes: int = 0

    def add_step_report(self, message: ring_pb2.StepReport) -> ring_pb2.AttendRequest:
        """Keep the newest step report; returns the request to send."""
        self.step_report = ring_pb2.AttendRequest(step_report=message)
        self._kept.append(self.step_report)
        self._kept_bytes += message.ByteSize()
        # The newest report is always kept: it may be the one in flight.
        while self._kept_bytes > KEPT_BYTES_MAX and len(self._kept) > 1:
            self._kept_bytes -= self._kept.popleft().step_report.ByteSize()
        return self.step_report

    def add_saved(self, message: ring_pb2.Saved) -> ring_pb2.AttendRequest:
        """Keep a written shard or manifest until the next checkpoint; returns the request to send."""
        request = ring_pb2.AttendRequest(saved=message)
        same = [kept for kept in self._saved if kept.saved.checkpoint == message.checkpoint]
        self._saved = [*same, request]
        return request

    def reports_since(self, step: int) -> list[ring_pb2.AttendRequest]:
        """Return the kept reports of this and later steps, oldest first."""
        return [kept for kept in self._kept if kept.step_report.step >= step]

    def repeated(
        self, reports: list[ring_pb2.AttendRequest], ready: ring_pb2.AttendRequest | None
    ) -> list[ring_pb2.AttendRequest]:
        """Return all that a resumed stream repeats.

        reports: those that the master asks for again. ready: the answer to a change of the ring, in whose
        place no report is due.
        """
        again = list(reports)
        if ready is not None:
            again.append(self.loaded or ready)
        elif self.step_report is not None and self.step_report not in reports[-1:]:
            again.append(self.step_report)
        elif self.interval_report is not None:
            again.append(self.interval_report)
        elif self.ended is not None:
            again.append(self.ended)
        again.extend(request for request in (self.check_report, self.broken) if request is not None)
        again.extend(self._saved)
        return again

    def drop_positions(self) -> bool:
        """Drop kept reports with positions of generators, which this master does not read.

        True if the report in flight has them.
        """
        self._keep(kept for kept in self._kept if not _has_positions(kept))
        return self.step_report is not None and _has_positions(self.step_report)

    def take_history(self, step: int, *, is_same: bool) -> None:
        """Adopt the history of the weights, which are at `step`: drop reports of others and later ones."""
        kept = self._kept if is_same else ()
        self._keep(request for request in kept if request.step_report.step < step)

    def step_applied(self) -> None:
        """Forget the reports of a step that is applied for good: Prepared has answered them."""
        self.step_report = self.check_report = None

    def change_ring(self) -> None:
        """Forget what concerned the ring that ends."""
        self.loaded = self.broken = None

    def enter(self) -> None:
        """Forget all that was not answered before this worker entered a ring, but for what is saved."""
        self.step_report = self.interval_report = self.check_report = None
        self.loaded = self.broken = self.ended = None

    def leave(self) -> None:
        """Forget all that was not answered: this worker is no member any more."""
        self.enter()
        self._saved.clear()

    def _keep(self, requests: Iterable[ring_pb2.AttendRequest]) -> None:
        self._kept = deque(requests)
        self._kept_bytes = sum(request.step_report.ByteSize() for request in self._kept)


def _has_positions(report: ring_pb2.AttendRequest) -> bool:
    """True if a step report has contexts with positions of generators."""
    return any(context.positions for context in report.step_report.contexts)
