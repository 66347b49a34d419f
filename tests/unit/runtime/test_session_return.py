"""A worker's session with masters that go away and come back: when it looks again, and when it gives up."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from elastane.runtime import session, session_machine
from elastane.runtime.session import MasterSession
from elastane_common.errors import ElastaneError
from elastane_proto import versions
from elastane_proto.v1 import ring_pb2, ring_pb2_grpc


class Attended(ring_pb2_grpc.RingServiceServicer):
    """Welcomes every worker, and says no more."""

    def __init__(self) -> None:
        self.hellos = threading.Semaphore(0)

    def Attend(self, requests: Any, context: Any) -> Iterator[Any]:  # noqa: N802
        next(requests)
        self.hellos.release()
        yield ring_pb2.AttendResponse(welcome=ring_pb2.Welcome(version=str(versions.PROTOCOL)))
        over = threading.Event()
        context.add_callback(over.set)
        over.wait()


class Forgetful(Attended):
    """Knows the job, except when it is asked for the time in `unknown`, from 1."""

    def __init__(self, unknown: set[int]) -> None:
        super().__init__()
        self.unknown = unknown
        self.asked = 0

    def Attend(self, requests: Any, context: Any) -> Iterator[Any]:  # noqa: N802
        self.asked += 1
        if self.asked in self.unknown:
            context.abort(grpc.StatusCode.NOT_FOUND, "there is no job 'j'")
        next(requests)
        self.hellos.release()
        yield ring_pb2.AttendResponse(welcome=ring_pb2.Welcome(version=str(versions.PROTOCOL)))


@contextmanager
def master(
    attended: Attended, port: int = 0, health_status: int = health_pb2.HealthCheckResponse.SERVING
) -> Iterator[int]:
    """A master that leads, or says something else, on a port of this machine; gives the port."""
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=4), options=[("grpc.so_reuseport", 0)])
    ring_pb2_grpc.add_RingServiceServicer_to_server(attended, server)
    well = health.HealthServicer()
    well.set("", health_status)
    health_pb2_grpc.add_HealthServicer_to_server(well, server)
    port = server.add_insecure_port(f"127.0.0.1:{port}")
    server.start()
    try:
        yield port
    finally:
        server.stop(None).wait()


@contextmanager
def attending(addresses: str, timeout_seconds: float) -> Iterator[list[ElastaneError]]:
    """A session; gives the errors it ended with."""
    errors: list[ElastaneError] = []
    attends = MasterSession(
        addresses,
        hello=ring_pb2.Hello,
        heartbeat=ring_pb2.AttendRequest,
        handler=lambda message: None,
        failed=errors.append,
        timeout_seconds=timeout_seconds,
    )
    attends.start()
    try:
        yield errors
    finally:
        attends.close()


def test_a_master_that_had_nothing_to_say_for_long_was_there_all_the_same() -> None:
    """A standby, or an evaluation: the time-out runs from the break, not from the last message."""
    attended, again, timeout_seconds = Attended(), Attended(), 0.5
    with ExitStack() as first:
        port = first.enter_context(master(attended))
        with attending(f"127.0.0.1:{port}", timeout_seconds) as errors:
            assert attended.hellos.acquire(timeout=20)
            time.sleep(timeout_seconds + 0.1)  # the silence itself is what is tested
            first.close()
            with master(again, port):
                assert again.hellos.acquire(timeout=20), errors
            assert not errors


def test_a_token_that_is_missing_for_a_moment_does_not_end_the_look_for_other_masters(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(session, "SILENT_SECONDS", 0.02)
    token = tmp_path / "token"
    token.write_text("secret")
    monkeypatch.setenv("ELASTANE_TOKEN_FILE", str(token))
    silent, leader = Attended(), Attended()
    moved = threading.Event()
    looked = threading.Semaphore(0)
    leads = MasterSession._leads

    def watched(attends: MasterSession, address: str) -> bool:
        assert moved.wait(20)  # with the token it would find the leader at its first look
        try:
            return leads(attends, address)
        finally:
            looked.release()

    monkeypatch.setattr(MasterSession, "_leads", watched)
    with (
        master(silent) as first,
        master(leader) as second,
        attending(f"127.0.0.1:{first},127.0.0.1:{second}", 20.0) as errors,
    ):
        assert silent.hellos.acquire(timeout=20)
        token.rename(tmp_path / "away")
        moved.set()
        assert looked.acquire(timeout=20) and looked.acquire(timeout=20), "it looked without the token"
        (tmp_path / "away").rename(token)
        assert leader.hellos.acquire(timeout=20), errors


def test_a_job_is_gone_when_a_master_that_leads_says_so_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_machine, "NOT_FOUND_SECONDS", 0.05)
    # It is welcomed, and each time its stream ends: unknown once is nothing, also the second time.
    forgetful = Forgetful({2, 4, 6, 7})
    with master(forgetful) as port, attending(f"127.0.0.1:{port}", 20.0) as errors:
        for _ in range(3):
            assert forgetful.hellos.acquire(timeout=20), errors
        wait_until(lambda: bool(errors))
        assert forgetful.asked == 7 and "there is no job" in str(errors[0])


def test_a_master_that_is_not_ready_is_not_believed_that_a_job_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(session_machine, "NOT_FOUND_SECONDS", 0.05)
    unready, leader = Forgetful({*range(1, 100)}), Attended()
    with (
        monkeypatch.context() as clock,
        master(unready, health_status=health_pb2.HealthCheckResponse.NOT_SERVING) as first,
    ):
        # The time-out is over with the fourth question, however long those before it took.
        clock.setattr(session, "time", SimpleNamespace(monotonic=lambda: 1.0 if unready.asked > 3 else 0.0))
        with attending(f"127.0.0.1:{first}", 0.5) as errors:
            wait_until(lambda: bool(errors))  # it is not waited for without end
    assert unready.asked == 4
    unready.asked = 0
    with (
        master(unready, health_status=health_pb2.HealthCheckResponse.NOT_SERVING) as first,
        master(leader) as second,
        attending(f"127.0.0.1:{first},127.0.0.1:{second}", 20.0) as errors,
    ):
        assert leader.hellos.acquire(timeout=20), errors
        assert not errors


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)
