"""What was lost, how soon a ring was there again and when it was replaced, out of events as told."""

from __future__ import annotations

from elastane_proto.history import events as e
from elastane_proto.history.describe import describe
from elastane_proto.history.fold import DatedEvent
from elastane_proto.history.incidents import Incident, IncidentFold


def ring(workers: str, planned: bool = False) -> e.RingAnnounced:
    """A ring of workers with names of one letter."""
    places = tuple(e.Place(worker, rank, rank + 1) for rank, worker in enumerate(workers))
    return e.RingAnnounced(places, planned, "x")


FORMED = e.RingFormed(2, 0, 7, 2)


class Story:
    """Events with their times, told to a fold. Each ring has the next generation."""

    def __init__(self) -> None:
        self.fold = IncidentFold()
        self._generation = 0
        self._sequence = 0

    def tell(self, at: float, *events: e.HistoryEvent) -> Story:
        for event in events:
            self._generation += isinstance(event, e.RingAnnounced)
            self._sequence += 1
            reason = describe(event)
            dated = DatedEvent(
                self._sequence, at, event.kind, event.about, reason, self._generation, 0, event
            )
            self.fold.take(dated)
        return self

    @property
    def last(self) -> Incident:
        return self.fold.incidents[-1]


def lost(worker: str) -> e.WorkerLost:
    return e.WorkerLost(worker, "stream", "x")


def trained() -> Story:
    return Story().tell(0.0, ring("abc")).tell(1.0, FORMED)


def test_how_soon_a_ring_is_formed_again_and_the_lost_one_replaced() -> None:
    story = trained().tell(10.0, lost("c"), ring("ab"))
    assert (story.last.kind, story.last.workers, story.last.size) == ("lost", ["c"], 3)
    assert story.fold.waits == [story.last] and story.last.formed_seconds is None
    story.tell(10.4, FORMED)
    assert story.last.formed_seconds is not None and round(story.last.formed_seconds, 3) == 0.4
    assert story.last.replaced_seconds is None and story.fold.waits == []
    story.tell(18.0, e.WorkerJoined("d", "ring", "h"), ring("abd", planned=True))
    assert story.last.replaced_seconds is None, "not before the ring trains"
    story.tell(19.0, FORMED)
    assert story.last.replaced_seconds == 9.0 and round(story.last.formed_seconds, 3) == 0.4


def test_workers_of_one_host_are_one_incident_and_later_ones_are_their_own() -> None:
    story = trained().tell(10.0, lost("b")).tell(10.5, lost("c"), ring("a"))
    assert [one.workers for one in story.fold.incidents] == [["b", "c"]]
    # The ring is not formed yet: what is missing is counted from the ring that trained last.
    story.tell(12.0, lost("a"), ring("d")).tell(13.0, FORMED)
    first, second = story.fold.incidents
    assert (first.formed_seconds, second.formed_seconds) == (3.0, 1.0) and second.size == 3
    story.tell(20.0, ring("def", planned=True), FORMED)
    assert (first.replaced_seconds, second.replaced_seconds) == (10.0, 8.0)


def test_a_loss_outside_of_the_ring_stops_nothing_and_an_end_forms_none() -> None:
    story = trained().tell(5.0, lost("standby")).tell(7.0, ring("abcd", planned=True), FORMED)
    assert story.last.generation is None and story.last.formed_seconds is None
    story.tell(8.0, e.WorkerEvicted("d", "hung"), e.JobSuspended("x"))
    story.tell(99.0, ring("abcd"), FORMED)
    assert story.last.kind == "evicted" and story.last.formed_seconds is None, "it was stopped meanwhile"


def test_what_else_is_an_incident_and_what_is_not() -> None:
    story = trained().tell(
        5.0,
        e.MasterRecovered("m:1", 3, 10.0),
        e.TaskFailed("a", "d", 0, 1, 1, False, "x"),
        e.TaskFailed("a", "d", 0, 1, 3, True, "x"),
        e.CheckpointFailed("c", 5, True, "x"),
        e.CheckpointFailed("c", 5, False, "x"),
        e.HistoryRewound("a", "c", 9, 5),
        e.WorkerLeft("a", False, "drained"),
    )
    assert [one.kind for one in story.fold.incidents] == ["master", "task", "checkpoint", "rewound"]
    assert all(one.reason and one.sequence for one in story.fold.incidents)
