"""Each rpc with messages nobody sends: never a crash, a hang, a changed state or an untyped error."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor import MethodDescriptor
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from elastane_master.app import services
from elastane_proto.v1 import ps_pb2, ring_pb2
from fuzz.messages import messages, mutated, spoiled, wire
from fuzz.server import FAULTS_OF_OURS, FuzzedMaster, fuzzed_master
from fuzz.templates import attend_requests, hello, ps_hello, ps_requests, request_of, slot_model

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "25"))
"""Of each rpc; `make fuzz` takes more, and other ones every time."""

WAITS = {"LeaseTasks", "Checkpoint", "CheckpointSlots"}
WAIT_SECONDS = 0.3
REACHED = {
    "Create",
    "Scale",
    "CreateDataset",
    "LeaseTasks",
    "GetProgress",
    "ListTasks",
    "GetAuditLog",
    "GetRing",
    "GetWorkerFigures",
}
FUZZED = settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize="FUZZ_EXAMPLES" not in os.environ,
    print_blob=True,
    database=None,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=list(HealthCheck),
)


def path_of(method: MethodDescriptor) -> str:
    return f"/{method.containing_service.full_name}/{method.name}"


METHODS = [method for service in services() for method in service.methods]
UNARY = [method for method in METHODS if not method.server_streaming]
WATCHES = [method for method in METHODS if method.server_streaming and not method.client_streaming]
ATTEND = "/elastane.v1.RingService/Attend"
RELAY = "/elastane.v1.RingService/Relay"
ATTEND_SLOTS = "/elastane.v1.SlotService/AttendSlots"


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FuzzedMaster]:
    folder: Path = tmp_path_factory.mktemp("fuzzed")
    with fuzzed_master(folder) as fuzzed:
        yield fuzzed
        fuzzed.check_replay()


@pytest.mark.parametrize("method", UNARY, ids=lambda method: method.name)
def test_unary(master: FuzzedMaster, method: MethodDescriptor) -> None:
    path, waits = path_of(method), method.name in WAITS

    @FUZZED
    @given(wire(request_of(method)))
    def fuzz(payload: bytes) -> None:
        call = master.channel.unary_unary(path)
        try:
            call(payload, timeout=WAIT_SECONDS if waits else 20)
            master.codes[method.name, "OK"] += 1
        except grpc.RpcError as error:
            master.codes[method.name, error.code().name] += 1
            master.check_error(path, error, may_wait=waits)
        master.machine.check()

    fuzz()
    master.check_alive()
    if method.name in REACHED:
        assert master.codes[method.name, "OK"], "no request was right enough to be carried out"
        assert master.codes[method.name, "INVALID_ARGUMENT"]


@pytest.mark.parametrize("method", WATCHES, ids=lambda method: method.name)
def test_watches(master: FuzzedMaster, method: MethodDescriptor) -> None:
    """The first answers of a watch, or its typed refusal; then the watcher leaves."""
    path = path_of(method)

    @settings(FUZZED, max_examples=15)
    @given(wire(request_of(method)))
    def fuzz(payload: bytes) -> None:
        stream = master.channel.unary_stream(path)(payload, timeout=WAIT_SECONDS)
        try:
            for _, _ in zip(range(3), stream, strict=False):
                pass
        except grpc.RpcError as error:
            master.check_error(path, error, may_wait=True)
        stream.cancel()

    fuzz()
    master.check_alive()


@st.composite
def said(draw: st.DrawFn) -> bytes:
    """One message of a worker, nearly right."""
    generation, step = draw(st.sampled_from((1, 1, 2, 3, -1, 2**62))), draw(st.sampled_from((0, 0, 1, 2, -1)))
    template = draw(st.sampled_from(attend_requests(generation, step)))
    kind = template.WhichOneof("message")
    message = ring_pb2.AttendRequest()
    getattr(message, kind).CopyFrom(draw(spoiled(getattr(template, kind))))
    return message.SerializeToString()


ANYTHING = messages(ring_pb2.AttendRequest.DESCRIPTOR).map(lambda message: message.SerializeToString())
SEQUENCES = st.lists(st.one_of(said(), said(), said(), ANYTHING, mutated(said())), max_size=8)


def attend(master: FuzzedMaster, payloads: list[bytes], timeout_seconds: float) -> Any:
    """Sends all, says no more, and reads until the stream ends; the error, or None."""
    stream = master.channel.stream_stream(ATTEND)(iter(payloads), timeout=timeout_seconds)
    try:
        for answer in stream:
            ring_pb2.AttendResponse.FromString(answer)
    except grpc.RpcError as error:
        return error
    return None


def test_streams_that_begin_with_anything(master: FuzzedMaster) -> None:
    @FUZZED
    @given(SEQUENCES)
    def fuzz(payloads: list[bytes]) -> None:
        error = attend(master, payloads, 20)
        if error is not None:
            master.check_error(ATTEND, error)
        master.machine.check()

    fuzz()
    master.check_alive()


def test_streams_of_a_worker_that_says_anything_in_any_order(master: FuzzedMaster) -> None:
    """After a right Hello, so that its messages reach the decisions: a ring is talked nonsense to."""

    @settings(FUZZED, max_examples=2 * EXAMPLES)
    @given(st.sampled_from(("w0", "w1")), SEQUENCES)
    def fuzz(worker: str, payloads: list[bytes]) -> None:
        first = ring_pb2.AttendRequest(hello=hello(worker)).SerializeToString()
        error = attend(master, [first, *payloads], 20)
        if error is not None:
            master.check_error(ATTEND, error)
        master.machine.check()

    fuzz()
    master.check_alive()
    assert master.machine.refused and master.machine.decided


@st.composite
def framed(draw: st.DrawFn) -> bytes:
    """One message of a relay, nearly right: sessions are opened, say anything, and end, in any order."""
    request = ring_pb2.RelayRequest()
    for _ in range(draw(st.integers(0, 6))):
        frame = request.frames.add(session=draw(st.sampled_from((1, 1, 2, 3, 0, 2**64 - 1))))
        match draw(st.sampled_from(("open", "hello", "request", "request", "end"))):
            case "open":
                frame.open.CopyFrom(draw(spoiled(ring_pb2.RelayedCall())))
            case "hello":
                worker = draw(st.sampled_from(("w0", "w1")))
                frame.request = ring_pb2.AttendRequest(hello=hello(worker)).SerializeToString()
            case "request":
                frame.request = draw(st.one_of(said(), said(), ANYTHING, mutated(said())))
            case "end":
                frame.end = draw(st.sampled_from((0, 1, 2, 99)))
    return request.SerializeToString()


ANYTHING_FRAMED = messages(ring_pb2.RelayRequest.DESCRIPTOR).map(lambda one: one.SerializeToString())
FRAMED = st.lists(st.one_of(framed(), framed(), framed(), ANYTHING_FRAMED, mutated(framed())), max_size=6)
FAULTS = {code.value[0] for code in FAULTS_OF_OURS}


def test_streams_of_a_relay_that_carries_anything(master: FuzzedMaster) -> None:
    """No session, whatever the relay says for it, ends with a fault of the master's."""

    @settings(FUZZED, max_examples=2 * EXAMPLES)
    @given(FRAMED)
    def fuzz(payloads: list[bytes]) -> None:
        def requests() -> Iterator[bytes]:
            opening = ring_pb2.RelayRequest()
            for number, worker in ((1, "w0"), (2, "w1")):
                opening.frames.add(session=number).open.SetInParent()
                first = ring_pb2.AttendRequest(hello=hello(worker)).SerializeToString()
                opening.frames.add(session=number, request=first)
            yield opening.SerializeToString()
            yield from payloads
            ends = ring_pb2.RelayRequest()
            for number in (1, 2, 3, 2**64 - 1):
                ends.frames.add(session=number, end=ring_pb2.RELAYED_END_REQUESTS_OVER)
            yield ends.SerializeToString()

        stream = master.channel.stream_stream(RELAY)(requests(), timeout=20)
        try:
            for payload in stream:
                for answer in ring_pb2.RelayResponse.FromString(payload).answers:
                    ring_pb2.AttendResponse.FromString(answer.response)
                    assert answer.status.code not in FAULTS, answer.status
        except grpc.RpcError as error:
            master.check_error(RELAY, error)
        master.machine.check()

    fuzz()
    master.check_alive()


@st.composite
def told(draw: st.DrawFn) -> bytes:
    """One message of a parameter server, nearly right."""
    slot, life = draw(st.sampled_from((0, 1, 3, 4, 2**32 - 1))), draw(st.sampled_from((0, 0, 1, -1)))
    generation = draw(st.sampled_from((1, 1, 2, 3, 0, -1, 2**62)))
    template = draw(st.sampled_from(ps_requests(slot, life, generation)))
    kind = template.WhichOneof("message")
    message = ps_pb2.AttendSlotsRequest()
    getattr(message, kind).CopyFrom(draw(spoiled(getattr(template, kind))))
    return message.SerializeToString()


ANYTHING_TOLD = messages(ps_pb2.AttendSlotsRequest.DESCRIPTOR).map(lambda one: one.SerializeToString())
TOLD = st.lists(st.one_of(told(), told(), told(), ANYTHING_TOLD, mutated(told())), max_size=8)


def test_streams_of_a_parameter_server_that_says_anything_in_any_order(master: FuzzedMaster) -> None:
    """With and without a right Hello, while a model is registered and slots wait for it."""
    register = ps_pb2.RegisterModelRequest(job="job", worker_id="w0", model=slot_model())
    master.channel.unary_unary("/elastane.v1.SlotService/RegisterModel")(register.SerializeToString())
    master.machine.check()

    @settings(FUZZED, max_examples=2 * EXAMPLES)
    @given(st.sampled_from(("ps-0", "ps-1", "")), TOLD)
    def fuzz(ps_id: str, payloads: list[bytes]) -> None:
        first = ps_pb2.AttendSlotsRequest(hello=ps_hello(ps_id)).SerializeToString()
        stream = master.channel.stream_stream(ATTEND_SLOTS)(iter([first, *payloads]), timeout=20)
        try:
            for answer in stream:
                ps_pb2.AttendSlotsResponse.FromString(answer)
        except grpc.RpcError as error:
            master.check_error(ATTEND_SLOTS, error)
        master.machine.check()

    fuzz()
    master.check_alive()


def test_a_stream_that_never_says_hello_is_ended(master: FuzzedMaster) -> None:
    """Half-open: the connection stands, and nothing comes."""
    ended = threading.Event()

    class Never:
        """An iterator that does not come to its first message while the call lives."""

        def __iter__(self) -> Never:
            return self

        def __next__(self) -> bytes:
            ended.wait(30)
            raise StopIteration

    stream = master.channel.stream_stream(ATTEND)(Never(), timeout=25)
    try:
        with pytest.raises(grpc.RpcError) as caught:
            next(stream)
        detail = master.check_error(ATTEND, caught.value)
        assert detail is not None and "Hello" in detail.hint
    finally:
        ended.set()
