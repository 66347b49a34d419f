"""Latency that a master adds to a step with 10 to 5,000 workers, and its CPU, memory and bytes to the store.

    python benchmarks/worker_scale.py [--quick] [--json [FILE]] [--sessions 10,100,1000,5000]
                                      [--relayed 8]

Simulated workers over real sockets, with a connection each, step together once a second with contexts of
10 KB. The latency runs from the last StepReport sent until Prepared is received: by the last worker, and by
any. The workers share the master's cores. No peer has such a step.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import psutil
from google.protobuf import duration_pb2
from harness import Plot, Report, Row, Series, median_of, percentile, run_benchmark
from redis import Redis
from servers import SCRIPTS, Server, elastane_master

from elastane_master.store.embedded import EmbeddedStore
from elastane_proto.v1 import job_pb2, job_pb2_grpc

CONTEXT_BYTES = 10_240
SESSIONS_A_PROCESS = 2_500
LEAD_SECONDS = 1.0
"""Pause between the last Go and the first step, so that work left from forming the ring is not measured."""
GENERATOR_DRAWS = (10, 100)
"""Values drawn per step from Python's and from torch's generator, as by augmentation of samples."""
MEBIBYTE = 2**20
BENDS = (
    "the master's one thread is busy for longer than the step lasts: docs/scaling.md has what a message costs"
)


@dataclass(frozen=True)
class Case:
    """One case. sessions: number of workers. changed: parts of the context (of 3) sent each step.

    draws: number of values drawn per step from Python's and torch's generators, whose states are the parts;
    0: the parts are random bytes. form: how the states are sent.
    relayed: number of workers on a host, whose sessions share a relay's stream; 0: each has its own.
    """

    sessions: int
    steps: int
    ests_each: int = 1
    changed: int = 3
    period_seconds: float = 1.0
    context_bytes: int = CONTEXT_BYTES
    draws: int = 0
    form: str = "positions"
    relayed: int = 0


@dataclass
class Figures:
    """Figures of one case. Latencies are in milliseconds; names say if a figure is per step or second."""

    last_ms: list[float] = field(default_factory=list)
    any_ms: list[float] = field(default_factory=list)
    forming_seconds: float = 0.0
    steps_per_second: float = 0.0
    master_cpu_ms_per_step: float = 0.0
    store_cpu_ms_per_step: float = 0.0
    store_bytes_per_step: float = 0.0
    master_rss_mib: float = 0.0
    store_rss_mib: float = 0.0
    disk_mib: float = 0.0


class Clients:
    """The processes that simulate the workers."""

    def __init__(self, address: str, case: Case) -> None:
        self._processes: list[subprocess.Popen[str]] = []
        script = str(SCRIPTS / "attend_sessions.py")
        for number in range(0, case.sessions, SESSIONS_A_PROCESS):
            count = min(SESSIONS_A_PROCESS, case.sessions - number)
            numbers = (number, count, case.sessions * case.ests_each, case.context_bytes, case.changed)
            command = [sys.executable, script, address, "scale", *map(str, numbers)]
            command += [str(case.period_seconds), str(case.steps), str(number), str(case.relayed)]
            if case.draws:
                command += [str(case.draws), case.form]
            self._processes.append(
                subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            )

    def wait_for(self, word: str) -> None:
        """Wait until all processes have printed `word`. Raises RuntimeError for any other line."""
        for line in self.lines():
            if line != word:
                raise RuntimeError(f"a process of workers said {line!r}, not {word!r}")

    def lines(self) -> list[str]:
        """Read one line of output of each process."""
        lines = []
        for process in self._processes:
            assert process.stdout is not None
            line = process.stdout.readline().strip()
            if not line:
                raise RuntimeError(f"a process of workers ended with {process.wait()}")
            lines.append(line)
        return lines

    def tell(self, text: str) -> None:
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(text + "\n")
            process.stdin.flush()

    def end(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()


@contextlib.contextmanager
def clients_of(address: str, case: Case) -> Iterator[Clients]:
    clients = Clients(address, case)
    try:
        yield clients
    finally:
        clients.end()


class Store:
    """Reads figures of the master's private store directly from it."""

    def __init__(self, folder: Path) -> None:
        store = EmbeddedStore(folder / "state")
        self._redis = Redis(unix_socket_path=str(store.socket_path))
        self._folder = store.folder
        self.process = psutil.Process(int((store.folder / "server.pid").read_text()))

    def received_bytes(self) -> int:
        return int(self._redis.info("stats")["total_net_input_bytes"])

    def cpu_seconds(self) -> float:
        times = self.process.cpu_times()
        return float(times.user + times.system + times.children_user + times.children_system)

    def disk_bytes(self) -> int:
        files = (path for path in self._folder.rglob("*") if path.is_file())
        return sum(path.stat().st_size for path in files)

    def close(self) -> None:
        self._redis.close()


def create_job(server: Server, case: Case) -> None:
    settings = job_pb2.JobSettings(ests=case.sessions * case.ests_each, workers_min=case.sessions)
    for name, seconds in (("heartbeat_timeout", 120), ("lease_min", 600), ("idle_max", 3600)):
        getattr(settings, name).CopyFrom(duration_pb2.Duration(seconds=seconds))
    with grpc.insecure_channel(server.address) as channel:
        job_pb2_grpc.JobServiceStub(channel).Create(
            job_pb2.JobServiceCreateRequest(name="scale", settings=settings)
        )


def measure(case: Case, profile: str = "") -> Figures:
    """Measure one case with a fresh master. profile: file for py-spy's stacks of the master in the steps."""
    figures = Figures()
    with elastane_master() as server:
        create_job(server, case)
        store = Store(server.folder)
        began = time.monotonic()
        with clients_of(server.address, case) as clients:
            clients.wait_for("joined")
            clients.wait_for("go")
            figures.forming_seconds = time.monotonic() - began
            seconds = case.steps * case.period_seconds
            if profile:
                spy = subprocess.Popen(
                    [
                        *f"py-spy record --native -r 200 -f raw -p {server.process.pid}".split(),
                        *f"-d {seconds:.0f} -o {profile}".split(),
                    ]
                )
            start = time.monotonic() + LEAD_SECONDS
            clients.tell(str(start))
            time.sleep(LEAD_SECONDS)
            before = server.cpu_seconds(), store.cpu_seconds(), store.received_bytes()
            outcomes = [json.loads(line) for line in clients.lines()]
            after = server.cpu_seconds(), store.cpu_seconds(), store.received_bytes()
            if profile:
                spy.wait()
            cpu, store_cpu, received = (new - old for new, old in zip(after, before, strict=True))
            figures.master_cpu_ms_per_step = cpu / case.steps * 1000
            figures.store_cpu_ms_per_step = store_cpu / case.steps * 1000
            figures.store_bytes_per_step = received / case.steps
            sent = [max(times) for times in zip(*[outcome["sent"] for outcome in outcomes], strict=True)]
            figures.steps_per_second = (case.steps - 1) / (sent[-1] - sent[0])
            figures.master_rss_mib = server.rss_bytes() / MEBIBYTE
            figures.store_rss_mib = store.process.memory_info().rss / MEBIBYTE
            figures.disk_mib = store.disk_bytes() / MEBIBYTE
            for step in range(case.steps):
                latencies = [
                    (at - sent[step]) * 1000 for outcome in outcomes for at in outcome["prepared"][step]
                ]
                if len(latencies) != case.sessions:
                    raise RuntimeError(f"{len(latencies)} of {case.sessions} workers got step {step}")
                figures.last_ms.append(max(latencies))
                figures.any_ms += latencies
            store.close()
    return figures


def benchmark(args: argparse.Namespace, report: Report) -> None:
    sizes = [int(size) for size in args.sessions.split(",")]
    steps = args.steps or (8 if args.quick else 20)
    found: dict[int, Figures] = {}
    for size in sizes:
        print(f"{size} sessions, {steps} steps", file=sys.stderr)
        case = Case(
            size, steps, period_seconds=args.period, context_bytes=args.context_bytes, relayed=args.relayed
        )
        found[size] = measure(case, args.profile)
        report.rows += rows(f"{size:,} sessions", found[size], BENDS if size >= 5000 else "")
    report.plots += plots(found)
    if not args.only_sizes:
        few = Case(1000, steps, ests_each=5, period_seconds=args.period)
        report.rows += rows("1,000 sessions of 5 ESTs", measure(few))
        for draws in GENERATOR_DRAWS:
            drawn = Case(1000, steps, period_seconds=args.period, draws=draws)
            report.rows += rows(f"1,000 sessions, generators that draw {draws:,} values", measure(drawn))
        small = Case(5000, steps, period_seconds=args.period, context_bytes=64)
        report.rows += rows("5,000 sessions, contexts of 64 bytes", measure(small))
        relayed = Case(1000, steps, period_seconds=args.period, relayed=8)
        report.rows += rows("1,000 sessions, 8 behind each relay", measure(relayed))
        many = Case(10_000, steps, period_seconds=args.period, context_bytes=64, relayed=8)
        report.rows += rows("10,000 sessions, 8 behind each relay, contexts of 64 bytes", measure(many))
    report.facts["contexts"] = f"{args.context_bytes} bytes of each EST, all of it sent each step"
    report.facts["clients"] = "on the same cores as the master and its store"


def rows(name: str, figures: Figures, note: str = "") -> list[Row]:
    """Build the rows of one case."""
    last, anyone = figures.last_ms, figures.any_ms

    def row(what: str, value: float, unit: str, **more: Any) -> Row:
        return Row(f"{name}: {what}", Series([value], unit), noise=2.0, **more)

    return [
        row("commit latency, last worker, p50", median_of(last), "ms", note=note),
        row("commit latency, last worker, worst step", max(last), "ms"),
        row("commit latency, any worker, p99", percentile(anyone, 99), "ms"),
        row("steps", figures.steps_per_second, "1/s", better="higher"),
        row("master CPU a step", figures.master_cpu_ms_per_step, "ms"),
        row("store CPU a step", figures.store_cpu_ms_per_step, "ms"),
        row("to the store a step", figures.store_bytes_per_step / MEBIBYTE, "MiB"),
        row("master memory", figures.master_rss_mib, "MiB"),
        row("store memory", figures.store_rss_mib, "MiB"),
        row("store on disk", figures.disk_mib, "MiB"),
        row("first Hello to last Go", figures.forming_seconds, "s"),
    ]


def plots(found: dict[int, Figures]) -> list[Plot]:
    """Build the curves over the number of sessions."""

    def line(figure: Any) -> list[tuple[float, float]]:
        return [(float(size), float(figure(figures))) for size, figures in found.items()]

    return [
        Plot(
            "worker_scale_latency",
            "Step-commit latency added by the master",
            "sessions",
            "ms",
            {
                "last worker, p50": line(lambda figures: median_of(figures.last_ms)),
                "last worker, worst step": line(lambda figures: max(figures.last_ms)),
            },
            log_x=True,
            log_y=True,
        ),
        Plot(
            "worker_scale_cost",
            "CPU a step",
            "sessions",
            "ms",
            {
                "master": line(lambda figures: figures.master_cpu_ms_per_step),
                "store": line(lambda figures: figures.store_cpu_ms_per_step),
            },
            log_x=True,
            log_y=True,
        ),
    ]


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--sessions", default="10,100,1000,5000", help="sizes, with commas between")
    parser.add_argument("--steps", type=int, default=0, help="steps of each size; default 20, quick 8")
    parser.add_argument("--period", type=float, default=1.0, help="seconds from step to step, at least")
    parser.add_argument("--context-bytes", type=int, default=CONTEXT_BYTES, help="of each EST")
    parser.add_argument("--relayed", type=int, default=0, help="workers behind each relay; default: none")
    parser.add_argument("--only-sizes", action="store_true", help="nothing but one EST a session")
    parser.add_argument("--profile", default="", metavar="FILE", help="py-spy's stacks of the master")


if __name__ == "__main__":
    run_benchmark("worker_scale", __doc__, benchmark, options)
