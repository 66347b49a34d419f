"""The ring over time out of events: stays, marks, bounds, and where they are drawn."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pytest

from elastane_master.dashboard.drawing import LEFT, WIDTH, draw_timeline
from elastane_master.dashboard.facts import event_rows
from elastane_master.dashboard.page_query import JobQuery
from elastane_master.dashboard.pages import render as render
from elastane_master.dashboard.timeline import LANES_MAX, MARKS_MAX, MEMBERS_MAX, STAYS_MAX, Stay, timeline
from elastane_master.decisions.effects import Note
from elastane_master.decisions.events import Rejection
from elastane_master.jobs.limits import clip
from elastane_master.jobs.records import StoredNote
from elastane_proto.history.upgrade import upgraded
from elastane_shards.progress import Progress


class Story:
    """Events as a job tells them."""

    def __init__(self, first: int = 1) -> None:
        self.notes: list[StoredNote] = []
        self._first = first

    def tell(self, at: float, kind: str, worker: str = "", generation: int = 1, **facts: object) -> None:
        reason, text = f"{kind} of {worker}", {name: str(value) for name, value in facts.items()}
        event = upgraded(kind, worker, reason, 0, text)
        note = Note(kind, reason, worker, generation, 0, text, event)  # type: ignore[arg-type]
        self.notes.append(StoredNote(self._first + len(self.notes), at, note))

    def ring(self, at: float, members: str, generation: int, planned: bool = False) -> None:
        self.tell(at, "ring_change", generation=generation, members=members or "none", planned=planned)


def death() -> Story:
    """Two workers train; one dies; the other goes on with all ESTs, and a third joins by plan."""
    story = Story()
    story.tell(0.0, "job_created", generation=0)
    story.tell(1.0, "worker_joined", "a")
    story.tell(1.5, "worker_joined", "b")
    story.ring(2.0, "a[0:2], b[2:4]", 1)
    story.tell(3.0, "ring_formed", resume_step=0)
    story.tell(10.0, "worker_lost", "b")
    story.ring(10.0, "a[0:4]", 2)
    story.tell(11.0, "ring_formed", generation=2, resume_step=7)
    story.tell(15.0, "worker_joined", "c")
    story.ring(16.0, "a[0:2], c[2:4]", 3, planned=True)
    story.tell(17.0, "ring_formed", generation=3, resume_step=9)
    return story


def test_who_hosted_what_when_and_what_happened_to_whom() -> None:
    seen = timeline(death().notes, now=20.0)
    assert seen is not None and (seen.began, seen.ended, seen.complete) == (0.0, 20.0, True)
    lanes = {lane.worker: lane for lane in seen.lanes}
    assert list(lanes) == ["a", "b", "c"]
    assert lanes["a"].stays == (
        Stay(2.0, 10.0, 0, 2, 1, 3.0),
        Stay(10.0, 16.0, 0, 4, 2, 11.0),
        Stay(16.0, 20.0, 0, 2, 3, 17.0),
    )
    assert lanes["b"].stays == (Stay(2.0, 10.0, 2, 4, 1, 3.0),)
    assert [(mark.kind, mark.at) for mark in lanes["b"].marks] == [("join", 1.5), ("death", 10.0)]
    # Only what was not planned makes a step be run again, and the first ring repeats nothing.
    assert [(mark.kind, mark.at, mark.text) for mark in seen.marks] == [
        ("replay", 11.0, "step 7 is run again")
    ]


def test_a_ring_ends_with_the_job_and_a_suspension() -> None:
    story = death()
    story.tell(18.0, "job_suspended")
    story.ring(25.0, "a[0:4]", 4)
    story.tell(30.0, "job_succeeded")
    seen = timeline(story.notes, now=500.0)
    assert seen is not None and seen.ended == 30.0
    stays = next(lane.stays for lane in seen.lanes if lane.worker == "a")
    assert [(stay.began, stay.ended, stay.formed) for stay in stays[-2:]] == [
        (16.0, 18.0, 17.0),
        (25.0, 30.0, None),
    ]
    assert [mark.kind for mark in seen.marks] == ["replay", "end", "end"]


def test_the_timeline_of_a_job_that_is_over_ends_when_its_last_worker_has_left() -> None:
    story = death()
    story.tell(30.0, "job_succeeded")
    story.tell(31.0, "worker_left", "a")
    story.tell(33.0, "worker_exited", "c")
    story.tell(90_000.0, "master_recovered")
    seen = timeline(story.notes, now=100_000.0)
    assert seen is not None and (seen.began, seen.ended) == (0.0, 33.0)
    [left] = [mark for lane in seen.lanes for mark in lane.marks if mark.kind == "leave"]
    assert left.at == 31.0
    assert max(stay.ended for lane in seen.lanes for stay in lane.stays) == 30.0


def test_the_label_of_a_tick_at_the_end_of_the_axis_stands_inside_of_the_picture() -> None:
    seen = timeline(death().notes, now=20.2)
    assert seen is not None
    html = render(
        "part_timeline.html",
        picture=draw_timeline(seen),
        zooms=[],
        asked=JobQuery(),
        width=WIDTH,
    )
    ticks = dict(re.findall(r'text-anchor="(\w+)" data-at="([\d.]+)"', html))
    assert ticks["end"] == "20.0" and float(ticks["middle"]) < 20


def test_a_ring_that_dissolves_and_scaling_are_told_apart() -> None:
    story = death()
    story.tell(18.0, "ring_change", workers_min=1, workers_max=2)  # scaled: no other ring yet
    story.ring(19.0, "", 4)
    seen = timeline(story.notes, now=30.0)
    assert seen is not None
    assert max(stay.ended for lane in seen.lanes for stay in lane.stays) == 19.0
    assert timeline([], now=1.0) is None


def test_bounds_hold_for_jobs_of_any_length() -> None:
    story = Story(first=5000)
    for number in range(3000):
        worker = f"w{number % 200}"
        story.tell(float(number), "worker_joined", worker, number)
        story.ring(float(number), f"{worker}[0:{1 + number % 3}]", number)
        story.tell(number + 0.5, "ring_formed", generation=number, resume_step=number)
        story.tell(number + 0.7, "worker_lost", worker, number)
    seen = timeline(story.notes, now=4000.0)
    assert seen is not None and not seen.complete
    assert len(seen.lanes) == LANES_MAX and seen.left_out == 200 - LANES_MAX
    assert sum(len(lane.stays) for lane in seen.lanes) <= STAYS_MAX
    assert sum(len(lane.marks) for lane in seen.lanes) + len(seen.marks) <= MARKS_MAX
    assert {lane.worker for lane in seen.lanes} >= {"w199", "w198"}, "those gone longest are left out"
    picture = draw_timeline(seen)
    for bar in picture.bars:
        assert LEFT <= bar.x <= bar.x + bar.width <= WIDTH and bar.width > 0


def test_changes_of_a_ring_of_thousands_are_read_from_the_newest_on_as_far_as_that_is_cheap() -> None:
    """All of them would keep the master from hearing its workers for seconds, at each look at the page."""
    story = Story()
    members = ", ".join(f"w{i}[{i}:{i + 1}]" for i in range(MEMBERS_MAX // 4))
    for generation in range(1, 10):
        story.ring(float(generation), members, generation)
    seen = timeline(story.notes, now=20.0)
    assert seen is not None and not seen.complete
    assert [stay.generation for stay in seen.lanes[0].stays] == [6, 7, 8, 9]
    larger = ", ".join(f"w{i}[{i}:{i + 1}]" for i in range(MEMBERS_MAX + 1))
    story.ring(10.0, larger, 10)
    seen = timeline(story.notes, now=20.0)
    assert seen is not None and [stay.generation for stay in seen.lanes[0].stays] == [10]


def test_a_ring_whose_members_were_cut_says_so() -> None:
    story = Story()
    story.ring(1.0, "a[0:2], b[2:4]", 1)
    pages = []
    for at in (2.0, 3.0):
        seen = timeline(story.notes, now=9.0)
        assert seen is not None
        pages.append(render("part_timeline.html", picture=draw_timeline(seen), zooms=[], asked=JobQuery()))
        story.ring(at, clip(", ".join(f"w{i}[{i}:{i + 1}]" for i in range(1000))), 2)
    assert ["first members" in page for page in pages] == [False, True]


def test_the_table_of_events_cuts_the_members_of_large_rings() -> None:
    story = Story()
    story.ring(1.0, "a[0:2], b[2:4]", 1)
    story.ring(2.0, ", ".join(f"w{i}[{i}:{i + 1}]" for i in range(1000)), 2)
    html = render(
        "part_events.html",
        facts=SimpleNamespace(notes=story.notes),
        rows=event_rows(story.notes),
        left_out=0,
        problem="",
        view=SimpleNamespace(name="j"),
    )
    assert "a[0:2], b[2:4]</small>" in html and "more characters)</small>" in html
    assert len(html) < 2500


def test_checkpoints_that_follow_each_other_are_one_row() -> None:
    story = Story()
    story.ring(1.0, "a[0:2]", 1)
    for step in range(2, 12):
        story.tell(float(step), "checkpoint_saved", at_step=step)
    html = render(
        "part_events.html",
        facts=SimpleNamespace(notes=story.notes),
        rows=event_rows(story.notes),
        left_out=0,
        problem="",
        view=SimpleNamespace(name="j"),
    )
    assert html.count("<tr data-sequence") == 2
    assert "and 9 before it" in html and "10 checkpoints saved, of steps 2 to 11" in html


def test_only_the_events_that_are_wanted_are_shown() -> None:
    story = death()
    for step in range(3):
        story.tell(20.0 + step, "checkpoint_saved", at_step=step)

    def shown(now: float = 30.0, **asked: str) -> list[int]:
        query = JobQuery.of(asked)
        rows = event_rows(story.notes, query.filter(now), each=query.each_event)
        return [row.stored.sequence for row in rows]

    everything = shown()
    assert everything == sorted(everything, reverse=True) and len(everything) == len(story.notes) - 2
    kinds = {one.sequence: one.note.kind for one in story.notes}
    assert {kinds[one] for one in shown(kind="worker")} == {"worker_joined", "worker_lost"}
    assert len(shown(kind="checkpoint_saved, worker_lost")) == 4, "what is asked for is not folded"
    assert {kinds[one] for one in shown(worker="b")} == {"worker_joined", "worker_lost", "ring_change"}
    assert {kinds[one] for one in shown(search="Of B")} == {"worker_joined", "worker_lost"}
    assert {kinds[one] for one in shown(search="ring formed")} == {"ring_formed"}
    assert shown(search="of b", kind="worker_lost") == [6] and shown(search="nowhere") == []
    assert len(shown(routine="each")) == len(story.notes)
    assert shown(since="5") == [one for one in everything if one >= 5]
    assert shown(since="10s") == everything[:1] and shown(now=22.5, since="1s") == everything[:1]
    assert JobQuery("a b", "w", "").query() == "?kind=a+b&worker=w" and JobQuery().query() == ""
    with pytest.raises(Rejection, match="yesterday"):
        shown(since="yesterday")


def test_a_dataset_of_tasks_says_what_time_is_left() -> None:
    counts = dict.fromkeys(("todo", "doing", "done", "failed", "failed_before", "requeued", "timed_out"), 1)
    progress = Progress(
        0, 2, **counts, total=4, samples_done=9, samples_per_second=3.5, eta_seconds=90.0, complete=False
    )
    view = SimpleNamespace(dataset="eval", progress=progress)
    queue = SimpleNamespace(view=view, held=(), failed=(), more=0, reported=0)
    html = render("part_queues.html", facts=SimpleNamespace(queues=[queue]))
    assert "<b>1 min 30 s</b> left <small>at 3.5 samples a second</small>" in html


def test_where_a_timeline_is_drawn() -> None:
    seen = timeline(death().notes, now=20.0)
    assert seen is not None
    picture = draw_timeline(seen)
    forming = [bar for bar in picture.bars if bar.style == "forming"]
    assert len(forming) == 5, "each ring is formed before it trains"
    trained = [bar for bar in picture.bars if bar.style != "forming"]
    assert [bar.label for bar in trained] == ["0-1", "0-3", "0-1", "2-3", "2-3"]
    assert trained[0].style != trained[3].style, "a range has its colour"
    assert {glyph.style for glyph in picture.glyphs} == {"join", "death"}
    (again,) = picture.lines
    assert again.style == "replay" and again.title.endswith("step 7 is run again")
    for glyph in (*picture.glyphs, *picture.lines):
        assert LEFT <= glyph.x <= WIDTH and 0 < glyph.y < picture.height


def test_a_part_of_a_timeline_has_what_happened_in_it() -> None:
    story = death()
    seen = timeline(story.notes, 20.0, (9.0, 12.0))
    assert seen is not None and (seen.began, seen.ended) == (9.0, 12.0)
    assert [lane.worker for lane in seen.lanes] == ["a", "b"]
    assert [(stay.first, stay.after) for stay in seen.lanes[0].stays] == [(0, 2), (0, 4)]
    assert [mark.kind for mark in (*seen.lanes[1].marks, *seen.marks)] == ["death", "replay"]
    picture = draw_timeline(seen)
    assert all(bar.x >= LEFT and bar.x + bar.width <= WIDTH - 7 for bar in picture.bars)
    assert [tick.text[-2:] for tick in picture.ticks] == ["09", "10", "11", "12"], "no label twice"


def test_checkpoints_that_are_close_are_one_tick() -> None:
    story = death()
    for number in range(30):
        story.tell(20.0 + number / 10, "checkpoint_saved", at_step=number)
    story.tell(40.0, "checkpoint_saved", at_step=99)
    seen = timeline(story.notes, now=60.0)
    assert seen is not None and len(seen.checkpoints) == 31
    many, one = draw_timeline(seen).saves
    assert (many.label, one.label) == ("30", "") and many.x < many.x_last < one.x == one.x_last
    assert many.title.startswith("00:00:22 the newest of 30 checkpoints: ") and one.at == 40.0


def test_of_many_workers_those_with_news_are_shown_in_low_rows() -> None:
    story = Story()
    members = ", ".join(f"w{i}[{i}:{i + 1}]" for i in range(500))
    story.ring(1.0, members, 1)
    story.tell(2.0, "ring_formed", resume_step=0)
    story.tell(9.0, "worker_lost", "w499")
    seen = timeline(story.notes, now=20.0)
    assert seen is not None and len(seen.lanes) == LANES_MAX and seen.left_out == 500 - LANES_MAX
    assert "w499" in {lane.worker for lane in seen.lanes}
    picture = draw_timeline(seen)
    assert picture.height < 450 and picture.labels == ()


def test_workers_with_whole_domain_names_are_told_apart() -> None:
    story = Story()
    names = [f"spot-pool-b-{number}.training.svc.cluster.local" for number in range(3)]
    for name in names:
        story.tell(1.0, "worker_joined", name)
    seen = timeline(story.notes, now=2.0)
    assert seen is not None
    labels = [label for label in draw_timeline(seen).labels if label.title]
    assert [(label.text, label.title) for label in labels] == [
        (f"spot-pool-b-{number}…", name) for number, name in enumerate(names)
    ]


def test_a_job_of_one_moment_can_be_drawn() -> None:
    story = Story()
    story.tell(5.0, "worker_joined", "a")
    story.ring(5.0, "a[0:1]", 1)
    story.tell(5.0, "ring_formed", resume_step=0)
    seen = timeline(story.notes, now=5.0)
    assert seen is not None and len(draw_timeline(seen).bars) == 1
