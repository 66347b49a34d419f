"""The ring over time, computed from a job's events: the ESTs that each worker hosted, and incidents. Pure.

A lane shows one worker. Its stays are the periods in the ring with one range of ESTs; there is no training in
a stay before the ring has formed. A mark is a single moment.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from elastane_master.jobs.records import StoredNote
from elastane_proto.history import events as history
from elastane_proto.history.events import HistoryEvent
from elastane_proto.history.fold import OVER, Ring, RingFold

LANES_MAX: Final = 48
STAYS_MAX: Final = 2000
MARKS_MAX: Final = 600
MEMBERS_MAX: Final = 20_000
"""Limit for all rings together: each member costs the master a few µs whenever the page is rendered."""

_MARKS: Final[dict[type[HistoryEvent], str]] = {
    history.WorkerJoined: "join",
    history.WorkerReturned: "join",
    history.WorkerLost: "death",
    history.WorkerEvicted: "death",
    history.WorkerLeft: "leave",
    history.WorkerDraining: "drain",
    history.HistoryRewound: "replay",
    history.HistoryForgotten: "replay",
    history.UnitsLost: "replay",
    history.CheckpointSaved: "checkpoint",
    history.MasterRecovered: "master",
    history.MasterStarted: "master",
    history.JobSuspended: "end",
    history.StepsUnsaved: "end",
    history.JobSucceeded: "end",
    history.JobFailed: "end",
    history.JobCancelled: "end",
}


@dataclass(frozen=True, slots=True)
class Stay:
    """A period in which a worker hosted the ESTs [first, after). Times are seconds since the Unix epoch.

    formed: time at which the ring had formed and began to train; None: it never did.
    """

    began: float
    ended: float
    first: int
    after: int
    generation: int
    formed: float | None


@dataclass(frozen=True, slots=True)
class Mark:
    """An event at one moment.

    kind: "join", "death", "leave", "drain", "replay", "checkpoint", "master" or "end". worker: empty for the
    whole ring.
    """

    at: float
    kind: str
    worker: str
    text: str


@dataclass(frozen=True, slots=True)
class Lane:
    worker: str
    stays: tuple[Stay, ...]
    marks: tuple[Mark, ...]


@dataclass(frozen=True, slots=True)
class Timeline:
    """The lanes of all workers, and the marks of the whole ring, between two times.

    checkpoints: when each was saved. left_out: number of workers not shown, those about which nothing was
    told for longest. complete: True if it goes back to the job's first event. cut: True if only the first
    members of some rings are known.
    """

    began: float
    ended: float
    lanes: tuple[Lane, ...]
    marks: tuple[Mark, ...]
    checkpoints: tuple[Mark, ...]
    left_out: int
    complete: bool
    cut: bool


def bounds(notes: Sequence[StoredNote], now: float) -> tuple[float, float]:
    """Return when a timeline begins, and its end: `now`, or, of a job that is over, that of its workers."""
    ends = [place for place, stored in enumerate(notes) if isinstance(stored.note.event, OVER)]
    if not ends:
        return notes[0].now, max(now, notes[-1].now)
    end, *after = notes[ends[-1] :]
    return notes[0].now, max(end.now, *(stored.now for stored in after if stored.note.worker), notes[0].now)


def timeline(
    notes: Sequence[StoredNote], now: float, part: tuple[float, float] | None = None
) -> Timeline | None:
    """Compute the timeline up to `now`, or to the job's end; None if there are no events.

    part: only what lies between these times.
    """
    notes = affordable(notes)
    if not notes:
        return None
    began, ended = bounds(notes, now)
    rings, marks = _rings(notes, ended)
    began, ended = part or (began, ended)
    rings = [ring for ring in rings if ring.decided <= ended and (ring.ended is None or ring.ended >= began)]
    marks = [mark for mark in marks if began <= mark.at <= ended]
    checkpoints = tuple(mark for mark in marks if mark.kind == "checkpoint")
    marks = [mark for mark in marks if mark.kind != "checkpoint"]
    stays: dict[str, list[Stay]] = {}
    for ring in rings:
        until = ring.ended if ring.ended is not None else ended
        for one in ring.places:
            stay = Stay(ring.decided, until, one.start, one.end, ring.generation, ring.formed)
            stays.setdefault(one.worker, []).append(stay)
    told: dict[str, float] = {}
    came: dict[str, float] = {}
    for mark in marks:
        if mark.worker:
            told[mark.worker] = mark.at
            came.setdefault(mark.worker, mark.at)
    for worker, parts in stays.items():
        told.setdefault(worker, parts[0].began)
        came[worker] = min(came.get(worker, parts[0].began), parts[0].began)
    # The workers about which something was told last are shown, in the order in which they came.
    shown = set(sorted(told, key=lambda worker: (-told[worker], worker))[:LANES_MAX])
    each = max(STAYS_MAX // max(len(shown), 1), 8)
    marked = marks[-MARKS_MAX:]
    lanes = tuple(
        Lane(
            worker,
            tuple(_joined(stays.get(worker, ()))[-each:]),
            tuple(mark for mark in marked if mark.worker == worker),
        )
        for worker in sorted(shown, key=lambda worker: (came[worker], worker))
    )
    return Timeline(
        began,
        ended,
        lanes,
        tuple(mark for mark in marked if not mark.worker),
        checkpoints,
        len(told) - len(shown),
        notes[0].sequence <= 1,
        any(not ring.whole for ring in rings),
    )


def mark_kind(event: HistoryEvent | None) -> str:
    """Return the kind of mark that an event is on the timeline; empty: it is none."""
    return _MARKS.get(type(event), "")  # type: ignore[arg-type]


def affordable(notes: Sequence[StoredNote]) -> Sequence[StoredNote]:
    """Return the newest events whose rings have at most `MEMBERS_MAX` members in total, or one ring."""
    count, first = 0, True
    for place in range(len(notes) - 1, -1, -1):
        event = notes[place].note.event
        if not isinstance(event, history.RingAnnounced):
            continue
        count += len(event.members)
        if count > MEMBERS_MAX and not first:
            return notes[place + 1 :]
        first = False
    return notes


def _rings(notes: Sequence[StoredNote], ended: float) -> tuple[list[Ring], list[Mark]]:
    """Return every ring that had members, and all marks."""
    rings: list[Ring] = []
    marks: list[Mark] = []
    fold = RingFold()
    for stored in notes:
        dated, forming = stored.dated, fold.ring is not None and fold.ring.formed is None
        if (over := fold.take(dated)) is not None:
            rings.append(over)
        ring = fold.ring
        if forming and ring is not None and ring.replays and isinstance(dated.event, history.RingFormed):
            marks.append(Mark(dated.time, "replay", "", f"step {ring.resume_step} is run again"))
        if kind := mark_kind(dated.event):
            marks.append(Mark(dated.time, kind, dated.worker if kind != "checkpoint" else "", dated.reason))
    if (last := fold.end(ended)) is not None:
        rings.append(last)
    return rings, marks


def _joined(stays: Iterable[Stay]) -> list[Stay]:
    """Merge adjacent stays with the same ESTs and no pause between them, to draw fewer shapes."""
    joined: list[Stay] = []
    for stay in stays:
        before = joined[-1] if joined else None
        if (
            before is not None
            and (before.first, before.after) == (stay.first, stay.after)
            and before.ended == stay.began
            and stay.formed == stay.began
        ):
            joined[-1] = Stay(
                before.began, stay.ended, stay.first, stay.after, stay.generation, before.formed
            )
        else:
            joined.append(stay)
    return joined
