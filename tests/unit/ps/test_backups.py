"""What an answer waits for: nothing is told that a backup lacks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

import msgspec
import pytest

from elastane.slots.connection import Reply
from elastane.slots.frames import CODES, Header, Pull, Pushed, Replicate, Replicated
from elastane_proto.v1 import ps_pb2
from elastane_ps import replication
from elastane_ps.replication import Message, Replication
from elastane_slots.assignment import ranking
from elastane_slots.pushes import Verdict
from elastane_slots.tasks import TaskName
from unit.ps.cluster import DATASET, WAIT_SECONDS, FakeMaster, Worker, cluster
from unit.tables.models import rates, small

SPEC = small(slots=2)


def push(worker: Worker, task: int, slot: int, ps_id: str) -> Future[Reply]:
    """Push to one slot at a process; not waited for."""
    pulled = worker.pull(task, 1, [slot])
    header, body = worker.push_of(task, 50, pulled)
    return worker.connection(ps_id).send(header, body)


def is_done(future: Future[Reply], seconds: float = 0.3) -> bool:
    try:
        future.result(seconds)
    except TimeoutError:
        return False
    return True


@pytest.fixture
def held_up(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Backups apply nothing while it is clear."""
    going = threading.Event()
    going.set()
    do: Callable[[Replication, Message, memoryview], Header] = Replication.do

    def waiting(self: Replication, header: Message, body: memoryview) -> Header:
        going.wait(WAIT_SECONDS)
        return do(self, header, body)

    monkeypatch.setattr(Replication, "do", waiting)
    return going


def test_neither_pushes_nor_pulls_are_answered_before_the_backup_has_them(held_up: threading.Event) -> None:
    with cluster(SPEC, 2, copies=2) as (master, worker):
        owner = master.map.places[0].owner
        held_up.clear()
        pushed = push(worker, 3, 0, owner)
        assert not is_done(pushed)
        pulled = worker.connection(owner).send(Pull(worker.map.generation, 1, [0], [0]))
        assert not is_done(pulled)
        again = worker.connection(owner)  # the same name, from another connection's point of view
        assert not is_done(again.send(Pull(worker.map.generation, 1, [0], [0])))
        held_up.set()
        assert is_done(pushed, WAIT_SECONDS) and is_done(pulled, WAIT_SECONDS)


def test_an_owner_does_not_go_on_without_its_backup_by_itself(held_up: threading.Event) -> None:
    with cluster(SPEC, 2, copies=2) as (master, worker):
        place = master.map.places[0]
        held_up.clear()
        pushed = push(worker, 3, 0, place.owner)
        assert not is_done(pushed)
        with master.changed:  # the master is told, and says nothing yet
            for server in master.servers.values():
                if server.ps_id == place.backup:
                    server.close()
            assert not is_done(pushed, 0.5)
            held_up.set()
            assert not is_done(pushed, 0.3)
        assert is_done(pushed, WAIT_SECONDS)  # a map without the backup
        with master.changed:
            del master.servers[place.backup]


def test_a_copy_is_waited_for_before_the_master_hears_of_it() -> None:
    """Else it could be made the owner without what was answered meanwhile."""
    with cluster(SPEC, 1, copies=2) as (master, worker):
        late: list[tuple[str, object]] = []
        hear = FakeMaster._hear_copied

        def held_back(self: FakeMaster, ps_id: str, note: object) -> None:
            late.append((ps_id, note))

        master._hear_copied = held_back.__get__(master)  # type: ignore[method-assign]
        joining = master.add("ps-1")
        with master.changed:
            assert master.changed.wait_for(lambda: len(late) == SPEC.slots, WAIT_SECONDS)
        copied = [slot for slot, place in enumerate(master.map.places) if place.joining == "ps-1"]
        assert copied
        worker.refresh()
        for slot in copied:
            answer = push(worker, 4, slot, "ps-0").result(WAIT_SECONDS).header
            assert isinstance(answer, Pushed) and answer.answers[0].code == CODES[Verdict.APPLIED]
            assert TaskName(DATASET, 0, 4) in joining.holdings.others[slot].record.applied
        for ps_id, note in late:
            with master.changed:
                hear(master, ps_id, note)  # type: ignore[arg-type]
        time.sleep(0.1)
        master._hear_copied = hear.__get__(master)  # type: ignore[method-assign]
        master.settled()


def test_a_frozen_slot_answers_pulls_and_what_is_applied_and_nothing_else() -> None:
    with cluster(SPEC, 1) as (master, worker):
        worker.run([0])
        told: list[object] = []
        hear = FakeMaster._hear_copied
        master._hear_copied = lambda ps_id, note: told.append((ps_id, note))  # type: ignore[method-assign]
        master.add("ps-1")
        with master.changed:
            moving = [slot for slot, place in enumerate(master.map.places) if place.target]
            assert moving and master.changed.wait_for(lambda: len(told) == len(moving), WAIT_SECONDS)
        worker.refresh()
        slot = moving[0]
        codes = []
        for task in (5, 0):
            answer = push(worker, task, slot, "ps-0").result(WAIT_SECONDS).header
            assert isinstance(answer, Pushed)
            codes.append(answer.answers[0].code)
        assert codes == [CODES[Verdict.FROZEN], CODES[Verdict.APPLIED_BEFORE]]
        for ps_id, note in told:  # type: ignore[misc]
            with master.changed:
                hear(master, ps_id, note)
        master.settled()
        worker.refresh()
        assert worker.applied()[slot] == {0}


def test_a_slot_moves_once_its_backup_has_all_of_it(held_up: threading.Event) -> None:
    """Its backup may stay that of the new owner, which would answer "applied before" to what that lacks."""
    with cluster(SPEC, 2, copies=2) as (master, worker):
        before = master.map.places[0]
        names = (f"ps-{number}" for number in range(2, 100))
        joins = next(name for name in names if ranking(0, [before.owner, before.backup, name])[0] == name)
        held_up.clear()
        pushed = push(worker, 3, 0, before.owner)
        assert not is_done(pushed)
        master.add(joins)
        with master.changed:
            assert not master.changed.wait_for(lambda: master.map.places[0].owner == joins, 0.5)
        held_up.set()
        with master.changed:
            assert master.changed.wait_for(lambda: master.map.places[0].owner == joins, WAIT_SECONDS)
            backup = master.servers[master.map.places[0].backup].holdings
        master.settled()
        assert TaskName(DATASET, 0, 3) in backup.others[0].record.applied


def test_a_snapshot_is_written_once_the_backup_has_what_is_in_it(
    held_up: threading.Event, tmp_path: Path
) -> None:
    with cluster(SPEC, 2, copies=2, url=str(tmp_path)) as (master, worker):
        slot = next(s for s, place in enumerate(master.map.places) if place.owner == "ps-0")
        held_up.clear()
        pushed = push(worker, 3, slot, "ps-0")
        assert not is_done(pushed)
        server = master.servers["ps-0"]
        saving = threading.Thread(target=server.save, args=(ps_pb2.SaveSlots(request="r"),))
        saving.start()
        saving.join(0.3)
        assert saving.is_alive() and not list((tmp_path / "slots").rglob("*-1"))
        held_up.set()
        saving.join(WAIT_SECONDS)
        assert list((tmp_path / "slots" / str(slot)).rglob("*-1")) and is_done(pushed, WAIT_SECONDS)


@pytest.mark.parametrize(
    "changes",
    [
        {"sender": "ps-9"},
        {"version": 3},
        {"version": 1},
        {"life": 1},
        {"task": 0},
        {"generation": 1},
    ],
)
def test_a_backup_takes_only_what_its_owner_applies_next(
    changes: dict[str, int | str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replication, "MAP_SECONDS", 0.1)
    with cluster(SPEC, 2, copies=2) as (master, worker):
        worker.run([0])
        place = master.map.places[0]
        backup = master.servers[place.backup].holdings.others[0]
        good = Replicate(
            generation=master.map.generation,
            sender=place.owner,
            slot=0,
            life=0,
            version=2,
            lease=60,
            attempt=1,
            dataset=DATASET,
            epoch=0,
            task=1,
            rates=rates(SPEC),
            scale=1.0,
        )
        connection = worker.connection(place.backup)
        if "generation" in changes:
            changes = {"generation": master.map.generation + 1000}
        bad = msgspec.structs.replace(good, **changes)
        assert connection.send(bad).result(10).header == Replicated(0, -1)
        assert backup.record.version == 1
        assert connection.send(good).result(10).header == Replicated(0, 2)
        with backup.lock:  # as it was, for the rest of the cluster
            assert TaskName(DATASET, 0, 1) in backup.record.applied
