"""The client: retries up to a stated time, typed errors, watches that go on after a break."""

from __future__ import annotations

import itertools
import os
import queue
import socket
import sys
import threading
import time

import grpc
import pytest
from google.rpc import code_pb2

import patience
from elastane_common.client import MasterClient
from elastane_common.client_errors import ClientClosedError, RequestRefusedError
from elastane_common.errors import MasterUnreachableError, RefusedError
from elastane_proto.v1 import errors_pb2, job_pb2, ring_pb2, shard_pb2
from unit.cli.fake_master import FakeMaster, refuse, serving


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def test_a_refusal_is_typed_with_hint_and_facts() -> None:
    with (
        serving(FakeMaster()) as address,
        MasterClient(address) as client,
        pytest.raises(RequestRefusedError) as caught,
    ):
        client.get_job("other")
    error = caught.value
    assert isinstance(error, RefusedError)
    assert error.reason == "not_found" and error.facts == {"job": "other"}
    assert error.hint == "look with elastane jobs" and "no job 'other'" in str(error)


def test_retryable_errors_are_retried_with_the_same_request_id() -> None:
    master = FakeMaster()
    master.fail_next = [
        lambda context: context.abort(grpc.StatusCode.UNAVAILABLE, "starting"),
        lambda context: context.abort(grpc.StatusCode.CANCELLED, "ending"),
        lambda context: refuse(
            context,
            errors_pb2.ERROR_REASON_STORE_UNAVAILABLE,
            "no store",
            code=code_pb2.UNAVAILABLE,
            retryable=True,
        ),
    ]
    waits: list[str] = []
    with (
        serving(master) as address,
        MasterClient(address, on_wait=lambda seconds, error: waits.append(error)) as client,
    ):
        job = client.scale_job("train", 2, 3)
    assert (job.settings.workers_min, job.settings.workers_max) == (2, 3)
    assert len(master.requests) == 4 and len({request.request_id for request in master.requests}) == 1
    assert waits == ["starting", "ending", "no store"]


def test_an_error_without_details_is_not_retried() -> None:
    master = FakeMaster()
    master.fail_next = [lambda context: context.abort(grpc.StatusCode.INTERNAL, "a bug")]
    with (
        serving(master) as address,
        MasterClient(address) as client,
        pytest.raises(RequestRefusedError, match="a bug") as caught,
    ):
        client.get_job("train")
    assert caught.value.reason == "internal" and len(master.requests) == 1


def test_no_master_is_an_error_after_the_stated_time() -> None:
    started = time.monotonic()
    with (
        MasterClient(f"127.0.0.1:{free_port()}", timeout_seconds=0.3) as client,
        pytest.raises(MasterUnreachableError, match=r"within 0.3 s"),
    ):
        client.list_jobs()
    assert time.monotonic() - started < 20


def test_a_master_that_comes_late_is_found() -> None:
    port = free_port()
    ready = threading.Event()
    with MasterClient(
        f"127.0.0.1:{port}", timeout_seconds=60, on_wait=lambda seconds, error: ready.set()
    ) as client:
        found: list[job_pb2.Job] = []
        thread = threading.Thread(target=lambda: found.extend(client.list_jobs()))
        thread.start()
        assert ready.wait(30)
        with serving(FakeMaster(), f"127.0.0.1:{port}"):
            thread.join(30)
    assert [job.name for job in found] == ["train"]


def test_the_next_address_is_asked_when_one_does_not_answer() -> None:
    with (
        serving(FakeMaster()) as address,
        MasterClient(f"127.0.0.1:{free_port()},{address}", timeout_seconds=30) as client,
    ):
        assert client.get_job("train").name == "train"


def test_closing_ends_a_call_that_waits() -> None:
    waiting = threading.Event()
    client = MasterClient(
        f"127.0.0.1:{free_port()}",
        timeout_seconds=float("inf"),
        on_wait=lambda seconds, error: waiting.set(),
    )
    errors: list[Exception] = []

    def call() -> None:
        try:
            client.list_jobs()
        except (ClientClosedError, MasterUnreachableError) as error:
            errors.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    assert waiting.wait(30)
    client.close()
    thread.join(30)
    assert not thread.is_alive() and len(errors) == 1


CLOSED_BETWEEN = """
import threading
from elastane_common.client import MasterClient
from elastane_common.client_errors import ClientClosedError
from elastane_proto.v1 import job_pb2, job_pb2_grpc

client = MasterClient("127.0.0.1:1")
closing = threading.Thread(target=client.close)

def stub(channel):
    closing.start()
    closing.join(0.3)
    return job_pb2_grpc.JobServiceStub(channel)

try:
    client.retried(stub, lambda jobs: jobs.List(job_pb2.JobServiceListRequest(), timeout=10))
except ClientClosedError as error:
    print(error)
"""


def test_a_client_that_is_closed_while_a_call_begins_does_not_end_the_process() -> None:
    """gRPC makes a stub of a closed channel by reading through a null pointer."""
    ended = patience.run(
        [sys.executable, "-c", CLOSED_BETWEEN],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (ended.returncode, ended.stdout) == (0, "the connection to the master was closed\n"), ended.stderr


def test_only_job() -> None:
    master = FakeMaster()
    with serving(master) as address, MasterClient(address) as client:
        assert client.only_job(None) == "train"
        assert client.only_job("named") == "named"
        master.jobs["other"] = job_pb2.Job(name="other")
        with pytest.raises(RequestRefusedError, match="name one of: other, train"):
            client.only_job(None)
        master.jobs.clear()
        with pytest.raises(RequestRefusedError, match="no job"):
            client.only_job(None)


def test_events_go_on_after_a_break_without_repeating() -> None:
    master = FakeMaster()
    master.event_streams_broken = 2
    with serving(master) as address, MasterClient(address) as client:
        events = list(itertools.islice(client.events("train", follow=True), 3))
    assert [event.sequence for event in events] == [1, 2, 3]


def test_a_quiet_job_is_followed_through_a_restart_long_after_its_last_event(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing was said for longer than a master may be away: that is no absence."""
    monkeypatch.setattr("elastane_common.connection.STOOD_SECONDS", 0.3)
    master = FakeMaster()
    heard: queue.SimpleQueue[int | str] = queue.SimpleQueue()

    def follow(client: MasterClient) -> None:
        try:
            for event in client.events("train", since=4, follow=True):
                heard.put(event.sequence)
        except MasterUnreachableError as error:
            heard.put(str(error))

    with serving(master) as address, MasterClient(address, timeout_seconds=0.2) as client:
        threading.Thread(target=follow, args=(client,), daemon=True).start()
        for _ in range(2):
            stream = master.following.get(timeout=30)
            with pytest.raises(queue.Empty):
                heard.get(timeout=0.5)  # the time in which nothing is said is what matters here
            stream.set()
        master.events.append(ring_pb2.Event(sequence=4, kind="worker_joined"))
        master.following.get(timeout=30).set()
        assert heard.get(timeout=30) == 4


def test_past_events_end() -> None:
    with serving(FakeMaster()) as address, MasterClient(address) as client:
        assert [event.sequence for event in client.events("train", since=2)] == [2, 3]


def test_a_watch_ends_when_the_client_is_closed() -> None:
    with serving(FakeMaster()) as address:
        client = MasterClient(address)
        first = threading.Event()
        seen: list[int] = []

        def watch() -> None:
            for event in client.events("train", follow=True):
                seen.append(event.sequence)
                if len(seen) == 3:
                    first.set()

        thread = threading.Thread(target=watch)
        thread.start()
        assert first.wait(30)
        client.close()
        thread.join(30)
        assert not thread.is_alive()


def test_a_watch_without_a_master_gives_up_after_the_stated_time() -> None:
    with (
        MasterClient(f"127.0.0.1:{free_port()}", timeout_seconds=0.3) as client,
        pytest.raises(MasterUnreachableError),
    ):
        next(client.watch_job("train"))


def test_a_watch_of_nothing_is_refused_at_once() -> None:
    with (
        serving(FakeMaster()) as address,
        MasterClient(address) as client,
        pytest.raises(RequestRefusedError),
    ):
        next(client.watch_job("nothing"))


def test_all_pages_of_the_audit_log() -> None:
    master = FakeMaster()
    master.history = [shard_pb2.AuditEntry(dataset="d", step=step) for step in range(8)]
    with serving(master) as address, MasterClient(address) as client:
        assert [entry.step for entry in client.audit_log("train")] == list(range(8))


def test_a_message_that_is_too_large_is_not_retried() -> None:
    master = FakeMaster()
    master.fail_next = [lambda context: context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too large")]
    with (
        serving(master) as address,
        MasterClient(address) as client,
        pytest.raises(RequestRefusedError, match="too large"),
    ):
        client.get_job("train")
    assert len(master.requests) == 1


def test_an_address_is_needed() -> None:
    with pytest.raises(ValueError, match="no address"):
        MasterClient(" , ")


def test_a_proxy_is_not_asked_for_a_master_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    for name in ("no_proxy", "NO_PROXY", "no_grpc_proxy"):
        monkeypatch.delenv(name, raising=False)
    with serving(FakeMaster()) as address, MasterClient(address, timeout_seconds=2.0) as client:
        assert [job.name for job in client.list_jobs()] == ["train"]


def test_a_call_that_may_take_long_does_not_wait_as_long_for_a_master_that_has_gone() -> None:
    with MasterClient(f"127.0.0.1:{free_port()}", timeout_seconds=0.5) as client:
        began = time.monotonic()
        with pytest.raises(MasterUnreachableError):
            client.checkpoint_slots("job", wait_seconds=600.0)
    assert time.monotonic() - began < 60.0
