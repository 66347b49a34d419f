"""A dataset of 10^9 samples in tasks of 128: shuffled, half consumed out of order, the master killed.

    python benchmarks/data_scale.py [--quick] [--json [FILE]]

64 clients lease runs of 64 tasks over StreamTasks. Each holds 16 runs and reports a random one, so
65,536 tasks are leased at any time. Half-way the master is killed with SIGKILL and restarted, and the
clients repeat unanswered requests. Then the answers to the clients, the master's progress and the stored
history must agree on every task. The quick form consumes fewer tasks.

DLRover's own splitters and shard checkpoint are measured without a master, at the sizes that they support.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness import Plot, Report, Row, Series, run_benchmark
from peers import peer_python
from redis import Redis
from servers import SCRIPTS, Server, elastane_master

sys.path.append(str(SCRIPTS))

from bare_http2 import BareStream

from elastane_common.client import MasterClient
from elastane_master.decisions.machine import JobMachine
from elastane_master.jobs import records
from elastane_master.store.embedded import EmbeddedStore
from elastane_master.store.format import decode_snapshot
from elastane_master.store.keys import JobKeys
from elastane_proto.v1 import job_pb2, shard_pb2

SAMPLES, TASK_SIZE = 10**9, 128
TASKS = -(-SAMPLES // TASK_SIZE)
CLIENTS, RUN, HELD = 64, 64, 16
MEBIBYTE = 2**20
JOB, DATASET = "data", "d"
MEMORY = (
    "not the dataset's: 64 connections, the table of 65,536 leased tasks, commits of the last 30 s kept"
    " for a store which loses writes, requests since the last snapshot; DLRover's has no server around it"
)


@dataclass
class Consumed:
    """Record of the answers to all clients. accepted: how often each task was accepted."""

    goal: int
    accepted: bytearray = field(default_factory=lambda: bytearray(TASKS))
    total: int = 0

    def count(self, index: int, tasks: int) -> None:
        for task in range(index, index + tasks):
            self.accepted[task] += 1
        self.total += tasks

    @property
    def enough(self) -> bool:
        return self.total >= self.goal


class Client:
    """Client that leases and reports tasks until enough are consumed or the master is gone."""

    def __init__(self, number: int, run: int, held: int) -> None:
        self.worker = f"w{number}"
        self.run, self.most_held = run, held
        self.order = random.Random(number)
        self.held: list[shard_pb2.TaskReport] = []
        self.number = 0
        self.unanswered: bytes = b""
        self.over: asyncio.Future[None] | None = None

    async def consume(self, address: str, consumed: Consumed) -> None:
        """Continue where it was; return when enough is consumed or the stream is lost."""
        self.consumed = consumed
        self.over = asyncio.get_running_loop().create_future()
        host, _, port = address.rpartition(":")
        path = "/elastane.v1.ShardService/StreamTasks"
        self.stream = BareStream(path, self.answered, self.lost)
        await asyncio.get_running_loop().create_connection(lambda: self.stream, host, int(port))
        if self.unanswered:
            self.stream.send(self.unanswered)  # with the same request id, so it counts once
        else:
            self.ask()
        await self.over
        self.stream.close()

    def ask(self) -> None:
        if self.consumed.enough:
            self.end()
            return
        finished = []
        if len(self.held) >= self.most_held:
            finished = [self.held.pop(self.order.randrange(len(self.held)))]
        self.number += 1
        request = shard_pb2.LeaseTasksRequest(
            job=JOB,
            dataset=DATASET,
            worker_id=self.worker,
            completed=finished,
            max_tasks=self.run,
            runs=True,
            request_id=f"{self.worker}-{self.number}",
        )
        self.unanswered = shard_pb2.StreamTasksRequest(request=request).SerializeToString()
        self.stream.send(self.unanswered)

    def answered(self, payload: bytes) -> None:
        response = shard_pb2.StreamTasksResponse.FromString(payload).response
        self.unanswered = b""
        for outcome in response.outcomes:
            if outcome.outcome != shard_pb2.REPORT_OUTCOME_ACCEPTED:
                raise RuntimeError(f"{self.worker}: a report was not accepted: {outcome}")
            self.consumed.count(outcome.index, outcome.count or 1)
        self.held += [
            shard_pb2.TaskReport(epoch=task.epoch, index=task.index, attempt=task.attempt, count=task.count)
            for task in response.tasks
        ]
        self.ask()

    def lost(self, why: str) -> None:
        self.end()

    def end(self) -> None:
        if self.over is not None and not self.over.done():
            self.over.set_result(None)


class Looked:
    """Reads the job's data directly from the master's store."""

    def __init__(self, folder: Path) -> None:
        self.redis = Redis(unix_socket_path=str(EmbeddedStore(folder / "state").socket_path))
        self.keys = JobKeys.of(JOB)

    def snapshot(self) -> bytes:
        return bytes(self.redis.get(self.keys.snapshot) or b"")

    def intervals(self) -> int:
        """Restore the snapshot; return the number of runs in its DONE set."""
        machine = JobMachine.restore(decode_snapshot(self.snapshot()).state)
        return machine.queues.dynamic[DATASET]._tasks.done.runs

    def committed(self) -> Iterator[range]:
        """Yield the runs of tasks in the stored history, in order."""
        start = "-"
        while entries := self.redis.xrange(self.keys.history, min=start, count=5000):
            for _, fields in entries:
                commit = records.decode_commit(fields[b"commit"]).commit
                yield range(commit.index, commit.index + commit.count)
            start = f"({entries[-1][0].decode()}"


@dataclass
class Figures:
    """Figures of one run, in bytes and seconds."""

    create: float = 0.0
    grown: int = 0
    snapshot: int = 0
    intervals: int = 0
    tasks_per_second: float = 0.0
    restore: float = 0.0
    done: int = 0


def create(client: MasterClient) -> float:
    """Create the job and its dataset; return the seconds that creating the dataset took."""
    client.create_job(JOB, job_pb2.JobSettings(ests=1))
    settings = shard_pb2.DatasetSettings(
        range=shard_pb2.RangeSource(size=SAMPLES), task_size=TASK_SIZE, shuffle=True, seed=7
    )
    settings.lease.FromSeconds(3600)
    began = time.perf_counter()
    client.create_dataset(JOB, DATASET, settings)
    return time.perf_counter() - began


async def consume(address: str, clients: list[Client], consumed: Consumed) -> float:
    """Let all clients consume; return tasks per second."""
    began, before = time.perf_counter(), consumed.total
    await asyncio.gather(*[client.consume(address, consumed) for client in clients])
    return (consumed.total - before) / (time.perf_counter() - began)


async def consume_and_kill(server: Server, clients: list[Client], consumed: Consumed, at: int) -> int:
    """Kill the master under load once `at` tasks are consumed; return its memory in bytes just before."""
    memory = 0

    async def kill() -> None:
        nonlocal memory
        while consumed.total < at:
            await asyncio.sleep(0.005)
        memory = server.rss_bytes()
        server.process.kill()

    killing = asyncio.create_task(kill())
    await consume(server.address, clients, consumed)
    await killing
    return memory


def measure(goal: int, run: int = RUN, held: int = HELD) -> Figures:
    """Create the job, consume most of the goal, kill and restore the master, consume the rest, and check."""
    figures = Figures()
    consumed = Consumed(goal)
    clients = [Client(number, run, held) for number in range(CLIENTS)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with elastane_master(folder=folder) as server:
            with MasterClient(server.address, timeout_seconds=60) as client:
                client.list_jobs()  # warm up: a master's first call loads shared modules
                before = server.rss_bytes()
                figures.create = create(client)
            memory = asyncio.run(consume_and_kill(server, clients, consumed, goal - goal // 4))
            server.process.wait()
        began = time.perf_counter()
        with elastane_master(folder=folder) as server, MasterClient(server.address) as client:
            client.get_progress(JOB, DATASET)
            figures.restore = time.perf_counter() - began
            figures.tasks_per_second = asyncio.run(consume(server.address, clients, consumed))
            figures.grown = max(memory, server.rss_bytes()) - before
            looked = Looked(folder)
            check(client, looked, consumed)
            figures.snapshot, figures.intervals = len(looked.snapshot()), looked.intervals()
            figures.done = consumed.total
    return figures


def check(client: MasterClient, looked: Looked, consumed: Consumed) -> None:
    """Raise RuntimeError unless clients, master and history agree on every task."""
    if max(consumed.accepted) > 1:
        raise RuntimeError("a task was accepted twice")
    done = client.get_progress(JOB, DATASET)[0].done
    if done != consumed.total:
        raise RuntimeError(f"clients were told of {consumed.total} tasks, the master counts {done}")
    history = bytearray(TASKS)
    for run in looked.committed():
        for task in run:
            history[task] += 1
    if history != consumed.accepted:
        raise RuntimeError("the history differs from what the clients were told")


def dlrover(kind: str, size: int, shard: int = TASK_SIZE) -> dict[str, float]:
    """Return DLRover's figures at one size."""
    command = [peer_python("dlrover"), str(SCRIPTS / "dlrover_splitters.py"), kind]
    command += [str(size), str(shard), str(CLIENTS * HELD)]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return dict(json.loads(output.splitlines()[-1]))


def benchmark(args: argparse.Namespace, report: Report) -> None:
    goal = args.consume or (400_000 if args.quick else TASKS // 2)
    repeats = 1 if args.quick else 3
    ours: list[Figures] = []
    table: list[dict[str, float]] = []
    for number in range(repeats):
        print(f"run {number + 1} of {repeats}: {goal:,} of {TASKS:,} tasks", file=sys.stderr)
        ours.append(measure(goal))
        table.append(dlrover("table", SAMPLES))
    whole_tasks = 250_000 if args.quick else 1_000_000
    text_samples = 200_000 if args.quick else 500_000
    others = {
        f"table, all {whole_tasks:,} shards at once": dlrover("table-whole", whole_tasks * TASK_SIZE),
        f"text, {text_samples:,} samples": dlrover("text", text_samples),
    }
    report.rows += rows(ours, table, others)
    sizes = scattered(args.quick)
    report.plots.append(plot(sizes))
    report.rows += [
        Row(
            f"snapshot, {run} x {held} tasks held by each of {CLIENTS} clients",
            Series([figures.snapshot / 1024], "KiB"),
            note=f"{figures.intervals:,} runs of DONE after {figures.done:,} tasks",
        )
        for (run, held), figures in sizes.items()
    ]
    report.facts["consumed"] = (
        f"{goal:,} of {TASKS:,} tasks"
        + ("" if goal >= TASKS // 2 else "; the full form consumes half of them")
        + f", by {CLIENTS} clients that hold {HELD} runs of {RUN} each and report one of them at random"
    )
    report.facts["accounted"] = "clients, progress and history agreed on every task after the restore"


def scattered(quick: bool) -> dict[tuple[int, int], Figures]:
    """Measure the same number of tasks, reported more and more out of order. Keys: (run, held)."""
    goal = 100_000 if quick else 400_000
    return {(run, held): measure(goal, run, held) for run, held in ((64, 1), (64, 16), (8, 64), (2, 256))}


def rows(
    ours: list[Figures], table: list[dict[str, float]], others: dict[str, dict[str, float]]
) -> list[Row]:
    """Build the rows: our figures with targets beside DLRover's table, and DLRover's other splitters."""
    held = (
        "of 7.8 M; DLRover's has 50,000 shards at a time, shuffled within them, and the rest is not there yet"
    )

    def row(case: str, unit: str, factor: float, figure: str, peer: str, target: float, **more: Any) -> Row:
        return Row(
            case,
            Series([getattr(figures, figure) * factor for figures in ours], unit),
            Series([figures[peer] * factor for figures in table], unit),
            "DLRover, 50,000 shards at a time",
            target=target,
            target_absolute=True,
            **more,
        )

    found = [
        row("10^9 samples: create", "ms", 1000, "create", "create_seconds", 10.0, noise=3.0, note=held),
        row(
            "10^9 samples: memory", "MiB", 1 / MEBIBYTE, "grown", "grown_bytes", 20.0, noise=1.5, note=MEMORY
        ),
        row("10^9 samples: snapshot", "KiB", 1 / 1024, "snapshot", "checkpoint_bytes", 1024.0, noise=1.5),
        row(
            "10^9 samples: restore",
            "s",
            1.0,
            "restore",
            "restore_seconds",
            1.0,
            noise=2.0,
            note="ours: from the start of the new master's process to its first answer; DLRover's: its JSON"
            " read back in a process that runs",
        ),
        Row(
            "10^9 samples: consumed by 64 clients",
            Series([figures.tasks_per_second for figures in ours], "tasks/s"),
            better="higher",
        ),
    ]
    for name, figures in others.items():
        text = ", ".join(
            f"{what} {figures[key] * factor:,.2f} {unit}"
            for what, key, factor, unit in (
                ("create", "create_seconds", 1, "s"),
                ("memory", "grown_bytes", 1 / MEBIBYTE, "MiB"),
                ("checkpoint", "checkpoint_bytes", 1 / MEBIBYTE, "MiB"),
                ("made in", "checkpoint_seconds", 1, "s"),
                ("read back in", "restore_seconds", 1, "s"),
            )
        )
        ours_create = Series([figures_.create * 1000 for figures_ in ours], "ms")
        peer = Series([figures["create_seconds"] * 1000] * len(ours), "ms")
        found.append(Row(f"create, DLRover {name}", ours_create, peer, "DLRover", note=text, noise=3.0))
    return found


def plot(sizes: dict[tuple[int, int], Figures]) -> Plot:
    points = sorted((float(figures.intervals), figures.snapshot / 1024) for figures in sizes.values())
    return Plot(
        "data_scale_snapshot",
        "Snapshot of 10^9 samples: what counts is how far out of order they are done",
        "runs of DONE",
        "KiB",
        {"snapshot": points},
    )


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--consume", type=int, default=0, metavar="TASKS", help="so many instead of half")


if __name__ == "__main__":
    run_benchmark("data_scale", __doc__, benchmark, options)
