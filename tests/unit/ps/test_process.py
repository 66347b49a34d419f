"""The process: its session with a master, its signals, its exit codes."""

from __future__ import annotations

import os
import queue
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from elastane.slots.connection import PsConnection
from elastane.slots.frames import CODE_OK, Init, Inited
from elastane.slots.wire import pad
from elastane.tables.spec_proto import to_proto
from elastane_common.processes.child import ChildProcess
from elastane_proto.rendezvous import group_secret
from elastane_proto.v1 import ps_pb2, ps_pb2_grpc
from integration.forked_cli import FIXED_VARIABLES
from slow import slow_except
from unit.tables.models import initial, small

SPEC = small(slots=2)
HALTING = Path(__file__).parents[2] / "integration" / "scripts" / "halting_ps.py"
DIGEST = b"d" * 32
WAIT_SECONDS = 60.0


class Master(ps_pb2_grpc.SlotServiceServicer):
    """Says what a test tells it to, and keeps what it hears. streams: how often it was called."""

    def __init__(self) -> None:
        self.heard: queue.SimpleQueue[ps_pb2.AttendSlotsRequest] = queue.SimpleQueue()
        self.says: queue.SimpleQueue[ps_pb2.AttendSlotsResponse | None] = queue.SimpleQueue()
        self.refusal = ""

    def AttendSlots(  # noqa: N802 - as in the proto
        self, requests: Iterator[ps_pb2.AttendSlotsRequest], context: grpc.ServicerContext
    ) -> Iterator[ps_pb2.AttendSlotsResponse]:
        if self.refusal:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, self.refusal)

        def listen() -> None:
            try:
                for request in requests:
                    if not request.HasField("heartbeat"):
                        self.heard.put(request)
                    if request.HasField("bye"):
                        self.says.put(None)
            except grpc.RpcError:
                pass

        threading.Thread(target=listen, daemon=True).start()
        while (message := self.says.get()) is not None:
            yield message

    def say(self, **message: object) -> None:
        self.says.put(ps_pb2.AttendSlotsResponse(**message))  # type: ignore[arg-type]

    def hears(self, kind: str) -> ps_pb2.AttendSlotsRequest:
        """The next message, which must be of this kind."""
        request = self.heard.get(timeout=WAIT_SECONDS)
        assert request.WhichOneof("message") == kind, request
        return request


@pytest.fixture
def master() -> Iterator[tuple[Master, str]]:
    service = Master()
    server = grpc.server(ThreadPoolExecutor(4))
    ps_pb2_grpc.add_SlotServiceServicer_to_server(service, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield service, f"127.0.0.1:{port}"
    service.says.put(None)
    server.stop(0).wait()


class Process(ChildProcess):
    """A parameter server, forked off one of the tests' servers."""

    def code(self, seconds: float = WAIT_SECONDS) -> int | None:
        """Return its exit code; None if it has not ended after so many seconds."""
        status = self.wait(seconds)
        return None if status is None else status.returncode

    def said(self) -> str:
        assert self._log is not None
        return self._log.read_text()


Start = Callable[..., Process]


@pytest.fixture
def start(master: tuple[Master, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    started: list[Process] = []
    logs = tmp_path_factory.mktemp("logs")

    def begin(*command: str, **variables: str) -> Process:
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("ELASTANE_")},
            **FIXED_VARIABLES,
            "ELASTANE_MASTER": master[1],
            "ELASTANE_JOB": "job",
            "ELASTANE_PS_ID": "ps-0",
            "ELASTANE_DRAIN_EXIT_CODE": "80",
            **variables,
        }
        started.append(
            process := Process(
                "ps",
                [sys.executable, *(command or ("-m", "elastane_ps"))],
                environment=environment,
                log=logs / f"{len(started)}.log",
            )
        )
        process.start()
        return process

    yield begin
    for process in started:
        process.kill_group()
        process.wait()


def places(**place: object) -> ps_pb2.SlotMap:
    place = {"owner": "ps-0", "since": 1, **place}
    return ps_pb2.SlotMap(
        generation=int(place.pop("generation", 1)),  # type: ignore[call-overload]
        places=[ps_pb2.SlotPlace(**place) for _ in range(SPEC.slots)],  # type: ignore[arg-type]
    )


def welcome(master: Master, url: str, slots: ps_pb2.SlotMap) -> None:
    master.say(
        welcome=ps_pb2.PsWelcome(
            map=slots,
            model=to_proto(SPEC, dense_digest=DIGEST),
            settings=ps_pb2.PsSettings(snapshot_url=url),
            heartbeat_seconds=0.2,
        )
    )


def serving(master: Master, url: str) -> ps_pb2.PsHello:
    """Hello, restore, serve."""
    hello = master.hears("hello").hello
    welcome(master, url, places(restoring=True))
    assert {master.hears("restored").restored.slot for _ in range(SPEC.slots)} == {0, 1}
    master.say(map=places(generation=2))
    return hello


def initialise(hello: ps_pb2.PsHello) -> None:
    connection = PsConnection(hello.address, group_secret(hello.key, "job"), encrypted=False)
    body = [part for slot in range(SPEC.slots) for part in pad(initial(SPEC, slot))]
    for _ in range(200):
        reply = connection.send(Init(2, DIGEST, [0, 1]), body).result(WAIT_SECONDS).header
        assert isinstance(reply, Inited)
        if all(code == CODE_OK for _, code in reply.slots):
            break
    else:
        raise AssertionError("it never serves")
    connection.close()


def test_a_process_alone_saves_its_slots_at_sigterm_and_says_bye(
    master: tuple[Master, str], start: Start, tmp_path: Path
) -> None:
    process = start()
    hello = serving(master[0], str(tmp_path))
    assert (hello.ps_id, hello.job, hello.pid, list(hello.held)) == ("ps-0", "job", process.pid, [])
    initialise(hello)
    process.signal(signal.SIGTERM)
    master[0].hears("leaving")
    assert len(master[0].hears("saved").saved.slots) == 2
    master[0].hears("bye")
    assert process.code() == 80
    # The next one has what was saved.
    start()
    assert master[0].hears("hello").hello.process != hello.process
    welcome(master[0], str(tmp_path), places(restoring=True, life=1))
    assert all(master[0].hears("restored").restored.snapshot for _ in range(SPEC.slots))


def test_it_says_again_what_a_broken_stream_may_have_lost(master: tuple[Master, str], start: Start) -> None:
    start()
    master[0].hears("hello")
    welcome(master[0], "", places(restoring=True))
    first = [master[0].hears("restored").restored for _ in range(SPEC.slots)]
    master[0].says.put(None)  # the stream ends
    hello = master[0].hears("hello").hello
    assert hello.generation == 1 and not hello.held
    welcome(master[0], "", places(restoring=True))
    again = [master[0].hears("restored").restored for _ in range(SPEC.slots)]
    assert sorted(note.slot for note in again) == sorted(note.slot for note in first)
    master[0].say(map=places(generation=2))
    master[0].says.put(None)
    hello = master[0].hears("hello").hello
    assert sorted(held.slot for held in hello.held) == [0, 1]
    assert list(hello.lives) == [0] * SPEC.slots


def test_a_drained_process_leaves_when_it_has_no_slot(master: tuple[Master, str], start: Start) -> None:
    process = start()
    serving(master[0], "")
    for generation, owner in ((3, "ps-0"), (4, "ps-1")):
        slots = places(generation=generation, owner=owner)
        slots.processes.add(ps_id="ps-0", address="127.0.0.1:1")
        slots.processes.add(ps_id="ps-1", address="127.0.0.1:2")
        master[0].say(map=slots)
        if owner == "ps-0":
            master[0].say(drain=ps_pb2.PsDrain(reason="asked"))
    master[0].hears("bye")
    assert process.code() == 80


def test_done_ends_it(master: tuple[Master, str], start: Start) -> None:
    process = start()
    serving(master[0], "")
    master[0].say(done=ps_pb2.PsDone(reason="the job is over"))
    assert master[0].hears("bye").bye.reason == "the job is over"
    assert process.code() == 0


def test_a_fault_ends_it_at_once(master: tuple[Master, str], start: Start) -> None:
    process = start()
    master[0].hears("hello")
    welcome(master[0], "", places())  # served, and not here
    assert process.code() == 1
    assert "cannot go on" in process.said()


def test_what_it_cannot_take_of_the_master_ends_it_at_once(master: tuple[Master, str], start: Start) -> None:
    """Else it would serve on by its old map, and never leave."""
    process = start()
    master[0].hears("hello")
    master[0].say(model=to_proto(SPEC, dense_digest=DIGEST))  # before the settings
    assert process.code() == 1
    assert "cannot go on" in process.said()


@pytest.mark.parametrize("state", slow_except(["reads", "saves", "moves"], further=["reads", "moves"]))
def test_it_leaves_within_its_notice_whatever_it_waits_for(
    master: tuple[Master, str], start: Start, tmp_path: Path, state: str
) -> None:
    """The storage hangs; or another process hangs that a slot, which is frozen, moves to."""
    halted = tmp_path / "halted"
    variables = {
        "HALT_FILE": str(halted),
        "ELASTANE_NOTICE_SECONDS": "1",
        "ELASTANE_NOTICE_FILE": str(halted),
    }
    process = start(str(HALTING), HALT_AT={"reads": "read", "saves": "snapshot"}.get(state, ""), **variables)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        slots = places(generation=2, restoring=state == "reads")
        slots.processes.add(ps_id="ps-0", address="127.0.0.1:1")
        slots.processes.add(ps_id="ps-1", address=f"127.0.0.1:{silent.getsockname()[1]}", secret=DIGEST)
        if state == "reads":
            master[0].hears("hello")
            welcome(master[0], str(tmp_path), slots)
        else:
            serving(master[0], str(tmp_path))
            for number in range(3):
                master[0].say(save=ps_pb2.SaveSlots(request=f"r{number}", folder=f"f{number}"))
            for place in slots.places:
                place.target, place.begun = ("ps-1", 2) if state == "moves" else ("", 0)
            master[0].say(map=slots)
            if state == "moves":
                silent.accept()
                halted.write_text("null")  # a notice file that says nothing
        until = time.monotonic() + WAIT_SECONDS
        while not halted.exists() and time.monotonic() < until:
            time.sleep(0.02)
        process.signal(signal.SIGTERM)
        assert process.code(WAIT_SECONDS / 3) == 1


def test_it_leaves_when_it_is_drained_and_its_storage_hangs(
    master: tuple[Master, str], start: Start, tmp_path: Path
) -> None:
    halted = tmp_path / "halted"
    variables = {"HALT_AT": "snapshot", "HALT_FILE": str(halted), "ELASTANE_NOTICE_SECONDS": "1"}
    process = start(str(HALTING), **variables)
    serving(master[0], str(tmp_path))
    for number in range(2):
        master[0].say(save=ps_pb2.SaveSlots(request=f"r{number}", folder=f"f{number}"))
        assert len(master[0].hears("saved").saved.slots) == SPEC.slots
    master[0].say(drain=ps_pb2.PsDrain(reason="asked"))
    assert process.code() == 80
    assert halted.exists() and "storage has done nothing for 1 s" in process.said()


def test_a_refusal_ends_it_with_its_code(master: tuple[Master, str], start: Start) -> None:
    master[0].refusal = "another job"
    process = start()
    assert process.code() == 82
    assert "another job" in process.said()


def test_without_a_name_it_does_not_start(start: Start) -> None:
    process = start(ELASTANE_PS_ID="")
    assert process.code() == 82
    assert "ELASTANE_PS_ID" in process.said()
