"""What an agent reports to a master: once, again to one that has lost it, and how processes ended."""

from __future__ import annotations

import io
import queue
from collections.abc import Iterator
from concurrent import futures
from typing import Any

import grpc
import pytest

import patience
from elastane_agent.supervisor import output_reporting
from elastane_agent.supervisor.output_reporting import WorkerOutput
from elastane_common.processes.child import ExitStatus
from elastane_common.processes.output import Output
from elastane_proto.v1 import log_pb2, log_pb2_grpc
from spoken_version import TellsVersion


class Master(log_pb2_grpc.LogServiceServicer):
    """Keeps the reports that have something in them; memory: what it answers; refuses: instead of it."""

    def __init__(self) -> None:
        self.memory = "first"
        self.refuses = False
        self.reports: queue.SimpleQueue[log_pb2.LogServiceReportRequest] = queue.SimpleQueue()

    def Report(self, request: Any, context: Any) -> log_pb2.LogServiceReportResponse:  # noqa: N802
        if self.refuses:
            context.abort(grpc.StatusCode.PERMISSION_DENIED, "not you")
        if request.workers:
            self.reports.put(request)
        return log_pb2.LogServiceReportResponse(memory=self.memory)

    def next(self) -> list[tuple[str, int, list[str], str]]:
        """Of the next report: worker, first number, lines, and how its process ended."""
        report = patience.wait(lambda seconds: self.reports.get(timeout=seconds), 20)
        return [
            (told.worker_id, told.first, [line.text for line in told.lines], told.exit.how)
            for told in report.workers
        ]


@pytest.fixture
def master(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Master, str]]:
    monkeypatch.setattr(output_reporting, "REPORT_SECONDS", 0.01)
    monkeypatch.setattr(output_reporting, "QUIET_SECONDS", 0.05)
    server, servicer = grpc.server(futures.ThreadPoolExecutor(2), interceptors=[TellsVersion()]), Master()
    log_pb2_grpc.add_LogServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield servicer, f"127.0.0.1:{port}"
    server.stop(None)


def test_lines_are_reported_once_and_again_to_a_master_that_lost_them(master: tuple[Master, str]) -> None:
    servicer, address = master
    shown = io.StringIO()
    output = WorkerOutput("j", Output(stdout=shown, stderr=io.StringIO(), color=False), None)
    output.line("w0", "stdout", "before the start")
    output.start(address)
    assert servicer.next() == [("w0", 0, ["before the start"], "")]
    output.line("w0", "stderr", "later")
    assert servicer.next() == [("w0", 1, ["later"], "")]
    servicer.memory = "of another master"
    assert servicer.next() == [("w0", 0, ["before the start", "later"], "")]
    output.exited("w0", ExitStatus(-9, out_of_memory="oom_kill rose"), expected=False)
    assert servicer.next() == [("w0", 2, [], "ended by SIGKILL")]
    output.line("w0", "stdout", "the last")
    output.close()
    assert servicer.next() == [("w0", 2, ["the last"], "")] and servicer.reports.empty()
    assert shown.getvalue() == "[w0] before the start\n[w0] the last\n"


def test_a_master_that_takes_none_is_told_of_once(master: tuple[Master, str]) -> None:
    servicer, address = master
    servicer.refuses = True
    said = io.StringIO()
    output = WorkerOutput("j", Output(stdout=io.StringIO(), stderr=said, color=False), None)
    output.start(address)
    for number in range(3):
        output.line("w0", "stdout", str(number))
    output._thread.join(20)
    output.close()
    assert said.getvalue() == "[elastane] the master takes no output of workers: not you\n"
