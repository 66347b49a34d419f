"""What nobody should send to a parameter server changes nothing, and costs it nothing."""

from __future__ import annotations

import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress

import msgspec
import numpy as np
import pytest

from elastane.slots import frames
from elastane.slots.connection import PsConnection, Reply, connect
from elastane.slots.frames import (
    CODES,
    Init,
    Pull,
    Push,
    Pushed,
    Replicate,
    SlotFrameError,
)
from elastane.slots.handshake import GREETING
from elastane.slots.wire import Piece, pad, write_frame
from elastane_ps import serving
from elastane_ps.staging import Staging
from elastane_slots.pushes import Verdict
from unit.ps.cluster import DATASET, FakeMaster, Worker, cluster
from unit.tables.models import ids_of, rates, small

SPEC = small(slots=4)
#: Has blocks.
SLOT = next(slot for slot in range(4) if SPEC.layout(slot).blocks)


@pytest.fixture(scope="module")
def running() -> Iterator[tuple[FakeMaster, Worker]]:
    with cluster(SPEC) as (master, worker):
        worker.run(range(3))
        yield master, worker


def connection(running: tuple[FakeMaster, Worker]) -> PsConnection:
    return PsConnection(*running[0].addresses["ps-0"], encrypted=False)


def push(worker: Worker, task: int = 50, **changes: object) -> tuple[Push, list[Piece]]:
    """A good push of one slot, with changes of its header."""
    header, body = worker.push_of(task, 99, worker.pull(task, 1, [SLOT]))
    return msgspec.structs.replace(header, **changes), body


def rows_push(ids: list[int], value: float = 1.0, table: int = 0) -> tuple[Push, list[Piece]]:
    """A push of rows of the slot alone, whatever the ids are."""
    width = SPEC.tables[table].width
    body = pad(
        [
            memoryview(np.array(ids, np.int64)).cast("B"),
            memoryview(np.full((len(ids), width), value, np.float32)).cast("B"),
        ]
    )
    rows = [(table, [len(ids)])]
    return Push(1000, 99, 1, DATASET, 0, 60, rates(SPEC), [SLOT], [(0, 0)], [], rows), body


def of_slots(worker: Worker, slots: list[int], **changes: object) -> tuple[Push, list[Piece]]:
    """A push of slots without gradients."""
    nothing: dict[str, object] = {"seen": [(0, 0)] * len(slots), "blocks": [], "rows": []}
    return push(worker, slots=slots, **{**nothing, **changes})[0], []


Bad = Callable[[Worker], tuple[frames.Header, list[Piece]]]
OWN = ids_of(SPEC, 0, SLOT, 3).tolist()
BAD: dict[str, Bad] = {
    "a negative id": lambda w: rows_push([-1]),
    "an id beyond the table": lambda w: rows_push([SPEC.tables[0].rows]),
    "the largest id": lambda w: rows_push([2**63 - 1]),
    "equal ids": lambda w: rows_push([OWN[0], OWN[0]]),
    "ids that descend": lambda w: rows_push([OWN[1], OWN[0]]),
    "rows of another slot": lambda w: rows_push(ids_of(SPEC, 0, (SLOT + 1) % 4, 1).tolist()),
    "a NaN": lambda w: rows_push(OWN, float("nan")),
    "an infinity": lambda w: rows_push(OWN, float("-inf")),
    "a table that is not there": lambda w: push(w, rows=[(7, [1])]),
    "a slot that is not there": lambda w: of_slots(w, [99]),
    "a negative slot": lambda w: of_slots(w, [-1]),
    "slots twice": lambda w: of_slots(w, [1, 1]),
    "slots that descend": lambda w: of_slots(w, [1, 0]),
    "blocks of a slot twice": lambda w: of_slots(w, [SLOT], blocks=[(SLOT, b""), (SLOT, b"")]),
    "blocks of a slot of which nothing is told": lambda w: of_slots(w, [SLOT], blocks=[(SLOT + 1, b"")]),
    "tables that descend": lambda w: of_slots(w, [SLOT], rows=[(1, [0]), (0, [0])]),
    "rows of fewer slots": lambda w: of_slots(w, [SLOT], rows=[(0, [])]),
    "rows of more slots": lambda w: of_slots(w, [SLOT], rows=[(0, [0, 0])]),
    "a negative number of rows": lambda w: of_slots(w, [0, 1], rows=[(0, [-1, 1])]),
    "nothing told of a slot": lambda w: of_slots(w, [SLOT], seen=[]),
    "a negative version": lambda w: of_slots(w, [SLOT], seen=[(0, -1)]),
    "a body that is too long": lambda w: (push(w)[0], [*push(w)[1], bytes(64)]),
    "a body that is too short": lambda w: (push(w)[0], push(w)[1][:-2]),
    "rows that are not sent": lambda w: (push(w, rows=[(0, [10**6])])[0], push(w)[1]),
    "a name where gradients are": lambda w: push(w, names=[SLOT]),
    "a name for a slot twice": lambda w: of_slots(w, [], names=[1, 1]),
    "a name for a slot that is not there": lambda w: of_slots(w, [], names=[99]),
    "a bitmap of too many blocks": lambda w: of_slots(w, [SLOT], blocks=[(SLOT, b"\xff" * 9)]),
    "rates of other groups": lambda w: push(w, rates=[[0.1]]),
    "infinite rates": lambda w: push(w, rates=[[float("inf"), *r[1:]] for r in rates(SPEC)]),
    "no name": lambda w: push(w, dataset=""),
    "a negative task": lambda w: (msgspec.structs.replace(push(w)[0], task=-1), push(w)[1]),
    "a lease of 0": lambda w: push(w, lease=0),
    "too few pulls": lambda w: push(w, pulls=[(0, 1)]),
    "a pull of a slot that is not there": lambda w: (Pull(1, 1, [4], [4]), []),
    "a pull of 2**40 rows": lambda w: (Pull(1, 1, [SLOT], [SLOT], [(0, [2**40])]), []),
    "a pull of blocks of a slot twice": lambda w: (Pull(1, 1, [SLOT], [SLOT, SLOT]), []),
    "a pull of blocks of a slot that is not asked for": lambda w: (Pull(1, 1, [0], [1]), []),
    "a pull of rows of fewer slots": lambda w: (Pull(1, 1, [0, 1], [], [(0, [0])]), []),
    "a pull of a negative number of rows": lambda w: (Pull(1, 1, [0, 1], [], [(0, [-1, 1])]), []),
    "initial values of another model": lambda w: (Init(1, b"x" * 32, []), []),
    "an answer": lambda w: (Pushed(1, []), []),
}


@pytest.mark.parametrize("what", BAD)
def test_it_is_refused_and_changes_nothing(running: tuple[FakeMaster, Worker], what: str) -> None:
    master, worker = running
    before = worker.digests(), worker.applied()
    header, body = BAD[what](worker)
    bad = connection(running)
    with pytest.raises(SlotFrameError, match="refused a frame"):
        bad.send(header, body).result(10)
    assert bad.error is not None  # and the connection is closed
    assert (worker.digests(), worker.applied()) == before
    assert not master.faults


def code_of(future: Future[Reply]) -> int:
    header = future.result(10).header
    assert isinstance(header, Pushed)
    return header.answers[0].code


def test_one_push_sent_twice_at_once_is_applied_once(running: tuple[FakeMaster, Worker]) -> None:
    _, worker = running
    header, body = push(worker, task=70)
    connections = [connection(running) for _ in range(4)]
    codes = sorted(code_of(future) for future in [c.send(header, body) for c in connections])
    assert codes == [CODES[Verdict.APPLIED]] + [CODES[Verdict.APPLIED_BEFORE]] * 3


def test_a_map_that_is_too_old_is_said_to_be(running: tuple[FakeMaster, Worker]) -> None:
    _, worker = running
    header, body = push(worker, task=71, generation=0)
    assert code_of(connection(running).send(header, body)) == CODES[Verdict.OLD_GENERATION]


def test_a_version_that_the_slot_never_had_is_given_back(running: tuple[FakeMaster, Worker]) -> None:
    _, worker = running
    header, body = push(worker, seen=[(0, 9999)])
    assert code_of(connection(running).send(header, body)) == CODES[Verdict.RESTORED]


def test_ten_thousand_equal_ids_are_pulled_and_empty_pushes_count(running: tuple[FakeMaster, Worker]) -> None:
    _, worker = running
    ids = np.full(10_000, OWN[0], np.int64)
    asked = Pull(worker.map.generation, 1, [SLOT], [], [(0, [len(ids)])])
    reply = connection(running).send(asked, pad([memoryview(ids).cast("B")])).result(10)
    rows = np.frombuffer(reply.body[0], np.float32).reshape(-1, 16)
    assert (rows == rows[0]).all()
    header, _ = of_slots(worker, [SLOT], task=72, seen=[(-1, -1)])
    assert code_of(connection(running).send(header)) == CODES[Verdict.APPLIED]


def half(running: tuple[FakeMaster, Worker], share: float) -> None:
    header, body = push(running[1], task=73)
    here, there = socket.socketpair()
    here.settimeout(10)
    total = sum(map(len, body))
    here.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8 * 2**20)
    sent = write_frame(here, header, 1, [b"".join(body)[: min(total, 100_000)]])
    data = there.recv(sent, socket.MSG_WAITALL)
    # The prefix must announce the whole body.
    data = data[:24] + struct.pack("<Q", total) + data[32:]
    raw = connect(*running[0].addresses["ps-0"], encrypted=False)
    raw.sendall(data[: int(len(data) * share)])
    raw.close()


@pytest.mark.parametrize("share", [0.0001, 0.01, 0.5, 1.0])
def test_half_a_frame_is_dropped_whole(running: tuple[FakeMaster, Worker], share: float) -> None:
    _, worker = running
    before = worker.digests()
    half(running, share)
    time.sleep(0.1)
    assert worker.digests() == before
    assert not any(73 in tasks for tasks in worker.applied())


def test_a_sender_that_falls_silent_in_a_frame_is_closed(
    running: tuple[FakeMaster, Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A suspended worker does not keep the memory that all frames share."""
    monkeypatch.setattr(serving, "_SILENCE_SECONDS", 1)
    header, body = push(running[1], task=74)
    raw = connect(*running[0].addresses["ps-0"], encrypted=False)
    raw.settimeout(10)
    raw.sendall(frames.encode(header, 1, sum(map(len, body))) + bytes(64))
    with suppress(ConnectionError):
        while raw.recv(1000):
            pass
    idle = connect(*running[0].addresses["ps-0"], encrypted=False)  # between frames it may be silent
    idle.settimeout(1.5)
    with pytest.raises(TimeoutError):
        idle.recv(1)
    idle.close()


def test_a_frame_of_4_gib_is_refused_by_its_prefix(running: tuple[FakeMaster, Worker]) -> None:
    raw = connect(*running[0].addresses["ps-0"], encrypted=False)
    raw.settimeout(10)
    raw.sendall(struct.pack("<IBBHQIIQ", frames.MAGIC, frames.VERSION, 3, 0, 1, 10, 0, 4 * 2**30))
    while raw.recv(1000):
        pass


def test_noise_is_refused(running: tuple[FakeMaster, Worker]) -> None:
    generator = np.random.default_rng(1)
    for _ in range(20):
        raw = connect(*running[0].addresses["ps-0"], encrypted=False)
        raw.settimeout(10)
        raw.sendall(generator.bytes(int(generator.integers(32, 500))))
        with suppress(OSError):
            raw.shutdown(socket.SHUT_WR)
            while raw.recv(1000):
                pass
    assert running[1].digests()


def test_strangers_have_a_handshakes_time_and_are_bounded(
    running: tuple[FakeMaster, Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "STRANGERS_MAX", 3)
    host, _, port = running[0].addresses["ps-0"][0].rpartition(":")
    silent = [socket.create_connection((host, int(port))) for _ in range(6)]
    ended: set[socket.socket] = set()
    while len(ended) < 3:
        closed, _, _ = select.select([one for one in silent if one not in ended], [], [], 10)
        assert closed, "strangers beyond the limit were not closed"
        ended.update(one for one in closed if not one.recv(1))
    closed, _, _ = select.select([one for one in silent if one not in ended], [], [], 0.2)
    assert not closed
    for one in silent:
        one.close()
    time.sleep(0.2)
    assert running[1].digests()
    wrong = socket.create_connection((host, int(port)))
    wrong.settimeout(10)
    wrong.sendall(GREETING + bytes(32) + bytes(32))
    received = b""
    with suppress(ConnectionError):
        while part := wrong.recv(1000):
            received += part
    assert len(received) == 32  # a nonce, and nothing that proves anything


def test_a_backup_takes_nothing_from_who_does_not_own_the_slot(running: tuple[FakeMaster, Worker]) -> None:
    _, worker = running
    before = worker.digests()
    told = Replicate(
        worker.map.generation, "ps-9", SLOT, 0, 4, 1, 1, DATASET, 0, 99, rates(SPEC), 1.0, b"", [], []
    )
    reply = connection(running).send(told).result(10)
    assert reply.header == frames.Replicated(SLOT, -1)
    assert worker.digests() == before


def test_memory_for_frames_is_bounded() -> None:
    staging = Staging(100)
    first = staging.take(80)
    taken: list[int] = []
    waiting = threading.Thread(target=lambda: taken.append(len(staging.take(50))))
    waiting.start()
    time.sleep(0.05)
    assert not taken
    staging.give_back(len(first))
    waiting.join(5)
    assert taken == [50]
    staging.give_back(50)
    assert len(staging.take(1000)) == 1000  # one alone may be larger


def test_slots_without_values_say_so() -> None:
    master = FakeMaster(SPEC)
    try:
        master.add("ps-0")
        master.served()
        worker = Worker(master)
        worker.refresh()
        connected = PsConnection(*master.addresses["ps-0"], encrypted=False)
        pulled = connected.send(Pull(worker.map.generation, 1, [SLOT], [SLOT])).result(10)
        assert pulled.header.answers[0].code == frames.CODE_UNINITIALISED  # type: ignore[union-attr]
        header = Push(worker.map.generation, 1, 1, DATASET, 0, 0, rates(SPEC), [SLOT], [(0, 0)])
        assert code_of(connected.send(header)) == frames.CODE_UNINITIALISED
        worker.initialise()
        worker.initialise(seed=5)  # the first counts
        first = worker.digests()
        assert code_of(connected.send(header)) == CODES[Verdict.APPLIED]
        assert worker.digests() == first
        connected.close()
        worker.close()
    finally:
        master.close()
