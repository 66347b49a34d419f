"""Tasks leased and reported a second, durably, beside DLRover's master (which keeps them in memory only).

    python benchmarks/dispatch.py [--quick] [--json [FILE]] [--in-flight MESSAGES]

Servers run one after the other, with 1 and with 4 client processes that only lease and report tasks. DLRover
needs two calls per task; Elastane needs one call (LeaseTasks) or one request on a stream (StreamTasks),
several of which may be in flight. Requests that a client has at the same time share a message, and so do
answers that are ready at the same time. The bare echo is the upper bound for a Python gRPC server with a
message for each request and each answer, of the same size; calls are compared with calls, streams with
streams.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf import duration_pb2
from harness import Report, Row, Series, percentile, run_benchmark
from peers import peer_python
from servers import SCRIPTS, Server, dlrover_master, echo_server, elastane_master, run_clients

from elastane_proto.v1 import job_pb2, job_pb2_grpc, shard_pb2, shard_pb2_grpc

IN_FLIGHT = 3
"""Number of unanswered requests of one client, unless --in-flight is given."""

IN_FLIGHT_FSYNC = 6
"""The same when each write waits for the disk: higher, because more requests can share one fsync."""

NOISE = 1.5
"""Factor by which ratios of repeated runs differed on a shared machine with two cores."""

FSYNC_CAUSE = "each write waits for the disk, and as much is in flight as shares one wait"
UNARY_CAUSE = (
    "each call waits for a write to the store, which the echo does not: a round trip to it, and two more"
    " changes of the running thread. StreamTasks is the way to dispatch at a rate"
)
STREAM_CAUSE = (
    "the master's loop is busy, with more clients all cores: what the master adds to the echo (decision,"
    " messages, a share of a write) and what the clients add (building and reading messages) both count"
)


@dataclass
class Figures:
    """Figures of one run with one server. cores: CPU use in cores, by process."""

    tasks_per_second: float
    p99_ms: float
    cpu_ms_per_task: float
    cores: dict[str, float]


def measure(server: Server, commands: list[list[str]]) -> Figures:
    """Run the clients against the server; return the figures."""
    before, store_before = server.cpu_seconds(), server.store_cpu_seconds()
    results = run_clients(commands)
    cpu, store = server.cpu_seconds() - before, server.store_cpu_seconds() - store_before
    tasks = sum(result["tasks"] for result in results)
    seconds = max(result["seconds"] for result in results)
    latencies = [latency for result in results for latency in result["latencies"]]
    rate = sum(result["tasks"] / result["seconds"] for result in results)
    clients = sum(result["cpu"] for result in results)
    cores = {"server": cpu / seconds, "clients": clients / seconds, "store": store / seconds}
    return Figures(rate, percentile(latencies, 99) * 1000, cpu / tasks * 1000, cores)


def prepare(server: Server) -> None:
    """Create a job with a dataset of 400 million samples."""
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
    """Measure our master with its private store. mode: "call", or the number of requests in flight."""
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


def dlrover(clients: int, seconds: float) -> Figures:
    """Measure DLRover's master with its own client."""
    with dlrover_master() as server:
        script = str(SCRIPTS / "dlrover_client.py")
        return measure(server, [[peer_python("dlrover"), script, server.address, str(seconds)]] * clients)


def echo(clients: int, seconds: float, mode: str) -> Figures:
    """Measure a bare server with messages of the size of one task's."""
    request, answer = message_bytes()
    with echo_server(answer) as server:
        script = str(SCRIPTS / "echo_client.py")
        command = [sys.executable, script, server.address, str(seconds), str(request), mode]
        return measure(server, [command] * clients)


def message_bytes() -> tuple[int, int]:
    """Return the sizes of a request and of an answer for one task, in bytes."""
    lease = shard_pb2.LeaseTasksRequest(
        job="bench", dataset="d", worker_id="w0", max_tasks=1, request_id="w0-10000"
    )
    lease.completed.add(index=10_000, attempt=1)
    answer = shard_pb2.LeaseTasksResponse()
    answer.outcomes.add(index=10_000, outcome=shard_pb2.REPORT_OUTCOME_ACCEPTED)
    task = answer.tasks.add(dataset="d", index=10_003, attempt=1)
    task.range.start, task.range.end = 100_030, 100_040
    task.deadline.GetCurrentTime()
    request = shard_pb2.StreamTasksRequest(request=lease)
    return request.ByteSize(), shard_pb2.StreamTasksResponse(response=answer).ByteSize()


def benchmark(args: argparse.Namespace, report: Report) -> None:
    seconds, repeats = (1.5, 2) if args.quick else (4.0, 5)
    report.facts["in flight on a stream"] = f"{args.in_flight} ({IN_FLIGHT_FSYNC} with fsync each)"
    report.facts["messages"] = (
        "requests made at the same time share one, as do answers known at the same time; the echo's do not"
    )
    for clients in (1, 4):
        report.rows += compare(clients, seconds, repeats, str(args.in_flight))


def compare(clients: int, seconds: float, repeats: int, depth: str) -> list[Row]:
    """Measure all servers alternately with one number of clients, each with `depth` requests in flight."""
    cases: dict[str, Callable[[], Figures]] = {
        "dlrover": lambda: dlrover(clients, seconds),
        "echo": lambda: echo(clients, seconds, "call"),
        "echo stream": lambda: echo(clients, seconds, depth),
        "call": lambda: ours(clients, seconds, 1, "call"),
        "stream": lambda: ours(clients, seconds, 1, depth),
        "always": lambda: ours(clients, seconds, 1, str(IN_FLIGHT_FSYNC), "always"),
        "many": lambda: ours(clients, seconds, 64, depth),
    }
    runs: dict[str, list[Figures]] = {name: [] for name in cases}
    for number in range(repeats):
        for name, run in cases.items():
            print(f"{clients} clients, run {number + 1} of {repeats}: {name}", file=sys.stderr)
            runs[name].append(run())
    return rows(clients, runs)


def rows(clients: int, runs: dict[str, list[Figures]]) -> list[Row]:
    """Build the rows for one number of clients."""
    peers = {"dlrover": "DLRover", "echo": "bare echo", "echo stream": "bare stream echo"}

    def row(
        case: str, name: str, figure: str, unit: str, peer: str = "dlrover", cause: str = "", **more: Any
    ) -> Row:
        mine, theirs = (Series([getattr(run, figure) for run in runs[one]], unit) for one in (name, peer))
        title = f"{clients} client{'s' * (clients > 1)}: {case}"
        made = Row(title, mine, theirs, peers[peer], noise=NOISE, note=busy(runs[name], runs[peer]), **more)
        if cause and made.met is False:
            made.note = f"{cause}. {made.note}"
        return made

    rate, p99, cpu = "tasks_per_second", "p99_ms", "cpu_ms_per_task"
    more: dict[str, Any] = {"better": "higher"}
    return [
        row("one task a request", "stream", rate, "tasks/s", target=5.0, cause=STREAM_CAUSE, **more),
        row(
            "one task a request, fsync each", "always", rate, "tasks/s", target=3.0, cause=FSYNC_CAUSE, **more
        ),
        row("64 tasks a request", "many", rate, "tasks/s", target=200.0, **more),
        row("one task a call", "call", rate, "tasks/s", **more),
        row("master CPU a task, one a request", "stream", cpu, "ms", target=0.25, cause=STREAM_CAUSE),
        row("p99 of report and lease, one a request", "stream", p99, "ms", target=1.0, cause=STREAM_CAUSE),
        row("p99 of report and lease, one a call", "call", p99, "ms", target=1.0, cause=UNARY_CAUSE),
        row(
            "requests, one task each", "stream", rate, "1/s", "echo stream", STREAM_CAUSE, target=0.9, **more
        ),
        row("calls, one task each", "call", rate, "1/s", "echo", UNARY_CAUSE, target=0.9, **more),
    ]


def busy(mine: list[Figures], theirs: list[Figures]) -> str:
    """Describe which processes used the cores, as that shows what limits the rate."""

    def words(runs: list[Figures]) -> str:
        medians = {who: statistics.median(run.cores[who] for run in runs) for who in runs[0].cores}
        return ", ".join(f"{who} {cores:.2f}" for who, cores in medians.items() if cores >= 0.005)

    return f"cores used: {words(mine)}; by the peer's: {words(theirs)}"


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--in-flight", type=int, default=IN_FLIGHT, help="unanswered requests of one client")


if __name__ == "__main__":
    run_benchmark("dispatch", __doc__, benchmark, options)
