"""Incidents of a job, from its events in order: what was lost, how soon a ring was there again. Pure.

    fold = IncidentFold()
    for one in events:
        fold.take(one)
    fold.incidents  # oldest first

Shown by the dashboard as a strip. Events alone are read, so that this is cheap while a job runs. They do not
tell what an incident cost, since the step in flight is run again, too: that is measured between commits, by
the master's `CommitGaps` and by `elastane report`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

from elastane_proto.history import events as e
from elastane_proto.history.events import HistoryEvent
from elastane_proto.history.fold import ENDS, DatedEvent, RingFold

Kind = Literal["lost", "evicted", "master", "rewound", "task", "checkpoint", "state"]

TOGETHER_SECONDS: Final = 1.0
"""Workers of one ring that are lost within this time are one incident: usually their host is gone."""

_OF_JOB: Final[dict[type[HistoryEvent], Kind]] = {
    e.MasterRecovered: "master",
    e.HistoryRewound: "rewound",
    e.HistoryForgotten: "rewound",
    e.UnitsLost: "rewound",
    e.StoreBehind: "rewound",
    e.StateDiffers: "state",
}


@dataclass(eq=False)
class Incident:
    """Something that was not planned.

    at: seconds since the Unix epoch. sequence: number of its event. workers: those that were lost, all at
    once; empty for the other kinds. generation: of the ring they were in; None: they were in none, so that
    the training did not stop. size: number of members of that ring.
    formed_seconds: from the loss until a ring was formed again; None: as yet none, or the job stopped.
    replaced_seconds: until one of the same size was.
    """

    kind: Kind
    at: float
    sequence: int
    reason: str
    workers: list[str] = field(default_factory=list)
    generation: int | None = None
    size: int = 0
    formed_seconds: float | None = None
    replaced_seconds: float | None = None


@dataclass(eq=False)
class IncidentFold:
    """Consumes events in order. waits: incidents after which no ring trains yet."""

    incidents: list[Incident] = field(default_factory=list)
    waits: list[Incident] = field(default_factory=list)
    _short: list[Incident] = field(default_factory=list)
    _rings: RingFold = field(default_factory=RingFold)

    def take(self, dated: DatedEvent) -> None:
        """Process the next event."""
        event = dated.event
        if isinstance(event, (e.WorkerLost, e.WorkerEvicted)):
            self._lost(dated, "lost" if isinstance(event, e.WorkerLost) else "evicted")
        elif (kind := _kind(event)) is not None:
            self.incidents.append(Incident(kind, dated.time, dated.sequence, dated.reason))
        self._rings.take(dated)
        if isinstance(event, e.RingFormed):
            self._formed(dated.time)
        elif isinstance(event, ENDS):
            self.waits, self._short = [], []

    def _lost(self, dated: DatedEvent, kind: Kind) -> None:
        ring = self._rings.ring
        hit = ring is not None and (dated.worker in ring.members or not ring.whole)
        generation = ring.generation if ring is not None and hit else None
        last = self.incidents[-1] if self.incidents else None
        if (
            last is not None
            and last.kind == kind
            and last.generation == generation
            and dated.time - last.at <= TOGETHER_SECONDS
        ):
            last.workers.append(dated.worker)
            return
        size = len(ring.places) if ring is not None and hit else 0
        if self.waits:  # lost while the ring was being formed again: what is missing is missing since before
            size = max(size, *(one.size for one in self.waits))
        found = Incident(kind, dated.time, dated.sequence, dated.reason, [dated.worker], generation, size)
        self.incidents.append(found)
        if hit:
            self.waits.append(found)
            self._short.append(found)

    def _formed(self, at: float) -> None:
        ring = self._rings.ring
        if ring is None:
            return
        for one in self.waits:
            one.formed_seconds = at - one.at
        self.waits = []
        for one in self._short:
            if len(ring.places) >= one.size:
                one.replaced_seconds = at - one.at
        self._short = [one for one in self._short if one.replaced_seconds is None]


def _kind(event: HistoryEvent) -> Kind | None:
    """Return the kind of incident that an event of no worker's end is; None: it is none."""
    if isinstance(event, (e.TaskFailed, e.TaskTimedOut)):
        return "task" if event.parked else None
    if isinstance(event, e.CheckpointFailed):
        return None if event.again else "checkpoint"
    return _OF_JOB.get(type(event))
