"""Errors that a client believes at once, and those after which it asks again."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent import futures
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from elastane_common import connection
from elastane_common.client import MasterClient
from elastane_common.client_errors import RequestRefusedError
from elastane_master.decisions.events import Rejection
from elastane_master.servers.errors import status_of
from elastane_proto import versions
from elastane_proto.v1 import job_pb2, job_pb2_grpc


class Jobs(job_pb2_grpc.JobServiceServicer):
    """Knows job "j", except when it is asked for the time in `unknown`, from 1. lost: times that fail."""

    def __init__(self) -> None:
        self.unknown: set[int] = set()
        self.lost: dict[int, str] = {}
        self.asked = 0

    def Get(self, request: Any, context: Any) -> Any:  # noqa: N802
        context.set_trailing_metadata(((versions.METADATA_KEY, str(versions.PROTOCOL)),))
        self._look_up(request.name, context)
        return job_pb2.JobServiceGetResponse(job=job_pb2.Job(name=request.name))

    def Watch(self, request: Any, context: Any) -> Iterator[Any]:  # noqa: N802
        for _ in range(2):
            self._look_up(request.name, context)
            yield job_pb2.JobServiceWatchResponse(job=job_pb2.Job(name=request.name))

    def _look_up(self, name: str, context: Any) -> None:
        self.asked += 1
        if self.asked in self.lost:
            context.abort(grpc.StatusCode.UNKNOWN, self.lost[self.asked])
        if name != "j" or self.asked in self.unknown:
            status = status_of(Rejection("not_found", f"there is no job {name!r}", job=name))
            packed = (("grpc-status-details-bin", status.SerializeToString()),)
            context.set_trailing_metadata(packed)
            context.abort(grpc.StatusCode.NOT_FOUND, status.message)


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    monkeypatch.setattr(connection, "NOT_FOUND_SECONDS", 0.05)
    jobs, server = Jobs(), grpc.server(futures.ThreadPoolExecutor(max_workers=4))
    job_pb2_grpc.add_JobServiceServicer_to_server(jobs, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with MasterClient(f"127.0.0.1:{port}") as asking:
        yield SimpleNamespace(jobs=jobs, client=asking)
    server.stop(None).wait()


def test_a_job_that_never_was_is_not_found_at_once(served: SimpleNamespace) -> None:
    with pytest.raises(RequestRefusedError) as refused:
        served.client.get_job("typo")
    assert (refused.value.reason, served.jobs.asked) == ("not_found", 1)


def test_a_job_that_was_there_is_gone_when_it_is_said_twice(served: SimpleNamespace) -> None:
    assert served.client.get_job("j").name == "j"
    served.jobs.unknown = {2, 4}
    for _ in range(2):
        assert served.client.get_job("j").name == "j"
    assert served.jobs.asked == 5
    served.jobs.unknown = {6, 7}
    with pytest.raises(RequestRefusedError) as refused:
        served.client.get_job("j")
    assert (refused.value.reason, served.jobs.asked) == ("not_found", 7)


def test_a_watch_goes_on_when_its_job_is_not_found_once(served: SimpleNamespace) -> None:
    served.jobs.unknown = {2, 4, 5}
    seen = []
    with pytest.raises(RequestRefusedError) as refused:
        for job in served.client.watch_job("j"):
            seen.append(job.name)
    assert (seen, refused.value.reason, served.jobs.asked) == (["j", "j"], "not_found", 5)


def test_a_lost_connection_that_grpc_calls_unknown_is_asked_again(served: SimpleNamespace) -> None:
    served.jobs.lost = {1: "Stream removed"}
    assert served.client.get_job("j").name == "j"
    assert served.jobs.asked == 2


def test_an_unknown_error_of_the_master_is_final(served: SimpleNamespace) -> None:
    served.jobs.lost = {1: "Exception calling application"}
    with pytest.raises(RequestRefusedError, match="Exception calling application"):
        served.client.get_job("j")
