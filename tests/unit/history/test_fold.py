"""The ring over time, out of events as they are told."""

from __future__ import annotations

import pytest

from elastane_proto.history import events as e
from elastane_proto.history.describe import describe
from elastane_proto.history.fold import DatedEvent, Ring, RingFold

RING = e.RingAnnounced((e.Place("a", 0, 2), e.Place("b", 2, 4)), False, "2 workers are there")
ALONE = e.RingAnnounced((e.Place("a", 0, 4),), False, "b is gone")
FORMED = e.RingFormed(2, 0, 7, 2)


def told(event: e.HistoryEvent, at: float) -> DatedEvent:
    return DatedEvent(0, at, event.kind, event.about, describe(event), 1, 0, event)


def taken(fold: RingFold, *events: e.HistoryEvent, at: float = 0.0) -> list[Ring | None]:
    """One event a second from `at` on."""
    return [fold.take(told(event, at + number)) for number, event in enumerate(events)]


def test_a_ring_begins_when_it_is_decided_trains_once_formed_and_ends_with_the_next() -> None:
    fold = RingFold()
    assert taken(fold, RING, FORMED) == [None, None]
    ring = fold.ring
    assert ring is not None and (ring.decided, ring.formed, ring.resume_step, ring.cause) == (
        0.0,
        1.0,
        7,
        "start",
    )
    assert ring.members == {"a": (0, 2), "b": (2, 4)}
    assert taken(fold, ALONE, at=5.0) == [ring] and ring.ended == 5.0
    assert fold.ring is not None and fold.ring.replays and fold.ring.formed is None
    assert fold.end(9.0) is not None and fold.ring is None and fold.end(9.0) is None


@pytest.mark.parametrize(
    "end", [e.JobSucceeded("x"), e.JobFailed("x"), e.JobCancelled("x"), e.JobSuspended("x")]
)
def test_a_ring_ends_with_the_job(end: e.HistoryEvent) -> None:
    fold = RingFold()
    *_, over = taken(fold, RING, FORMED, end)
    assert over is not None and over.ended == 2.0 and fold.ring is None


def test_a_ring_without_members_is_nobodys_end() -> None:
    fold = RingFold()
    nobody = e.RingAnnounced((), False, "all are gone")
    assert [ring is not None for ring in taken(fold, RING, nobody, RING)] == [False, True, False]


@pytest.mark.parametrize(
    ("events", "planned", "cause"),
    [
        ((), False, "other"),
        ((e.WorkerLost("b", "stream", "x"),), False, "loss"),
        ((e.WorkerJoined("c", "ring", "h"), e.WorkerLost("b", "stream", "x")), False, "loss"),
        ((e.WorkerLost("b", "stream", "x"), e.WorkerEvicted("b", "x")), False, "eviction"),
        ((e.WorkerReturned("c"),), True, "join"),
        ((e.WorkerReleased("c"), e.WorkerDraining("b", "x", "operator")), True, "drain"),
        ((e.RingScaled(1, 1), e.WorkerJoined("c", "ring", "h")), True, "scale"),
        ((e.CheckpointSaved("c", 1, 1, "", 1),), True, "other"),
    ],
)
def test_why_a_ring_changed(events: tuple[e.HistoryEvent, ...], planned: bool, cause: str) -> None:
    fold = RingFold(trained=True)
    taken(fold, *events, e.RingAnnounced(ALONE.members, planned, "x"))
    assert fold.ring is not None and (fold.ring.cause, fold.ring.replays) == (cause, not planned)
    taken(fold, RING)
    assert fold.ring.cause == "other", "a cause is of one change"


def test_since_when_each_worker_was_to_come_or_go() -> None:
    fold = RingFold(trained=True)
    taken(
        fold,
        e.WorkerJoined("c", "ring", "h"),
        e.WorkerStandby("c", 2),
        e.WorkerDraining("b", "x", "signal"),
        e.WorkerLeft("b", finished=False, why="x"),
        e.RingScaled(1, 2),
        e.RingScaled(1, 1),
        e.WorkerJoined("d", "ring", "h"),
        e.WorkerLost("d", "stream", "x"),
        ALONE,
    )
    assert fold.ring is not None
    # c stands by and changes nothing; b began to go when it was told to; the last scale counts.
    assert fold.ring.marks == {"b": ("drain", 2.0), "": ("scale", 5.0), "d": ("loss", 7.0)}


def test_what_nobody_knows_says_nothing() -> None:
    assert describe(e.UnknownEvent()) == "" and taken(RingFold(), e.UnknownEvent()) == [None]
