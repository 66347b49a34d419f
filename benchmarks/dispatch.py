"""Tasks leased and reported a second, durably, beside DLRover's master (which keeps them in memory only).

    python benchmarks/dispatch.py [--quick] [--json [FILE]]

Servers run one after the other, with 1 and with 4 client processes that do nothing but take a task and report
it. DLRover takes two calls for that; we take one call (LeaseTasks) or message (StreamTasks), several of which
may be in flight. The bare echo is the most that a Python gRPC server can do.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf import duration_pb2
from harness import Report, Row, Series, percentile, run_benchmark
from peers import peer_python
from servers import SCRIPTS, Server, dlrover_master, echo_server, elastane_master, run_clients

from elastane_proto.v1 import job_pb2, job_pb2_grpc, shard_pb2, shard_pb2_grpc

IN_FLIGHT = 4
"""Messages of one client that wait for their answer at the same time."""


@dataclass
class Figures:
    """Of one run with one server."""

    tasks_per_second: float
    p99_ms: float
    cpu_ms_per_task: float


def measure(server: Server, commands: list[list[str]]) -> Figures:
    """Runs the clients against the server."""
    before = server.cpu_seconds()
    results = run_clients(commands)
    cpu = server.cpu_seconds() - before
    tasks = sum(result["tasks"] for result in results)
    latencies = [latency for result in results for latency in result["latencies"]]
    rate = sum(result["tasks"] / result["seconds"] for result in results)
    return Figures(rate, percentile(latencies, 99) * 1000, cpu / tasks * 1000)


def prepare(server: Server) -> None:
    """A job with a dataset of 400 million samples."""
    with grpc.insecure_channel(server.address) as channel:
        job_pb2_grpc.JobServiceStub(channel).Create(
            job_pb2.JobServiceCreateRequest(name="bench", settings=job_pb2.JobSettings(ests=1))
        )
        settings = shard_pb2.DatasetSettings(range=shard_pb2.RangeSource(size=400_000_000), task_size=10)
        settings.lease.CopyFrom(duration_pb2.Duration(seconds=3600))
        shard_pb2_grpc.ShardServiceStub(channel).CreateDataset(
            shard_pb2.CreateDatasetRequest(job="bench", dataset="d", settings=settings)
        )


def ours(clients: int, seconds: float, tasks: int, mode: str, fsync: str = "everysec") -> Figures:
    """Our master with its private store; mode: "call", or the requests in flight on a stream."""
    with elastane_master(fsync=fsync) as server:
        prepare(server)
        script = str(SCRIPTS / "lease_client.py")
        return measure(
            server,
            [
                [sys.executable, script, server.address, str(seconds), f"w{number}", str(tasks), mode]
                for number in range(clients)
            ],
        )


def plain(
    start: Callable[[], AbstractContextManager[Server]],
    python: str,
    script: str,
    clients: int,
    seconds: float,
) -> Figures:
    """A server whose clients need nothing but its address."""
    with start() as server:
        command = [python, str(SCRIPTS / script), server.address, str(seconds)]
        return measure(server, [command] * clients)


def benchmark(args: argparse.Namespace, report: Report) -> None:
    seconds, repeats = (2.0, 1) if args.quick else (5.0, 3)
    for clients in (1, 4):
        report.rows += compare(clients, seconds, repeats)


def compare(clients: int, seconds: float, repeats: int) -> list[Row]:
    """All servers in turn with one number of clients."""
    dlrover = peer_python("dlrover")
    cases: dict[str, Callable[[], Figures]] = {
        "dlrover": lambda: plain(dlrover_master, dlrover, "dlrover_client.py", clients, seconds),
        "echo": lambda: plain(echo_server, sys.executable, "echo_client.py", clients, seconds),
        "call": lambda: ours(clients, seconds, 1, "call"),
        "stream": lambda: ours(clients, seconds, 1, str(IN_FLIGHT)),
        "always": lambda: ours(clients, seconds, 1, str(IN_FLIGHT), "always"),
        "many": lambda: ours(clients, seconds, 64, str(IN_FLIGHT)),
    }
    runs: dict[str, list[Figures]] = {name: [] for name in cases}
    for number in range(repeats):
        for name, run in cases.items():
            print(f"{clients} clients, run {number + 1} of {repeats}: {name}", file=sys.stderr)
            runs[name].append(run())
    return rows(clients, runs)


def rows(clients: int, runs: dict[str, list[Figures]]) -> list[Row]:
    """The comparisons of one number of clients."""

    def row(case: str, name: str, figure: str, unit: str, peer: str = "dlrover", **more: Any) -> Row:
        mine, theirs = (Series([getattr(run, figure) for run in runs[one]], unit) for one in (name, peer))
        peers = {"dlrover": "DLRover", "echo": "bare echo"}
        return Row(f"{clients} client{'s' * (clients > 1)}: {case}", mine, theirs, peers[peer], **more)

    rate, p99, cpu = "tasks_per_second", "p99_ms", "cpu_ms_per_task"
    more = {"better": "higher"}
    return [
        row("one task a call", "call", rate, "tasks/s", **more),
        row("one task a message", "stream", rate, "tasks/s", target=5.0, **more),
        row("one task a message, fsync each", "always", rate, "tasks/s", target=3.0, **more),
        row("64 tasks a message", "many", rate, "tasks/s", target=200.0, **more),
        row("master CPU a task, one a message", "stream", cpu, "ms", target=0.25),
        row("p99 of report and lease, one a call", "call", p99, "ms", target=1.0),
        row("p99 of report and lease, one a message", "stream", p99, "ms", target=1.0),
        row("one task a call", "call", rate, "calls/s", "echo", target=0.9, **more),
    ]


if __name__ == "__main__":
    run_benchmark("dispatch", __doc__, benchmark)
