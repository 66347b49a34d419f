"""Events as they are stored and served: typed and whole, those of the release before through one upgrade."""

from __future__ import annotations

import random
import typing
from pathlib import Path

import msgspec
import pytest

from elastane_cli.explain import explain
from elastane_cli.report.facts import gather
from elastane_master.dashboard.timeline import timeline
from elastane_master.decisions.effects import Note
from elastane_master.jobs import records
from elastane_master.jobs.limits import clip
from elastane_master.jobs.recent_notes import RecentNotes
from elastane_master.jobs.records import StoredNote
from elastane_master.servers.translate_job import event_message
from elastane_proto.history import events as e
from elastane_proto.history.describe import describe, facts_text
from elastane_proto.history.events import AnyHistoryEvent, HistoryEvent
from elastane_proto.history.upgrade import upgraded
from elastane_proto.history_wire import dated_event_of, event_of
from elastane_proto.v1 import history_pb2, job_pb2, ring_pb2

BEFORE = Path(__file__).with_name("notes_before_types.hex")
"""Notes as the release before typed events stored them: every kind its tests made, each in its shapes."""
EVERY = typing.get_args(AnyHistoryEvent)


class _TextBefore(msgspec.Struct, tag="Note"):
    kind: str
    reason: str
    worker: str
    generation: int
    step: int
    facts: dict[str, str] = {}


def before() -> list[tuple[_TextBefore, StoredNote]]:
    """What was stored, and what is read of it now."""
    notes = []
    for line in BEFORE.read_text().split():
        payload = bytes.fromhex(line)
        _, _, text = msgspec.msgpack.decode(payload, type=tuple[int, float, _TextBefore])
        notes.append((text, records.decode_note(payload)))
    return notes


def made(struct: type[HistoryEvent], seed: int = 1) -> HistoryEvent:
    """An event with something in every field."""
    return typing.cast("HistoryEvent", _made(struct, random.Random(seed)))


def _made(hint: typing.Any, rng: random.Random) -> typing.Any:
    arguments = typing.get_args(hint)
    if hint is bool:
        return True
    if hint is int or int in arguments:
        return rng.randrange(1, 2**40)
    if hint is float or float in arguments:
        return rng.random()
    if hint is str:
        return f"text {rng.randrange(10**6)}"
    if typing.get_origin(hint) is tuple:
        return tuple(_made(arguments[0], rng) for _ in range(3))
    hints = typing.get_type_hints(hint)
    return hint(*(_made(hints[name], rng) for name in hint.__struct_fields__))


# ------------------------------------------------------------------ before and now


#: Kinds that there are only since events have fields: no release stored them as text.
NEW = {"scaling_set", "scaled", "scale_rolled_back"} | {
    "host_barred",
    "worker_exited",
    "log_files_incomplete",
    "straggler_reweighted",
    "straggler_replaced",
    "stages_planned",
    "units_lost",
    "units_awaited",
    "pipeline_without",
    "model_registered",
    "ps_joined",
    "ps_lost",
    "ps_draining",
    "ps_left",
    "slots_moved",
    "slots_restored",
    "slots_unrestored",
    "slots_rewound",
    "slots_unsaved",
    "slots_checkpointed",
    "tasks_reopened",
    "task_left_parts",
    "non_finite_gradient",
}


def test_every_kind_that_was_stored_before_is_read_as_what_it_was() -> None:
    read = before()
    kinds = {text.kind for text, _ in read}
    assert kinds >= {struct.kind for struct in EVERY} - NEW and len(read) > 120
    for text, stored in read:
        note = stored.note
        assert not isinstance(note.event, e.UnknownEvent), text.kind
        assert note.event.kind == (text.kind if text.kind != "sentinel_liar" else "sentinel_faulty")
        # People read what was told; nothing is put into other words.
        assert (note.kind, note.reason, note.worker) == (text.kind, text.reason, text.worker)
        assert (note.generation, note.step, note.facts) == (text.generation, text.step, text.facts)
        if not isinstance(note.event, e.RingAnnounced) or note.event.whole:
            assert facts_text(note.event) == text.facts
        assert note.event.about == text.worker


def test_what_readers_of_history_need_is_in_the_fields_of_old_events() -> None:
    read = [stored.note.event for _, stored in before()]
    cut = [event for event in read if isinstance(event, e.RingAnnounced) and not event.whole]
    assert len(cut) == 1 and len(cut[0].members) > 150 and cut[0].members[149].start == 149
    rings = [event for event in read if isinstance(event, e.RingAnnounced) and event.whole]
    assert {event.planned for event in rings} == {True, False} and all(event.why for event in rings)
    assert any(len(event.members) > 1 and event.members[1].start > 0 for event in rings)
    assert any(not event.members for event in rings), "one was dissolved"
    assert {event.by for event in read if isinstance(event, e.WorkerDraining)} >= {"operator", "signal"}
    assert {event.finished for event in read if isinstance(event, e.WorkerLeft)} == {True, False}
    saved = next(event for event in read if isinstance(event, e.CheckpointSaved))
    assert saved.checkpoint and saved.bytes and len(saved.sha256) == 64
    assert all(event.to_step < event.from_step for event in read if isinstance(event, e.HistoryRewound))
    spent = next(event.spent for event in read if isinstance(event, e.PricesChanged))
    assert spent.currency == "USD" and spent.worker_nanos > 0


def test_every_old_event_can_be_described_again_whatever_it_tells() -> None:
    for text, stored in before():
        told = describe(stored.note.event)
        assert stored.note.kind != "sentinel_undecided" or told == text.reason
    for struct in EVERY:
        for reason in ("", "w0", "x have different gradients for EST "):
            assert isinstance(describe(upgraded(struct.kind, "", reason, 0, {})), str), struct


def test_an_event_of_a_master_of_before_is_read_by_a_client_too() -> None:
    for text, stored in before():
        message = ring_pb2.Event(
            kind=text.kind, worker_id=text.worker, reason=text.reason, step=text.step, facts=text.facts
        )
        assert event_of(message) == stored.note.event
    nonsense = ring_pb2.Event(
        kind="ring_formed", facts={"resume_step": "9" * 40, "donors": "-", "max_wait_seconds": "many"}
    )
    assert event_of(nonsense) == e.RingFormed(0, 0, 0, 0)


# ------------------------------------------------------------------ stored and served


@pytest.mark.parametrize("struct", EVERY, ids=lambda struct: struct.__name__)
def test_every_event_is_stored_and_served_whole(struct: type[HistoryEvent]) -> None:
    event = made(struct)
    stored = StoredNote(7, 5.5, Note.of(event, 3, 9))  # type: ignore[arg-type]
    assert stored.note.reason == describe(event) and stored.note.kind == struct.kind
    read = records.decode_note(records.encode(stored))
    assert read == stored and type(read.note.event) is struct
    message = ring_pb2.Event.FromString(event_message(stored).SerializeToString())
    assert dated_event_of(message) == stored.dated
    assert dict(message.facts) == facts_text(event)


def test_messages_and_structs_have_the_same_names() -> None:
    detail = ring_pb2.Event.DESCRIPTOR.oneofs_by_name["event"]
    assert {field.name for field in detail.fields} == {struct.__struct_config__.tag for struct in EVERY}
    for struct in EVERY:
        fields = history_pb2.DESCRIPTOR.message_types_by_name[struct.__name__].fields
        assert tuple(field.name for field in fields) == struct.__struct_fields__


def test_nothing_that_can_be_absent_is_told_as_nought() -> None:
    spent = made(e.JobCost).spent  # type: ignore[attr-defined]
    event = e.JobCost("succeeded", msgspec.structs.replace(spent, savings=None))
    message = event_message(StoredNote(1, 0.0, Note.of(event)))
    assert event_of(message) == event


def test_what_a_newer_master_stored_is_told_as_text() -> None:
    text = {
        "type": "Note",
        "kind": "worker_promoted",
        "reason": "w1 leads",
        "worker": "w1",
        "facts": {"a": "b"},
    }
    newer = {**text, "event": {"type": "worker_promoted", "rank": 3}}
    other = {**text, "kind": "worker_lost", "event": {"type": "worker_lost", "worker": ["w1"]}}
    read = records.decode_note(msgspec.msgpack.encode([1, 2.0, newer]))
    assert read.note.event == e.UnknownEvent() and read.note.reason == "w1 leads"
    assert dated_event_of(event_message(read)) == read.dated
    assert isinstance(records.decode_note(msgspec.msgpack.encode([1, 2.0, other])).note.event, e.WorkerLost)


def test_an_older_master_reads_what_this_one_stores() -> None:
    event = e.RingAnnounced((e.Place("w0", 0, 4),), True, "w0 joined", cause="join")
    stored = records.encode(StoredNote(3, 1.0, Note.of(event, 2, 5)))
    _, _, text = msgspec.msgpack.decode(stored, type=tuple[int, float, _TextBefore])
    assert (text.kind, text.reason) == ("ring_change", "w0 joined")
    assert text.facts == {"members": "w0[0:4]", "planned": "True"}


def test_prose_is_cut_and_data_is_not() -> None:
    names = tuple(f"w{number}" for number in range(100))
    lost = Note.of(e.WorkerLost("w1", "raised", "x" * 5000)).cut(clip)
    assert lost.reason.endswith("more characters)") and len(lost.reason) < 4100
    assert isinstance(lost.event, e.WorkerLost) and len(lost.event.why) < 4100 and lost.event.worker == "w1"
    differ = Note.of(e.StateDiffers(names, 3)).cut(lambda text: clip(text, 100))
    assert len(differ.reason) < 150
    assert isinstance(differ.event, e.StateDiffers) and differ.event.workers == names


# ------------------------------------------------------------------ a ring of ten thousand


def large_story() -> list[StoredNote]:
    """10,000 workers train; the last of them dies, and the others go on."""
    places = [
        e.Place(f"node{number // 8}.cluster.local-{number % 8}", number, number + 1)
        for number in range(10_000)
    ]
    left = [*places[:-2], e.Place(places[-2].worker, 9_998, 10_000)]
    told = [
        e.RingAnnounced(tuple(places), False, "10000 workers are there"),
        e.RingFormed(10_000, 0, 0, 10_000),
        e.WorkerLost(places[-1].worker, "stream", "its stream broke"),
        e.RingAnnounced(tuple(left), False, f"{places[-1].worker} was lost: its stream broke"),
        e.RingFormed(9_999, 0, 7, 9_999),
    ]
    return [
        # As a job's host stores them.
        StoredNote(number, float(number), Note.of(event, 1 if number < 4 else 2).cut(clip))  # type: ignore[arg-type]
        for number, event in enumerate(told, 1)
    ]


def test_a_ring_of_ten_thousand_is_whole_wherever_it_is_read() -> None:
    notes = [records.decode_note(records.encode(stored)) for stored in large_story()]
    assert notes[0].note.facts["members"].endswith("more characters)"), "as text it is cut"
    messages = [ring_pb2.Event.FromString(event_message(stored).SerializeToString()) for stored in notes]
    last, before_it = "node1249.cluster.local-7", "node1249.cluster.local-6"
    job = job_pb2.Job(name="j", phase=job_pb2.JOB_PHASE_RUNNING)
    out = explain(last, job, messages)
    assert out is not None and [link.meaning for link in out.chain] == [
        "takes EST 9999",
        "",
        "is not in the ring any more",
    ]
    there = explain(before_it, job, messages)
    assert there is not None and there.chain[-1].meaning == "now hosts ESTs 9998-9999"
    rings = gather(job, messages, [], [], 9.0).rings
    assert [len(ring.members) for ring in rings] == [10_000, 9_999]
    assert rings[1].members[before_it] == (9_998, 10_000)
    seen = timeline(notes, 9.0)
    assert seen is not None and not seen.cut and len(seen.lanes) + seen.left_out == 10_000
    lanes = {lane.worker: [stay.generation for stay in lane.stays] for lane in seen.lanes}
    assert lanes.pop(last) == [1], "the one that was lost is among those shown"
    assert all(generations == [1, 2] for generations in lanes.values())


def test_what_is_kept_of_large_rings_in_memory_is_bounded() -> None:
    first, *_, last, formed = large_story()
    recent = RecentNotes(notes_max=1000, members_max=25_000)
    for number in range(50):
        recent.extend([msgspec.structs.replace(first, sequence=number)])
    assert [one.sequence for one in recent] == [48, 49]
    recent.extend([last, formed])
    assert [one.sequence for one in recent] == [49, 4, 5], "a small one costs nothing"
    small = RecentNotes(notes_max=1000, members_max=10)
    small.extend([first])
    assert len(small) == 1 and small[0] is small[-1] is first, "the newest is always there"
    few = RecentNotes(notes_max=2)
    few.extend([formed, formed, formed])
    assert len(few) == 2
