"""What a parameter server does with its slots when the master says so: save, go back, close, journal."""

from __future__ import annotations

import queue
import threading
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from elastane.slots.frames import CODES, Pushed
from elastane.tables.journal_file import JournalReading
from elastane.tables.journal_records import JournalEntry, JournalError, LifeBegun
from elastane.tables.sections import Section
from elastane.tables.slot_weights import SlotWeights, load_all
from elastane.tables.snapshot_file import SlotSnapshotError
from elastane.tables.snapshots import OtherModelError, names
from elastane.tables.spec_proto import to_proto
from elastane_common.storage import Folder
from elastane_proto.v1 import ps_pb2
from elastane_ps import app, copying, reading, saving
from elastane_ps.app import PsServer
from elastane_ps.held import HeldSlot
from elastane_ps.links import PeerLink
from elastane_ps.reading import read_slot
from elastane_slots.applied import AppliedSet
from elastane_slots.held_slots import SlotRecord
from elastane_slots.pushes import Verdict
from elastane_slots.slot_map import SlotMap
from elastane_slots.tasks import TaskName
from unit.ps.cluster import DATASET, WAIT_SECONDS, FakeMaster, cluster
from unit.ps.test_serving import SPEC, serial
from unit.tables.models import part_of, push, small, weights_of


def saved(master: FakeMaster, request: str, folder: str) -> dict[int, ps_pb2.SavedSlot]:
    """Have all servers save; by slot."""
    for server in master.servers.values():
        server.save(ps_pb2.SaveSlots(request=request, folder=folder))

    def answers() -> list[ps_pb2.SlotsSaved]:
        return [note for note in master.saved if note.request == request]

    with master.changed:
        assert master.changed.wait_for(lambda: len(answers()) == len(master.servers), WAIT_SECONDS)
        assert not any(note.error for note in answers())
        return {slot.slot: slot for note in answers() for slot in note.slots}


def test_a_checkpoint_has_every_slot_and_all_go_back_to_it(tmp_path: Path) -> None:
    with cluster(SPEC, 2, url=str(tmp_path)) as (master, worker):
        worker.run(range(6))
        found = saved(master, "r1", "checkpoints/1")
        assert sorted(found) == list(range(SPEC.slots))
        at_checkpoint = worker.digests()
        for slot in found.values():
            tasks = AppliedSet.decode(slot.applied)
            assert [TaskName(DATASET, 0, task) in tasks for task in range(7)] == [True] * 6 + [False]
            assert (tmp_path / slot.folder).stat().st_size == slot.bytes
        worker.run(range(6, 9))
        assert worker.digests() != at_checkpoint
        master.rewind("checkpoints/1")
        master.settled()
        worker.refresh()
        assert worker.digests() == at_checkpoint
        assert all(place.life == 1 for place in master.map.places)
        assert sorted(master.reopened) == [6, 7, 8]
        master.reopened.clear()
        worker.run(range(6, 12))
        assert worker.digests() == serial()  # as if it had not been there


def test_snapshots_of_the_cadence_come_by_themselves_and_old_ones_go(tmp_path: Path) -> None:
    with cluster(SPEC, 1, url=str(tmp_path), seconds=0.2) as (master, worker):
        trained = worker.start(range(60))
        folder = Folder(str(tmp_path / "slots"))
        trained.result()
        with master.changed:
            done = master.changed.wait_for(
                lambda: {s.slot for n in master.saved for s in n.slots if s.version == 60} == set(range(8)),
                30,
            )
        assert done
        for slot in range(SPEC.slots):
            there = names(folder, slot)
            assert 1 <= sum(name.kind == "base" for name in there) <= 3
            assert there[-1].version == 60
        count = len(master.saved)
        time.sleep(0.6)
        assert len(master.saved) == count  # nothing was applied since


def test_a_storage_that_cannot_be_read_is_not_taken_for_an_empty_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(self: Folder) -> list[tuple[str, int]]:
        raise SlotSnapshotError("the storage is away")

    read = Folder.files
    monkeypatch.setattr(Folder, "files", fails)
    monkeypatch.setattr(app, "_RESTORE_AGAIN_SECONDS", 0.1)
    master = FakeMaster(small(slots=2), url=str(tmp_path))
    try:
        master.add("ps-0")
        time.sleep(0.3)
        assert all(place.restoring for place in master.map.places) and not master.restored
        monkeypatch.setattr(Folder, "files", read)
        master.settled()
    finally:
        master.close()


def test_a_storage_that_fails_ends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Folder, name: str, chunks: object) -> None:
        raise SlotSnapshotError("the disk is full")

    write = Folder.write
    monkeypatch.setattr(Folder, "write", full)
    monkeypatch.setattr(saving, "_BACKOFF_SECONDS", 0.2)
    with cluster(SPEC, 1, url=str(tmp_path), seconds=0.05) as (master, worker):
        worker.run(range(3))
        server = master.servers["ps-0"]
        for _ in range(100):
            if server.heartbeat().figures.unsaved_error:
                break
            time.sleep(0.02)
        assert "full" in server.heartbeat().figures.unsaved_error
        assert worker.applied() == [{0, 1, 2}] * SPEC.slots
        monkeypatch.setattr(Folder, "write", write)
        with master.changed:
            everything = set(range(SPEC.slots))
            assert master.changed.wait_for(
                lambda: {s.slot for n in master.saved for s in n.slots} == everything, 20
            )
        assert not server.heartbeat().figures.unsaved_error


@pytest.mark.parametrize("copies", [1, 2])
def test_closed_tasks_are_applied_nowhere_any_more(copies: int) -> None:
    with cluster(SPEC, 2, copies=copies) as (master, worker):
        worker.run(range(3))
        pulled = worker.pull(9, 99)
        worker.push(9, 99, pulled, slots=[0, 1, 2])
        closing = ps_pb2.CloseTasks(tasks=[ps_pb2.TaskRunName(dataset=DATASET, epoch=0, start=9, end=10)])
        for server in master.servers.values():
            server.close_tasks(closing)
        with master.changed:
            assert master.changed.wait_for(lambda: len(master.closed) == 2, WAIT_SECONDS)
            found = {slot.slot: list(slot.applied) for note in master.closed for slot in note.slots}
        assert found == {slot: [slot < 3] for slot in range(SPEC.slots)}
        victim = master.map.places[5].owner
        if copies == 2:
            master.kill(victim)
            master.settled()
            worker.refresh()
        connection = worker.connection(master.map.places[5].owner)
        reply = connection.send(*worker.push_of(9, 99, {5: pulled[5]})).result(10).header
        assert isinstance(reply, Pushed) and reply.answers[0].code == CODES[Verdict.CLOSED]


def test_the_journal_has_every_push_once_whoever_applied_it(tmp_path: Path) -> None:
    with cluster(SPEC, 2, copies=2, url=str(tmp_path), journal=True) as (master, worker):
        worker.run(range(5))
        master.kill("ps-0")
        worker.run(range(5, 8))
        master.close()
    reading = JournalReading(Folder(str(tmp_path), JournalError))
    records = list(reading.records())
    entries = {(e.slot, e.version): e for e in records if isinstance(e, JournalEntry)}
    assert {key: e.task for key, e in entries.items()} == {
        (slot, task + 1): task for slot in range(SPEC.slots) for task in range(8)
    }
    # What two processes have written of one push is equal.
    assert all(entries[e.slot, e.version] == e for e in records if isinstance(e, JournalEntry))
    assert len({e.digest for e in entries.values() if e.slot == 0}) == 8
    begun = [(e.slot, e.life, e.version, e.before) for e in records if isinstance(e, LifeBegun)]
    assert sorted(begun) == [(slot, 0, 0, -1) for slot in range(SPEC.slots)]
    models = [ps_pb2.PsWelcome.FromString(stored) for stored in reading.models()]
    assert {model.model.slots for model in models} == {SPEC.slots} and not reading.torn
    assert all(model.settings.journal and not model.settings.snapshot_url for model in models)


def test_the_journal_says_from_which_life_a_slot_went_on(tmp_path: Path) -> None:
    with cluster(SPEC, 1, url=str(tmp_path), journal=True) as (master, worker):
        worker.run(range(3))
        saved(master, "", "")
        master.rewind()
        master.served()
        worker.refresh()
        worker.run(range(3, 5))
        folder = Folder(str(tmp_path), JournalError)
        # Nothing waits for the end of the process: what was answered is written.
        records = list(JournalReading(folder).records())
    begun = [(e.slot, e.life, e.version, e.before) for e in records if isinstance(e, LifeBegun)]
    assert sorted(one for one in begun if one[1]) == [(slot, 1, 3, 0) for slot in range(SPEC.slots)]
    assert {(e.life, e.version) for e in records if isinstance(e, JournalEntry) and e.slot == 2} == {
        (0, 1),
        (0, 2),
        (0, 3),
        (1, 4),
        (1, 5),
    }


def test_a_slot_that_is_copied_in_many_rounds_is_equal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "LAST_BYTES", 1000)
    with cluster(SPEC, 1) as (master, worker):
        trained = worker.start(range(12))
        master.add("ps-1")
        master.settled()
        trained.result()
        assert worker.digests() == serial()


def test_slots_go_to_a_process_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slot that is frozen waits for what is on the way before it: that is nothing of another's."""
    spec, seen = small(slots=8), list[tuple[str, int]]()
    receiving = copying.Receiving.do

    def do(self: copying.Receiving, header: Any, body: memoryview) -> Any:
        seen.append((type(header).__name__, header.slot))
        return receiving(self, header, body)

    room = PeerLink.wait_for_room

    def wait_for_room(self: PeerLink) -> bool:
        time.sleep(0.005)  # others would go first
        return room(self)

    monkeypatch.setattr(copying.Receiving, "do", do)
    monkeypatch.setattr(PeerLink, "wait_for_room", wait_for_room)
    monkeypatch.setattr(reading, "LAST_BYTES", 1000)
    with cluster(spec, 1) as (master, worker):
        worker.run(range(2))
        before = worker.digests()
        master.add("ps-1")
        master.settled()
        worker.refresh()
        assert worker.digests() == before
    ends = [number for number, (kind, _) in enumerate(seen) if kind == "CopyEnd"]
    assert len(ends) > 1
    for start, end in pairwise([-1, *ends]):
        assert len({slot for _, slot in seen[start + 1 : end + 1]}) == 1 and seen[start + 1][0] == "CopyBegin"


def test_a_slot_of_which_all_is_touched_is_not_read_in_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "LAST_BYTES", 1000)
    spec = small(slots=1)
    held = HeldSlot(0, SlotRecord(), weights_of(spec, 0))
    generator, taken = torch.Generator().manual_seed(1), list[Section]()

    def take(section: Section) -> bool:
        taken.append(section)
        push(spec, held.weights, part_of(spec, 0, generator, rows=2))  # touches all blocks
        return True

    assert read_slot(held, take, lambda rest, mark: taken.extend(rest))
    everything = len(list(held.weights.sections()))
    assert len(taken) <= 2 * everything
    copy = SlotWeights(spec, 0)
    load_all(copy, taken)
    assert copy.digest() == held.weights.digest()


def test_a_damaged_copy_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    spoiled = threading.Event()
    with cluster(SPEC, 1) as (master, worker):
        worker.run(range(3))
        before = worker.digests()
        receiving = copying.Receiving._end

        def once(self: copying.Receiving, header: copying.CopyEnd) -> int:
            if not spoiled.is_set():
                spoiled.set()
                header.digest = b"x" * 32
            return receiving(self, header)

        monkeypatch.setattr(copying.Receiving, "_end", once)
        master.add("ps-1")
        master.settled()  # the owner has told that it broke, and it was begun again
        worker.refresh()
        assert spoiled.is_set() and worker.digests() == before


def test_an_owner_without_the_slot_is_at_fault() -> None:
    faults: list[BaseException] = []
    server = PsServer(
        "ps-0", "job", "127.0.0.1", b"k" * 32, tell=lambda **_: None, fault=faults.append, process="p"
    )
    try:
        places = [ps_pb2.SlotPlace(owner="ps-0", since=1) for _ in range(SPEC.slots)]
        server.welcome(
            ps_pb2.PsWelcome(
                map=ps_pb2.SlotMap(generation=1, places=places),
                model=to_proto(SPEC),
                settings=ps_pb2.PsSettings(),
            )
        )
        assert faults and not server.holdings.owned
    finally:
        server.close()


def test_a_folder_with_slots_of_another_model_is_not_begun_anew_in(tmp_path: Path) -> None:
    with cluster(small(slots=2), 1, url=str(tmp_path)) as (master, worker):
        worker.run(range(3))
        saved(master, "r", "")
    spec = small(slots=4)
    faults: queue.SimpleQueue[BaseException] = queue.SimpleQueue()
    restored: list[int] = []
    server = PsServer(
        "ps-0",
        "job",
        "127.0.0.1",
        b"k" * 32,
        tell=lambda **told: restored.extend(note.slot for note in told.values()),
        fault=faults.put,
        process="p",
    )
    try:
        places = [ps_pb2.SlotPlace(owner="ps-0", since=1, restoring=True) for _ in range(spec.slots)]
        settings = ps_pb2.PsSettings(snapshot_url=str(tmp_path))
        slots = ps_pb2.SlotMap(generation=1, places=places)
        server.welcome(ps_pb2.PsWelcome(map=slots, model=to_proto(spec), settings=settings))
        with pytest.raises(OtherModelError, match=r"in 2 slots and not 4"):
            raise faults.get(timeout=WAIT_SECONDS)
        assert not {0, 1} & {*restored}
    finally:
        server.close()


def test_older_maps_change_nothing() -> None:
    with cluster(SPEC, 2) as (master, worker):
        worker.run(range(2))
        before = worker.digests()
        old = ps_pb2.SlotMap(generation=1, places=[ps_pb2.SlotPlace(restoring=True)] * SPEC.slots)
        for server in master.servers.values():
            server.learn(old)
        assert worker.digests() == before
        assert isinstance(master.map, SlotMap)
