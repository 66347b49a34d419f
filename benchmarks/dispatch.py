"""Tasks leased and reported a second, durably, beside DLRover's master (which keeps them in memory only).

    python benchmarks/dispatch.py [--quick] [--json [FILE]]

Servers run one after the other, with 1 and with 4 client processes that do nothing but take a task and report
it. DLRover takes two calls for that, we one. The bare echo is the most that a Python gRPC server can do.
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


def ours(clients: int, seconds: float, tasks: int, fsync: str) -> Figures:
    """Our master with its private store."""
    import os

    os.environ["ELASTANE_STORE_FSYNC"] = fsync
    with elastane_master() as server:
        prepare(server)
        script = str(SCRIPTS / "lease_client.py")
        return measure(
            server,
            [
                [sys.executable, script, server.address, str(seconds), f"w{number}", str(tasks)]
                for number in range(clients)
            ],
        )


def plain(
    start: Callable[[], AbstractContextManager[Server]], python: str, script: str, clients: int, seconds: float
) -> Figures:
    """A server whose clients need nothing but its address."""
    with start() as server:
        command = [python, str(SCRIPTS / script), server.address, str(seconds)]
        return measure(server, [command] * clients)


def benchmark(args: argparse.Namespace, report: Report) -> None:
    seconds, repeats = (2.0, 1) if args.quick else (5.0, 3)
    dlrover = peer_python("dlrover")
    for clients in (1, 4):
        runs: dict[str, list[Figures]] = {}

        def run(name: str, once: Callable[[], Figures], runs: dict[str, list[Figures]] = runs) -> None:
            print(f"{clients} clients: {name}", file=sys.stderr)
            runs.setdefault(name, []).append(once())

        for _ in range(repeats):
            run("dlrover", lambda: plain(dlrover_master, dlrover, "dlrover_client.py", clients, seconds))
            run("echo", lambda: plain(echo_server, sys.executable, "echo_client.py", clients, seconds))
            run("one", lambda: ours(clients, seconds, 1, "everysec"))
            run("always", lambda: ours(clients, seconds, 1, "always"))
            run("many", lambda: ours(clients, seconds, 64, "everysec"))
        report.rows += rows(clients, runs)


def rows(clients: int, runs: dict[str, list[Figures]]) -> list[Row]:
    """The comparisons of one number of clients."""

    def series(name: str, figure: str, unit: str) -> Series:
        return Series([getattr(run, figure) for run in runs[name]], unit)

    def row(case: str, name: str, figure: str, unit: str, **more: Any) -> Row:
        peer = more.pop("peer", "dlrover")
        return Row(
            f"{case}, {clients} client{'s' * (clients > 1)}",
            series(name, figure, unit),
            series(peer, figure, unit),
            {"dlrover": "DLRover", "echo": "bare echo"}[peer],
            **more,
        )

    rate, p99, cpu = "tasks_per_second", "p99_ms", "cpu_ms_per_task"
    return [
        row("one task a call", "one", rate, "tasks/s", better="higher", target=5.0),
        row("master CPU a task", "one", cpu, "ms", target=0.25),
        row("p99 of lease and report", "one", p99, "ms", target=1.0),
        row("64 tasks a call", "many", rate, "tasks/s", better="higher", target=200.0),
        row("one task a call, fsync each", "always", rate, "tasks/s", better="higher", target=3.0),
        row("one task a call", "one", rate, "calls/s", peer="echo", better="higher", target=0.9),
    ]


if __name__ == "__main__":
    run_benchmark("dispatch", __doc__, benchmark)
