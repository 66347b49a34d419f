"""What decisions look like as spans: driven by the real job machine, with times that the test chooses."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any

import pytest
from job_driver import JobDriver, settings

from elastane_master.decisions import effects, events
from elastane_master.jobs.ring_spans import Begin, Covers, End, Event, Key, RingSpans, moved
from elastane_master.metrics.counters import JobCounters
from elastane_proto.job_settings import JobSettings


@dataclass
class Span:
    parent: Key | None
    begin: float
    attributes: dict[str, Any]
    end: float | None = None
    events: list[tuple[str, Any]] = field(default_factory=list)


class Traced(JobDriver):
    """A job whose decisions are traced, as its host does.

    spans: the last of each key. all: every one. covers: the root by generation.
    """

    def __init__(self, job: JobSettings) -> None:
        super().__init__(job)
        self.counters = JobCounters(self.machine.state)
        self.traced = RingSpans("job", self.machine.state)
        self.spans: dict[Key, Span] = {}
        self.all: list[tuple[Key, Span]] = []
        self.covers: dict[int, Key] = {}

    def do(self, event: events.Event, *, after: float = 0.001) -> effects.Decision:
        decision = super().do(event, after=after)
        for effect in decision.effects:
            if isinstance(effect, effects.Note):
                self.counters.noted(effect, self.machine.state, self.now)
        self.play(
            self.traced.decided(
                event,  # type: ignore[arg-type]
                decision.effects,
                self.machine.state,
                self.counters.last_cause,
                self.now,
            )
        )
        return decision

    def play(self, operations: list[Any]) -> None:
        """Every operation must fit what is open, as a tracer would have it."""
        for operation in operations:
            match operation:
                case Begin(key, parent, at, attributes):
                    assert key not in self.spans or self.spans[key].end is not None
                    assert parent is None or self.spans[parent].end is None
                    self.spans[key] = Span(parent, at, dict(attributes))
                    self.all.append((key, self.spans[key]))
                case Covers(key, generation):
                    assert self.spans[key].end is None and self.spans[key].parent is None
                    self.covers[generation] = key
                case Event(key, name, at, attributes):
                    assert self.spans[key].end is None and at == self.now
                    self.spans[key].events.append((name, attributes.get("elastane.worker")))
                case End(key, at, attributes):
                    span = self.spans[key]
                    assert span.end is None and at >= span.begin
                    span.end = at
                    span.attributes |= attributes

    def root(self, number: int) -> Span:
        return self.spans[number, "ring change"]

    def phases(self, number: int) -> list[str]:
        """The parts of a change in their order; each within it, and one after the other."""
        root = self.root(number)
        found = [(key[1], span) for key, span in self.all if key[0] == number and span.parent]
        ends = [span.end for _, span in found]
        assert all(span.begin >= root.begin for _, span in found)
        if root.end is not None:
            assert all(end is not None and end <= root.end for end in ends)
            last = max(end for end in ends if end is not None) if ends else root.end
            assert last == root.end, "a change is over when its last part is"
        for (_, one), (_, after) in itertools.pairwise(found):
            assert one.end == after.begin, "nothing between two parts of a change"
        return [name for name, _ in found]


def running(*workers: str, ests: int = 4, **changes: Any) -> Traced:
    job = Traced(settings(ests, **changes))
    job.form(*workers)
    job.steps(0, 2)
    assert job.root(1).attributes["elastane.ring.outcome"] == "completed"
    return job


def told(span: Span, *names: str) -> tuple[Any, ...]:
    return tuple(span.attributes[f"elastane.ring.{name}"] for name in names)


def test_the_first_ring_begins_with_the_first_worker_and_ends_with_the_first_step() -> None:
    job = Traced(settings(4))
    job.form("a", "b")
    joined = job.notes[[note.kind for note in job.notes].index("worker_joined")]
    assert joined.worker == "a"
    root = job.root(1)
    assert root.end is None and root.attributes["elastane.job"] == "job"
    assert job.phases(1) == ["collect", "prepare", "load", "resume"]
    assert root.begin < job.spans[1, "prepare"].begin - 0.01, "joins were gathered"
    assert [worker for _, worker in job.spans[1, "prepare"].events] == ["a", "b"]
    assert job.spans[1, "load"].attributes["elastane.worker"] == "a"
    job.step(0)
    assert root.end is None, "prepared, and not committed yet"
    job.step(1)
    assert root.end == job.now
    assert told(root, "cause", "generation", "generation_before", "outcome") == ("start", 1, 0, "completed")
    assert told(root, "members", "workers", "ests_moved") == (["a", "b"], 2, 0)
    assert root.attributes["elastane.step"] == 0
    assert job.covers == {1: (1, "ring change")}


def test_a_join_begins_with_the_hello_and_rides_on_a_step() -> None:
    job = running("a", "b")
    job.join("c")
    came = job.now - 0.02
    job.now += 5.0
    assert (2, "ring change") not in job.spans, "nothing is decided between two steps"
    job.step(2)
    root = job.root(2)
    assert root.begin == pytest.approx(came)
    assert job.spans[2, "collect"].end == job.now
    assert told(root, "cause", "planned", "generation", "ests_moved") == ("join", True, 2, 1)
    job.ready("a", 3, holds=True)
    job.ready("b", 3, holds=True)
    job.ready("c")
    assert job.phases(2) == ["collect", "prepare", "resume"]
    assert told(job.spans[2, "resume"], "resume_step", "donors") == (3, 2)
    job.step(3)
    job.step(4)
    assert root.end == job.now and job.phases(2) and root.attributes["elastane.step"] == 3


def test_a_death_drops_the_step_and_is_one_change_however_often_it_is_disturbed() -> None:
    job = running("a", "b", "c")
    job.lose("b")
    root = job.root(2)
    assert root.begin == job.now and told(root, "cause", "planned", "ests_moved") == ("loss", False, 1)
    job.ready("a", 2, holds=True)
    job.lose("c")  # before the ring trains again
    assert job.generation == 3 and job.covers == {
        1: (1, "ring change"),
        2: (2, "ring change"),
        3: (2, "ring change"),
    }
    assert (3, "ring change") not in job.spans
    assert [name for name, _ in root.events] == ["decided anew"]
    job.all_ready(2)
    job.step(2)
    job.step(3)
    assert root.end == job.now and root.attributes["elastane.ring.outcome"] == "completed"
    assert job.phases(2) == ["prepare", "prepare", "resume"]


def test_a_ready_of_the_ring_before_is_nobodys() -> None:
    job = running("a", "b", "c")
    job.lose("b")
    prepare = job.spans[2, "prepare"]
    stale = events.ReadyReported("a", job.session("a"), job.generation - 1, 2, True)
    job.do(stale)
    assert prepare.events == []
    job.all_ready(2)
    assert prepare.events == [("ready", "a"), ("ready", "c")]


def test_a_drain_begins_with_the_wish() -> None:
    job = running("a", "b")
    job.do(events.LeavingReported("b", job.session("b"), "SIGTERM", 30.0))
    wished = job.now
    job.now += 2.0
    job.step(2)
    assert job.root(2).begin == wished and told(job.root(2), "cause", "members") == ("drain", ["a"])
    job.ready("a", 3, holds=True)
    job.ready("b", 3, holds=True)
    job.step(3)
    job.step(4)
    assert job.root(2).attributes["elastane.ring.outcome"] == "completed"


def test_a_scale_begins_with_the_request_and_not_with_the_standbys_hello() -> None:
    job = running("a", "b", workers_max=2)
    job.join("c")  # stands by
    job.now += 3.0
    job.do(events.ScaleRequested("r", 1, 3))
    asked = job.now
    job.step(2)
    assert told(job.root(2), "cause") == ("scale",) and job.root(2).begin == asked


def test_a_ring_that_ends_is_a_change_of_no_length() -> None:
    job = running("a", ests=2)
    job.lose("a")
    assert job.root(2).begin == job.root(2).end and told(job.root(2), "outcome", "workers") == ("no ring", 0)
    job.join("b")
    job.tick_due()
    assert told(job.root(3), "cause", "generation_before") == ("join", 2)
    job.do(events.CancelRequested("r"))
    assert told(job.root(3), "outcome") == ("cancelled",) and job.phases(3)[-1] == "prepare"


def test_what_is_open_ends_with_the_master_and_begins_anew_with_the_next() -> None:
    job = running("a", "b")
    job.lose("b")
    job.play(job.traced.stopped("not served any more", job.now))
    assert told(job.root(2), "outcome") == ("not served any more",)
    assert all(span.end is not None for span in job.spans.values())
    job.spans, job.all, job.traced = {}, [], RingSpans("job", job.machine.state)
    job.do(events.MasterStarted("m"))
    assert told(job.root(1), "taken_over", "generation") == (True, job.generation)
    job.rejoin("a", 1, 2)
    job.ready("a", 2, holds=True)
    job.step(2)
    job.step(3)
    assert told(job.root(1), "outcome") == ("completed",) and job.phases(1) == ["prepare", "resume"]


def test_moved_counts_what_has_another_host() -> None:
    a, b, all_of_b = (
        effects.Member("a", 0, 2, ""),
        effects.Member("b", 2, 4, ""),
        effects.Member("b", 0, 4, ""),
    )
    assert moved((a, b), (all_of_b,)) == 2 and moved((), (a, b)) == 0 and moved((a, b), (a, b)) == 0
