"""Explains a worker's place (in the ring, standing by, out) by the events that led to it, in order. Pure.

It uses the events shown by `elastane events`, so workers that left long ago can be explained too, as far back
as events are kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from elastane_proto.history import events as history
from elastane_proto.history.events import HistoryEvent
from elastane_proto.history.fold import ENDS, DatedEvent, RingFold
from elastane_proto.history_wire import dated_event_of
from elastane_proto.v1 import job_pb2

if TYPE_CHECKING:
    from elastane_proto.v1 import ring_pb2

_OUT = (history.WorkerLost, history.WorkerEvicted, history.WorkerLeft)
_CHANGES = (
    history.RingAnnounced,
    history.RingScaled,
    history.ScalingSet,
    history.JobAutoscaled,
    history.ScaleRolledBack,
    history.StagesPlanned,
    history.UnitsAwaited,
    history.UnitsLost,
    history.JobSuspended,
    history.JobWaiting,
)
"""Events after which a job has another ring, or none, with the reasons for the numbers of workers."""
_SINCE: dict[str, tuple[type[HistoryEvent], ...]] = {
    "standby": (
        history.WorkerStandby,
        history.WorkerQuarantined,
        history.WorkerBarred,
        history.HostBarred,
        history.WorkerJoined,
        history.WorkerReturned,
        history.RingAnnounced,
        history.RingScaled,
    ),
    "draining": (history.WorkerDraining,),
    "tasks_only": (history.WorkerJoined, history.WorkerReturned),
}
"""Events that put a worker into its current place; the newest of them tells since when it is there."""
_PLACES = {
    job_pb2.WORKER_STATE_MEMBER: "member",
    job_pb2.WORKER_STATE_STANDBY: "standby",
    job_pb2.WORKER_STATE_DRAINING: "draining",
    job_pb2.WORKER_STATE_TASKS_ONLY: "tasks_only",
    job_pb2.WORKER_STATE_AWAITED: "awaited",
}


@dataclass(frozen=True, slots=True)
class Link:
    """An event of the chain. time: seconds since the Unix epoch. meaning: its effect on this worker."""

    sequence: int
    time: float
    kind: str
    generation: int
    step: int
    reason: str
    meaning: str = ""


@dataclass(frozen=True, slots=True)
class Explanation:
    """Explanation of one worker's place.

    place: "member", "standby", "draining", "tasks_only", "awaited" or "out". since: time since when, seconds
    since the Unix epoch; None if no event tells. chain: the events about the worker, oldest first. complete:
    True if the events go back to the job's beginning.
    """

    worker: str
    place: str
    sentence: str
    since: float | None
    chain: tuple[Link, ...]
    complete: bool


@dataclass(frozen=True, slots=True)
class RingChange:
    """A change of a job's ring. workers: with the ESTs that each hosts from then on, as "ESTs 0-3"."""

    sequence: int
    time: float
    generation: int
    step: int
    workers: dict[str, str]
    reason: str


def ring_changes(events: Iterable[ring_pb2.Event]) -> tuple[list[RingChange], bool]:
    """Return the changes of a job's ring, oldest first, and whether they go back to its beginning.

    Includes operators' requests and the causes of the rings' ends.
    """
    dated = [dated_event_of(event) for event in events]
    changes = [
        RingChange(
            one.sequence,
            one.time,
            one.generation,
            one.step,
            {place.worker: ranks_text(place.start, place.end) for place in one.members or ()},
            one.reason,
        )
        for one in dated
        if isinstance(one.event, _CHANGES)
    ]
    return changes, not dated or dated[0].sequence <= 1


def explain(worker: str, job: job_pb2.Job, events: Iterable[ring_pb2.Event]) -> Explanation | None:
    """Explain a worker's place; None if neither the job nor its events mention the worker."""
    dated = [dated_event_of(event) for event in events]
    info = next((one for one in job.workers if one.worker_id == worker), None)
    steps = _steps(worker, dated)
    chain = tuple(link for link, _ in steps)
    if info is None and not chain:
        return None
    complete = not dated or dated[0].sequence <= 1
    if info is None:
        last = next((link for link, event in reversed(steps) if isinstance(event, _OUT)), chain[-1])
        return Explanation(worker, "out", f"out: {last.reason}", last.time, chain, complete)
    place = _PLACES.get(info.state, "unknown")
    since = _last(steps, _SINCE.get(place, ()))
    sentence = f"{place.replace('_', ' ')}: {info.reason}" if info.reason else place.replace("_", " ")
    if place == "member":
        since = _last(steps, (history.RingAnnounced, history.RingScaled))
        ranks = ranks_text(info.ests.start, info.ests.end)
        why = f", because: {since.reason}" if since is not None else ""
        sentence = f"in the ring, hosts {ranks}{why}"
    return Explanation(worker, place, sentence, since.time if since is not None else None, chain, complete)


def known_workers(job: job_pb2.Job, events: Iterable[ring_pb2.Event]) -> list[str]:
    """Return all workers mentioned by the job or its events, sorted."""
    names = {info.worker_id for info in job.workers}
    for dated in map(dated_event_of, events):
        names |= {dated.worker} if dated.worker else set()
        names |= {place.worker for place in dated.members or ()}
    return sorted(names)


def ranks_text(start: int, end: int) -> str:
    """Format the EST range [start, end) as "EST 2", "ESTs 0-3", or "no EST"."""
    if end <= start:
        return "no EST"
    return f"EST {start}" if end == start + 1 else f"ESTs {start}-{end - 1}"


def _steps(worker: str, events: Iterable[DatedEvent]) -> list[tuple[Link, HistoryEvent]]:
    """Return the events that concern the worker: those about it, and changes of its place in the ring."""
    steps: list[tuple[Link, HistoryEvent]] = []
    place: tuple[int, int] | None = None
    fold = RingFold()
    for dated in events:
        fold.take(dated)
        ring, meaning, counts = fold.ring, "", dated.worker == worker
        # If a ring was not stored completely, an unlisted worker may still be a member.
        if dated.members is not None and ring is not None and (worker in ring.members or ring.whole):
            now = ring.members.get(worker)
            counts = counts or now != place
            if now is not None and now != place:
                came = "takes" if place is None else "now hosts"
                meaning = f"{came} {ranks_text(*now)}"
            elif now is None and place is not None:
                meaning = "is not in the ring any more"
            place = now
        elif isinstance(dated.event, ENDS) and place is not None:
            counts, place = True, None
        if counts:
            link = Link(
                dated.sequence, dated.time, dated.kind, dated.generation, dated.step, dated.reason, meaning
            )
            steps.append((link, dated.event))
    return steps


def _last(steps: Sequence[tuple[Link, HistoryEvent]], events: tuple[type[HistoryEvent], ...]) -> Link | None:
    return next((link for link, event in reversed(steps) if isinstance(event, events)), None)
