"""A worker's client at parameter servers that move, die and are not there yet."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import pytest
import torch

from elastane.slots import slot_client, slot_requests
from elastane.slots.access import PulledSlots, PushedTask, PushOutcome, Wanted
from elastane.slots.frames import PsMemoryError, SlotFrameError
from elastane.slots.map_message import ToldMap
from elastane.slots.slot_client import PsUnreachableError, SlotClient
from elastane.tables.by_slot import TableIds, bounds_of, joined
from elastane.tables.layout import Ids, PushPart, RowGradients
from elastane_ps.memory import Room
from elastane_slots.pushes import Pulled
from unit.ps.cluster import DATASET, DIGEST, WAIT_SECONDS, FakeMaster, cluster
from unit.tables.models import ids_of, initial, rates, small

SPEC = small(slots=6, dense="sgd", row="row_sgd")


class Watch:
    """The newest map of a master of this process."""

    def __init__(self, master: FakeMaster) -> None:
        self._master = master

    @property
    def newest(self) -> ToldMap:
        with self._master.changed:
            return ToldMap(self._master.map, (), dict(self._master.addresses))

    def beyond(self, generation: int, seconds: float) -> ToldMap:
        with self._master.changed:
            self._master.changed.wait_for(lambda: self._master.map.generation > generation, seconds)
            return self.newest

    def close(self) -> None:
        pass


@contextmanager
def client_of(
    master: FakeMaster, timeout_seconds: float = 60.0, require_open: Callable[[], None] = lambda: None
) -> Iterator[SlotClient]:
    client = SlotClient(
        master.spec,
        Watch(master),  # type: ignore[arg-type]
        digest=DIGEST,
        initial=lambda slot: initial(master.spec, slot),
        timeout_seconds=timeout_seconds,
        require_open=require_open,
        encrypted=False,
    )
    yield client
    client.close()


def everything() -> Wanted:
    rows = []
    for table in range(len(SPEC.tables)):
        ids = [ids_of(SPEC, table, slot, 10) for slot in range(SPEC.slots)]
        rows.append(TableIds(table, np.concatenate(ids), bounds_of(map(len, ids))))
    return Wanted(range(SPEC.slots), range(SPEC.slots), tuple(rows))


def ids_in(slot: int) -> tuple[tuple[int, Ids], ...]:
    return tuple((table, ids_of(SPEC, table, slot, 10)) for table in range(len(SPEC.tables)))


def pushed(task: int, lease: int, seen: Mapping[int, Pulled], value: float = 1.0) -> PushedTask:
    parts = {}
    for slot in range(SPEC.slots):
        layout = SPEC.layout(slot)
        blocks = {
            position: torch.full((block.end - block.start,), value)
            for position, block in enumerate(layout.blocks)
        }
        rows = [
            RowGradients(table, ids, torch.full((len(ids), SPEC.tables[table].width), value))
            for table, ids in ids_in(slot)
        ]
        parts[slot] = PushPart(blocks, tuple(rows))
    return PushedTask(DATASET, 0, task, 1, lease, 0, rates(SPEC), joined(parts, SPEC.slots), dict(seen))


def train(client: SlotClient, master: FakeMaster, task: int) -> PushOutcome:
    with master.changed:
        master.leases += 1
        lease = master.leases
    pulled = client.pull(lease, 0, everything())
    if pulled.returned:
        return PushOutcome("returned", pulled.returned)
    return client.push(pushed(task, lease, pulled.seen))


def values(pulled: PulledSlots) -> bytes:
    """What was pulled, in an order of its own."""
    found = [bytes(part) for slot in sorted(pulled.blocks) for part in pulled.blocks[slot]]
    for table, ids, rows in pulled.rows:
        width = len(rows) // len(ids)
        found += sorted(
            bytes([table]) + bytes(memoryview(ids[at : at + 1]).cast("B")) + bytes(rows[at * width :][:width])
            for at in range(len(ids))
        )
    return b"".join(sorted(found))


def test_slots_get_their_initial_values_with_the_first_pull() -> None:
    master = FakeMaster(SPEC)
    master.add("ps-0")
    master.settled()
    with client_of(master) as client:
        pulled = client.pull(1, 0, everything())
        assert sorted(pulled.blocks) == sorted(pulled.seen) == list(range(SPEC.slots))
        for slot, blocks in pulled.blocks.items():
            assert [bytes(part) for part in blocks] == [bytes(part) for part in initial(SPEC, slot)]
        assert train(client, master, 0).kind == "done"
    master.close()


def test_many_tasks_while_servers_come_and_die_with_backups_are_applied_once() -> None:
    with cluster(SPEC, 3, copies=2) as (master, worker), client_of(master) as client:
        stop = threading.Event()

        def faults() -> None:
            for number in range(3):
                stop.wait(0.3)
                master.kill(f"ps-{number}")
                master.add(f"ps-{number + 3}")
                master.settled()

        with ThreadPoolExecutor(1) as pool:
            faulty = pool.submit(faults)
            tasks = 0
            while not faulty.done() or tasks < 20:
                assert train(client, master, tasks).kind == "done"
                tasks += 1
            faulty.result()
        worker.refresh()
        assert worker.applied() == [set(range(tasks))] * SPEC.slots


def test_the_same_push_again_is_answered_and_changes_nothing() -> None:
    with cluster(SPEC, 2) as (master, _), client_of(master) as client:
        master.leases = 1
        pulled = client.pull(1, 0, everything())
        task = pushed(0, 1, pulled.seen)
        assert client.push(task).kind == "done"
        before = values(client.pull(0, 0, everything()))
        again = client.push(task)
        assert again.kind == "done" and again.lives_sum == 0
        assert values(client.pull(0, 0, everything())) == before
        assert before != values(pulled)


def test_a_slot_that_went_back_gives_the_task_back(tmp_path: object) -> None:
    with (
        cluster(SPEC, 1, url=f"file://{tmp_path}", seconds=0.05) as (master, _),
        client_of(master) as client,
    ):
        assert train(client, master, 0).kind == "done"
        master.leases += 1
        lease = master.leases
        pulled = client.pull(lease, 0, everything())
        with master.changed:
            saved = master.changed.wait_for(
                lambda: {s.slot for note in master.saved for s in note.slots} == set(range(SPEC.slots)), 60
            )
        assert saved
        master.kill("ps-0")
        master.add("ps-1")
        master.served()
        task = pushed(1, lease, pulled.seen)
        outcome = client.push(task)
        assert outcome.kind == "returned" and "snapshot" in outcome.reason
        # A pull under the old lease says so, too, and the script can go on to the end of its block.
        late = client.pull(lease, 0, everything())
        assert late.returned and len(late.seen) == SPEC.slots
        assert train(client, master, 1).kind == "done"


def test_a_pull_waits_for_a_server_and_for_the_map_of_its_lease() -> None:
    master = FakeMaster(SPEC)
    with client_of(master) as client, ThreadPoolExecutor(1) as pool:
        asked = pool.submit(client.pull, 1, 1, everything())
        time.sleep(0.2)
        assert not asked.done()
        master.add("ps-0")
        assert len(asked.result(60).seen) == SPEC.slots
    master.close()


def test_slots_that_nobody_serves_are_told_after_the_limit() -> None:
    master = FakeMaster(SPEC)
    with client_of(master, timeout_seconds=0.3) as client:
        with pytest.raises(PsUnreachableError, match=r"were not served for 0\.3 s") as raised:
            client.pull(0, 0, everything())
        assert raised.value.facts["slots"] == list(range(SPEC.slots))
        with pytest.raises(PsUnreachableError, match="generation 99"):
            client.pull(0, 99, everything())
    master.close()


def test_the_end_of_the_job_ends_the_waiting() -> None:
    over = threading.Event()

    def require_open() -> None:
        if over.is_set():
            raise SystemExit(82)

    master = FakeMaster(SPEC)
    with client_of(master, require_open=require_open) as client, ThreadPoolExecutor(2) as pool:
        asked = [pool.submit(client.pull, 0, generation, everything()) for generation in (0, 99)]
        time.sleep(0.1)
        assert not any(one.done() for one in asked)
        over.set()
        assert [type(one.exception(30)) for one in asked] == [SystemExit] * 2
    master.close()


def test_what_a_server_refuses_is_told_and_not_tried_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slot_client, "REFUSED_SECONDS", 0.2)
    with cluster(SPEC, 1) as (master, _), client_of(master) as client:
        wrong = np.array([SPEC.tables[0].rows + 1])
        with pytest.raises(SlotFrameError, match=r"refused a frame: .*has no row"):
            client.pull(0, 0, Wanted([0], (), (TableIds(0, wrong, bounds_of([1] + [0] * (SPEC.slots - 1))),)))


def test_dense_tensors_that_do_not_fit_are_refused_and_taken_where_they_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(slot_client, "REFUSED_SECONDS", 0.2)
    needed = max(2 * sum(SPEC.layout(slot).initial_sections) for slot in range(SPEC.slots))
    left = [needed - 1]
    monkeypatch.setattr(slot_requests, "REQUEST_BYTES_MAX", 1)  # each slot in a request of its own
    monkeypatch.setattr(Room, "left_bytes", lambda room: left[0])
    master = FakeMaster(SPEC)
    master.add("ps-0")
    master.settled()
    with client_of(master) as client:
        with pytest.raises(PsMemoryError, match=f"dense tensors.* need {needed} bytes, and {left[0]} are"):
            client.pull(1, 0, everything())
        left[0] = needed
        assert len(client.pull(1, 0, everything()).seen) == SPEC.slots
    master.close()


def test_large_requests_are_divided(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slot_requests, "REQUEST_BYTES_MAX", 1000)
    with cluster(SPEC, 2) as (master, worker), client_of(master) as client:
        assert train(client, master, 0).kind == "done"
        worker.refresh()
        assert worker.applied() == [{0}] * SPEC.slots


def test_two_threads_share_a_client() -> None:
    with cluster(SPEC, 2) as (master, worker), client_of(master) as client:
        with ThreadPoolExecutor(4) as pool:
            outcomes = list(pool.map(lambda task: train(client, master, task), range(24)))
        assert {outcome.kind for outcome in outcomes} == {"done"}
        worker.refresh()
        assert worker.applied() == [set(range(24))] * SPEC.slots


def test_pushes_that_are_begun_together_are_applied_once() -> None:
    with cluster(SPEC, 2) as (master, worker), client_of(master) as client:
        assert train(client, master, 0).kind == "done"  # connections stand from here on
        seen = client.pull(0, 0, everything()).seen
        begun = [client.begin_push(pushed(task, 1 + task, seen)) for task in range(1, 13)]
        assert {future.result(WAIT_SECONDS).kind for future in begun} == {"done"}
        worker.refresh()
        assert worker.applied() == [set(range(13))] * SPEC.slots


def test_a_pull_that_is_begun_goes_on_elsewhere_if_its_owner_is_silent() -> None:
    with cluster(SPEC, 2, copies=2) as (master, _), client_of(master) as client:
        assert train(client, master, 0).kind == "done"
        silent = master.servers["ps-0"]
        slot = min(silent.holdings.owned)
        with silent.holdings.owned[slot].lock:
            begun = client.begin_pull(0, 0, everything())
            with master.changed:
                del master.servers["ps-0"], master.addresses["ps-0"]
                master._set(master.map.left("ps-0", master.servers, master.leases))
            assert sorted(begun.result(WAIT_SECONDS).seen) == list(range(SPEC.slots))
        silent.close()


def test_what_is_begun_raises_its_error_where_it_is_read() -> None:
    master = FakeMaster(SPEC)
    with client_of(master, timeout_seconds=0.3) as client:
        begun = client.begin_pull(0, 0, everything())
        with pytest.raises(PsUnreachableError, match=r"were not served for 0\.3 s"):
            begun.result(WAIT_SECONDS)
    master.close()
