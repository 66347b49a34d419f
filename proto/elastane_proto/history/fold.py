"""The ring over time, from events in order: its members, since when, and why it changed. Pure.

The one way in which metrics, spans, the timeline, `explain` and `report` read changes of the ring:

    fold = RingFold()
    for one in events:  # `DatedEvent.of(...)` of the master's notes or of the API's messages
        if (ended := fold.take(one)) is not None: ...

A ring begins when it is decided (RingAnnounced), trains once it is formed (RingFormed), and ends when the
next one is decided or the job stops.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, Literal

from elastane_proto.history import events as e
from elastane_proto.history.events import HistoryEvent, Place

Cause = Literal["start", "join", "drain", "scale", "loss", "eviction", "other"]
CAUSES: Final[tuple[Cause, ...]] = ("start", "join", "drain", "scale", "loss", "eviction", "other")

#: Causes in order of precedence: the first that occurred since the last change caused the next one.
_PLANNED: Final[tuple[Cause, ...]] = ("drain", "scale", "join")
_UNPLANNED: Final[tuple[Cause, ...]] = ("eviction", "loss", "drain", "join")
_MARKS: Final[dict[type[HistoryEvent], Cause]] = {
    e.WorkerJoined: "join",
    e.WorkerReturned: "join",
    e.WorkerReleased: "join",
    e.WorkerDraining: "drain",
    e.WorkerLeft: "drain",
    e.WorkerLost: "loss",
    e.WorkerEvicted: "eviction",
    e.RingScaled: "scale",
    e.ScalingSet: "scale",
    e.JobAutoscaled: "scale",
    e.ScaleRolledBack: "scale",
}

#: The job is over.
OVER: Final = (e.JobSucceeded, e.JobFailed, e.JobCancelled)
#: Events that end a ring, besides the next ring.
ENDS: Final = (*OVER, e.JobSuspended, e.StepsUnsaved)


@dataclass(frozen=True, slots=True)
class DatedEvent:
    """An event with its time (seconds since the Unix epoch) and its text.

    worker: the one it is about. kind, reason: as written by any release.
    """

    sequence: int
    time: float
    kind: str
    worker: str
    reason: str
    generation: int
    step: int
    event: HistoryEvent

    @property
    def members(self) -> tuple[Place, ...] | None:
        """Members of the ring that the event forms; None for other events."""
        return self.event.members if isinstance(self.event, e.RingAnnounced) else None


@dataclass(eq=False)
class Ring:
    """A ring that was decided. Times are seconds since the Unix epoch.

    whole: all members are known. replays: a step was dropped for it and is done again. formed, resume_step:
    when it began to train, and from which step; None: it has not. marks: times since the previous change at
    which each worker joined or was first known to leave ("": the job was scaled).
    """

    generation: int
    decided: float
    reason: str
    places: tuple[Place, ...]
    whole: bool
    planned: bool
    replays: bool
    cause: Cause
    marks: dict[str, tuple[Cause, float]]
    formed: float | None = None
    resume_step: int | None = None
    ended: float | None = None

    @cached_property
    def members(self) -> dict[str, tuple[int, int]]:
        """Virtual ranks [start, end) by worker."""
        return {place.worker: (place.start, place.end) for place in self.places}


@dataclass(eq=False)
class RingFold:
    """Consumes events in order. trained: a ring had trained before the first of them.

    ring: the one decided last, also one without members; None before the first, and once the job stopped.
    """

    trained: bool = False
    ring: Ring | None = None
    _causes: set[Cause] = field(default_factory=set)
    _marks: dict[str, tuple[Cause, float]] = field(default_factory=dict)

    def take(self, dated: DatedEvent) -> Ring | None:
        """Process the next event. Returns the ring that ended with it, if one with members did."""
        event = dated.event
        if isinstance(event, e.RingAnnounced):
            return self._announced(event, dated)
        if isinstance(event, e.RingFormed):
            self._formed(event, dated)
        elif isinstance(event, ENDS):
            return self.end(dated.time)
        elif isinstance(event, e.WorkerStandby):
            self._marks.pop(dated.worker, None)
        elif (mark := _MARKS.get(type(event))) is not None:
            self._causes.add(mark)
            # The departure of a drained worker began when it was asked to drain.
            known = self._marks.get(dated.worker)
            if known is None or known[0] != mark or mark == "scale":
                self._marks[dated.worker] = (mark, dated.time)
        return None

    def end(self, at: float) -> Ring | None:
        """End the fold: nothing is known after `at`. Returns the current ring, if it has members."""
        ring, self.ring = self.ring, None
        if ring is None or not ring.places:
            return None
        ring.ended = at
        return ring

    def _announced(self, event: e.RingAnnounced, dated: DatedEvent) -> Ring | None:
        before = self.end(dated.time)
        replays = self.trained and not event.planned
        self.ring = Ring(
            dated.generation,
            dated.time,
            dated.reason,
            event.members,
            event.whole,
            event.planned,
            replays,
            self._cause(event),
            self._marks,
        )
        self._causes, self._marks = set(), {}
        return before

    def _cause(self, event: e.RingAnnounced) -> Cause:
        if not self.trained:
            return "start"
        order = _PLANNED if event.planned else _UNPLANNED
        return next((one for one in order if one in self._causes), "other")

    def _formed(self, event: e.RingFormed, dated: DatedEvent) -> None:
        self.trained = True
        if self.ring is not None and self.ring.formed is None:
            self.ring.formed, self.ring.resume_step = dated.time, event.resume_step
