"""Why a worker is in the ring, stands by, or is out: the events that led there, in order. Pure.

It reads what `elastane events` shows, so it can tell of workers that are long gone, as far back as events are
kept.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from elastane_proto.v1 import job_pb2

if TYPE_CHECKING:
    from elastane_proto.v1 import ring_pb2

_MEMBER = re.compile(r"([^\s,\[\]]+)\[(\d+):(\d+)\]")
#: A master keeps no more of a long fact: whoever is not among the members may be in what was cut.
_CUT = re.compile(r"\.\.\. \(\d+ more characters\)$")
_OUT = ("worker_lost", "worker_evicted", "worker_left")
#: What ends a worker's part without an event of its own.
_JOB_ENDS = ("job_suspended", "job_succeeded", "job_failed", "job_cancelled")
_PLACES = {
    job_pb2.WORKER_STATE_MEMBER: "member",
    job_pb2.WORKER_STATE_STANDBY: "standby",
    job_pb2.WORKER_STATE_DRAINING: "draining",
    job_pb2.WORKER_STATE_TASKS_ONLY: "tasks_only",
    job_pb2.WORKER_STATE_AWAITED: "awaited",
}


@dataclass(frozen=True, slots=True)
class Link:
    """An event of the chain. time: seconds since the Unix epoch. meaning: what it is for this worker."""

    sequence: int
    time: float
    kind: str
    generation: int
    step: int
    reason: str
    meaning: str = ""


@dataclass(frozen=True, slots=True)
class Explanation:
    """place: member, standby, draining, tasks_only, awaited, or out. since: of that, if the events tell.

    complete: the events go back to the job's beginning.
    """

    worker: str
    place: str
    sentence: str
    since: float | None
    chain: tuple[Link, ...]
    complete: bool


def members_of(event: ring_pb2.Event) -> dict[str, tuple[int, int]] | None:
    """The ring that a ring_change makes, virtual ranks [start, end) by worker; None for other events."""
    if event.kind != "ring_change" or "members" not in event.facts:
        return None
    return {name: (int(start), int(end)) for name, start, end in _MEMBER.findall(event.facts["members"])}


def event_seconds(event: ring_pb2.Event) -> float:
    """Its time, seconds since the Unix epoch."""
    return float(event.time.seconds + event.time.nanos / 1e9)


def explain(worker: str, job: job_pb2.Job, events: Sequence[ring_pb2.Event]) -> Explanation | None:
    """What became of a worker; None if neither the job nor its events know it."""
    info = next((one for one in job.workers if one.worker_id == worker), None)
    chain = _chain(worker, events)
    if info is None and not chain:
        return None
    complete = not events or events[0].sequence <= 1
    if info is None:
        last = next((link for link in reversed(chain) if link.kind in _OUT), chain[-1])
        return Explanation(worker, "out", f"out: {last.reason}", last.time, tuple(chain), complete)
    place = _PLACES.get(info.state, "unknown")
    since = _since(place, chain)
    sentence = f"{place.replace('_', ' ')}: {info.reason}" if info.reason else place.replace("_", " ")
    if place == "member":
        entered = next((link for link in reversed(chain) if link.kind == "ring_change"), None)
        ranks = ranks_text(info.ests.start, info.ests.end)
        why = f", because: {entered.reason}" if entered is not None else ""
        sentence = f"in the ring, hosts {ranks}{why}"
        since = entered.time if entered is not None else None
    return Explanation(worker, place, sentence, since, tuple(chain), complete)


def known_workers(job: job_pb2.Job, events: Iterable[ring_pb2.Event]) -> list[str]:
    """Every worker the job or its events name, sorted."""
    names = {info.worker_id for info in job.workers}
    for event in events:
        names |= {event.worker_id} if event.worker_id else set()
        names |= set(members_of(event) or ())
    return sorted(names)


def ranks_text(start: int, end: int) -> str:
    """ "EST 2", "ESTs 0-3", or "no EST"."""
    if end <= start:
        return "no EST"
    return f"EST {start}" if end == start + 1 else f"ESTs {start}-{end - 1}"


def _chain(worker: str, events: Sequence[ring_pb2.Event]) -> list[Link]:
    chain: list[Link] = []
    place: tuple[int, int] | None = None
    for event in events:
        meaning, counts = "", event.worker_id == worker
        members = members_of(event)
        if members is not None and (worker in members or not _CUT.search(event.facts["members"])):
            now = members.get(worker)
            counts = counts or now != place
            if now is not None and now != place:
                came = "takes" if place is None else "now hosts"
                meaning = f"{came} {ranks_text(*now)}"
            elif now is None and place is not None:
                meaning = "is not in the ring any more"
            place = now
        elif event.kind in _JOB_ENDS and place is not None:
            counts, place = True, None
        if counts:
            chain.append(
                Link(
                    event.sequence,
                    event_seconds(event),
                    event.kind,
                    event.generation,
                    event.step,
                    event.reason,
                    meaning,
                )
            )
    return chain


def _since(place: str, chain: Sequence[Link]) -> float | None:
    kinds = {
        "standby": ("worker_standby", "worker_quarantined", "worker_joined", "ring_change"),
        "draining": ("worker_draining",),
        "tasks_only": ("worker_joined",),
        "awaited": (),
    }.get(place, ())
    return next((link.time for link in reversed(chain) if link.kind in kinds), None)
