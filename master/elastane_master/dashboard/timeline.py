"""The ring over time, out of a job's events: who hosted which ESTs when, and what happened to whom. Pure.

A lane is a worker. Its stays are the times it was in the ring with one range of ESTs; the first part of a
stay, until the ring was formed, trained nothing. Marks are single moments.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from elastane_master.records import StoredNote

LANES_MAX: Final = 48
STAYS_MAX: Final = 2000
MARKS_MAX: Final = 600
MEMBERS_MAX: Final = 20_000
"""Of all rings together. Reading a member takes some 5 µs, in which the master does nothing else."""

_MEMBER = re.compile(r"([^\s,\[\]]+)\[(\d+):(\d+)\]")
#: The master keeps no more of a long fact.
_CUT = re.compile(r"\.\.\. \(\d+ more characters\)\Z")
_ENDS = frozenset({"job_suspended", "job_succeeded", "job_failed", "job_cancelled"})
_OVER = frozenset({"job_succeeded", "job_failed", "job_cancelled"})
_MARKS: Final = {
    "worker_joined": "join",
    "worker_lost": "death",
    "worker_evicted": "death",
    "worker_left": "leave",
    "worker_draining": "drain",
    "history_rewound": "replay",
    "history_forgotten": "replay",
    "checkpoint_saved": "checkpoint",
    "master_recovered": "master",
    "master_started": "master",
    "job_suspended": "end",
    "job_succeeded": "end",
    "job_failed": "end",
    "job_cancelled": "end",
}


@dataclass(frozen=True, slots=True)
class Stay:
    """Times in seconds since the Unix epoch; ESTs [first, after). formed: from when on the ring trained."""

    began: float
    ended: float
    first: int
    after: int
    generation: int
    formed: float | None


@dataclass(frozen=True, slots=True)
class Mark:
    """kind: join, death, leave, drain, replay, checkpoint, master, end. worker: empty for the whole ring."""

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
    """marks: of the whole ring. left_out: workers that are not shown, those gone longest.

    complete: the first event told of was the job's first. cut: of some rings only the first members are
    known.
    """

    began: float
    ended: float
    lanes: tuple[Lane, ...]
    marks: tuple[Mark, ...]
    left_out: int
    complete: bool
    cut: bool


@dataclass(slots=True)
class _Ring:
    generation: int
    began: float
    members: dict[str, tuple[int, int]]
    formed: float | None = None
    replays: bool = False


def members_of(stored: StoredNote) -> dict[str, tuple[int, int]] | None:
    """The ring that a ring_change makes, ESTs [start, end) by worker; None for other events."""
    note = stored.note
    if note.kind != "ring_change" or "members" not in note.facts:
        return None
    return {name: (int(start), int(end)) for name, start, end in _MEMBER.findall(note.facts["members"])}


def timeline(notes: Sequence[StoredNote], now: float) -> Timeline | None:
    """The timeline up to `now`, or to the job's end; None before anything happened."""
    notes = _affordable(notes)
    if not notes:
        return None
    over = notes[-1].now if notes[-1].note.kind in _OVER else None
    ended = max(over if over is not None else now, notes[-1].now)
    rings, marks = _rings(notes, ended)
    stays: dict[str, list[Stay]] = {}
    for ring, until in rings:
        for worker, (first, after) in ring.members.items():
            stay = Stay(ring.began, until, first, after, ring.generation, ring.formed)
            stays.setdefault(worker, []).append(stay)
    seen: dict[str, float] = {}
    came: dict[str, int] = {}
    for place, mark in enumerate(marks):
        if mark.worker:
            seen[mark.worker] = max(seen.get(mark.worker, 0.0), mark.at)
            came.setdefault(mark.worker, place)
    for worker, parts in stays.items():
        seen[worker] = max(seen.get(worker, 0.0), parts[-1].ended)
        came.setdefault(worker, len(marks))
    shown = set(sorted(seen, key=lambda worker: (-seen[worker], worker))[:LANES_MAX])
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
        notes[0].now,
        ended,
        lanes,
        tuple(mark for mark in marked if not mark.worker),
        len(seen) - len(shown),
        notes[0].sequence <= 1,
        any(_CUT.search(stored.note.facts.get("members", "")) is not None for stored in notes),
    )


def _affordable(notes: Sequence[StoredNote]) -> Sequence[StoredNote]:
    """The newest events whose rings have `MEMBERS_MAX` members together; always the newest ring."""
    count, first = 0, True
    for place in range(len(notes) - 1, -1, -1):
        note = notes[place].note
        if note.kind != "ring_change":
            continue
        count += note.facts.get("members", "").count("[")
        if count > MEMBERS_MAX and not first:
            return notes[place + 1 :]
        first = False
    return notes


def _rings(notes: Sequence[StoredNote], ended: float) -> tuple[list[tuple[_Ring, float]], list[Mark]]:
    """Every ring that had members with its end, and all marks."""
    rings: list[tuple[_Ring, float]] = []
    marks: list[Mark] = []
    current: _Ring | None = None
    trained = False
    for stored in notes:
        note, at = stored.note, stored.now
        members = members_of(stored)
        if members is not None:
            if current is not None and current.members:
                rings.append((current, at))
            current = _Ring(note.generation, at, members)
            current.replays = trained and note.facts.get("planned") != "True"
        elif note.kind == "ring_formed" and current is not None and current.formed is None:
            current.formed = at
            if current.replays:
                text = f"step {note.facts.get('resume_step', note.step)} is run again"
                marks.append(Mark(at, "replay", "", text))
            trained = True
        elif note.kind in _ENDS and current is not None:
            if current.members:
                rings.append((current, at))
            current = None
        if (kind := _MARKS.get(note.kind)) is not None:
            marks.append(Mark(at, kind, note.worker if kind != "checkpoint" else "", note.reason))
    if current is not None and current.members:
        rings.append((current, ended))
    return rings, marks


def _joined(stays: Iterable[Stay]) -> list[Stay]:
    """Neighbours of the same range without a pause between them are one: fewer shapes, same picture."""
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
