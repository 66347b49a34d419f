"""The training service: how fast runs are taken, started, ended and shown, beside the jobs of Ray.

    python benchmarks/training_service.py [--quick] [--json [FILE]]

Clients are separate processes with one call in flight each, or with one stream of our client. Elastane
answers a submission once it is stored; Ray's head keeps jobs in memory, its default without an external
Redis. All slots are occupied while runs are submitted, so that all of these wait. Scripts run under the same
interpreter on all sides and report when their first line ran. Everything runs on one machine.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from harness import Better, Report, Row, Series, percentile, run_benchmark
from servers import SCRIPTS, echo_server, run_clients
from training_services import (
    GRACE_SECONDS,
    Ours,
    Ray,
    TrainingService,
    ours,
    ray,
    seconds_until_gone,
    timed_run,
    until,
    written,
)

QUEUED = 10_000
RUNS_AT_ONCE = 20
"""Runs of a sweep that are submitted in one call."""
WATCHES = 1_000
REQUEST_BYTES, ANSWER_BYTES = 50, 220
"""Size of a submission and of its answer, in bytes."""
ADOPTED = 8
GETS = 2_000
LINES = 100
LEFT_SECONDS = 20.0
"""Seconds after a cancellation; processes that still run then count as left over."""
NOISE = 2.0
PEER = "ray job submit"


class Figures:
    """Repeated measurements, by case."""

    def __init__(self) -> None:
        self.values: dict[str, list[float]] = {}

    def note(self, case: str, value: float) -> None:
        """Add a measurement."""
        self.values.setdefault(case, []).append(value)

    def series(self, case: str, unit: str) -> Series:
        """Return all of a case."""
        return Series(self.values[case], unit)


def progress(text: str) -> None:
    print(text, file=sys.stderr)


# ---------------------------------------------------------------- a queue


def submissions(
    service: Ours,
    clients: int,
    seconds: float,
    count: int = 1_000_000,
    name: str = "c",
    warm: int = 100,
    mode: str = "call",
) -> tuple[float, float]:
    """Return submissions per second of all clients together, and their p99 in ms.

    warm: runs that each client submits before the measurement. mode: call, each (over a stream), or the
    number of runs in a call.
    """
    script = str(SCRIPTS / "submit_client.py")
    results = run_clients(
        [
            [
                sys.executable,
                script,
                service.master.address,
                *map(str, (seconds, count, f"{name}{one}", warm, mode)),
            ]
            for one in range(clients)
        ]
    )
    latencies = [latency for result in results for latency in result["latencies"]]
    return sum(result["runs"] / result["seconds"] for result in results), percentile(latencies, 99) * 1000


def echoes(clients: int, seconds: float) -> float:
    """Return calls per second of a bare server, with messages of a submission's size."""
    script = str(SCRIPTS / "echo_client.py")
    with echo_server(ANSWER_BYTES) as server:
        command = [sys.executable, script, server.address, str(seconds), str(REQUEST_BYTES), "call"]
        return sum(result["tasks"] / result["seconds"] for result in run_clients([command] * clients))


def fill(service: Ours, runs: int) -> None:
    """Submit this many runs."""
    submissions(service, 4, 600.0, runs // 4, "f", warm=0)
    assert len(service.ids()) == runs


def get_p99_ms(service: Ours, runs: int) -> float:
    """Return the p99 of Get calls for random runs, one call at a time."""
    took = []
    for _ in range(GETS):
        run_id = random.randint(1, runs)
        before = time.perf_counter()
        service.get(run_id)
        took.append(time.perf_counter() - before)
    return percentile(took, 99) * 1000


@contextlib.contextmanager
def watches(service: Ours, count: int) -> Iterator[None]:
    """Context manager that holds watches of the first `count` runs open."""
    command = [sys.executable, str(SCRIPTS / "watch_runs.py"), service.master.address, str(count)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdin is not None
        try:
            if process.stdout.readline().strip() != "ready":
                raise RuntimeError("the watches did not begin")
            yield
        finally:
            process.stdin.close()


def measure_queue(repeats: int, seconds: float, ray_seconds: float) -> Figures:
    """Measure operations on waiting runs; return the figures of each case."""
    figures = Figures()
    for number in range(repeats):
        progress(f"submissions, run {number + 1} of {repeats}")
        for clients in (1, 8):
            with ours(0) as service:
                rate, p99 = submissions(service, clients, seconds)
                figures.note(f"rate {clients}", rate)
                figures.note(f"p99 {clients}", p99)
            with ours(0) as service:
                rate, p99 = submissions(service, clients, seconds, mode="each")
                figures.note(f"stream rate {clients}", rate)
                figures.note(f"stream p99 {clients}", p99)
            with ours(0) as service:
                rate, p99 = submissions(service, clients, seconds, mode=str(RUNS_AT_ONCE))
                figures.note(f"sweep rate {clients}", rate)
                figures.note(f"sweep p99 {clients}", p99)
            figures.note(f"echo {clients}", echoes(clients, seconds))
        with ray(1) as peer:
            measure_ray_queue(peer, ray_seconds, figures)
    with ours(0) as service:
        progress(f"{QUEUED:,} queued")
        fill(service, QUEUED)
        before = service.ids()
        for _ in range(repeats):
            figures.note("get", get_p99_ms(service, QUEUED))
        for with_store in (False, True):
            for _ in range(repeats):
                figures.note(f"restart {with_store}", service.restart_master(with_store=with_store))
                figures.note(f"kept {with_store}", 100.0 * len(before & service.ids()) / len(before))
    for number in range(repeats):
        # Each in its own service, because together they would exceed the limit of waiting runs.
        progress(f"{WATCHES:,} watches, run {number + 1} of {repeats}")
        with ours(0) as service:
            fill(service, WATCHES)
            figures.note("unwatched", submissions(service, 1, seconds, name="u")[0])
            with watches(service, WATCHES):
                figures.note("watched", submissions(service, 1, seconds, name="w")[0])
    return figures


def measure_ray_queue(peer: Ray, seconds: float, figures: Figures) -> None:
    """Measure Ray's queue: occupy its slot, and submit jobs that need it."""
    peer.submit(timed_run("stays", peer.folder / "pid"))
    found = peer.ask("rate", seconds=seconds, command="true")
    figures.note("ray rate", len(found["jobs"]) / found["seconds"])
    figures.note("ray queued", len(found["jobs"]))
    took = peer.ask("status", jobs=found["jobs"], count=200)["seconds"]
    figures.note("ray status", percentile(took, 99) * 1000)
    before = peer.ask("count")["count"]
    figures.note("ray restart", peer.restart())
    figures.note("ray kept", 100.0 * peer.ask("count")["count"] / before)


def queue_rows(figures: Figures) -> list[Row]:
    """Build the rows of operations on waiting runs."""
    series = figures.series
    queued = f"{figures.values['ray queued'][0]:.0f} queued"
    watched = f"submissions, 1 client, while {WATCHES:,} watch other runs"
    rows = [
        row(
            "submissions, 1 client, a call each",
            series("rate 1", "runs/s"),
            500.0,
            series("ray rate", "runs/s"),
            PEER,
        ),
        row(
            "submissions, 8 clients, a call each",
            series("rate 8", "runs/s"),
            2000.0,
            series("ray rate", "runs/s"),
            f"{PEER}, 1 client",
        ),
        row("submissions, 1 client, over one stream", series("stream rate 1", "runs/s"), 500.0),
        row("submissions, 8 clients, over one stream each", series("stream rate 8", "runs/s"), 2000.0),
        row(f"submissions, 1 client, {RUNS_AT_ONCE} in a call", series("sweep rate 1", "runs/s"), 500.0),
        row(f"submissions, 8 clients, {RUNS_AT_ONCE} in a call", series("sweep rate 8", "runs/s"), 2000.0),
        beside_echo("calls of 1 client that submit", series("rate 1", "1/s"), series("echo 1", "1/s")),
        beside_echo("calls of 8 clients that submit", series("rate 8", "1/s"), series("echo 8", "1/s")),
        beside_echo(
            "streams of 8 clients that submit", series("stream rate 8", "1/s"), series("echo 8", "1/s")
        ),
        Row("p99 of a submission, 1 client, a call each", series("p99 1", "ms")),
        Row("p99 of a submission, 8 clients, a call each", series("p99 8", "ms")),
        Row("p99 of a submission, 8 clients, over one stream each", series("stream p99 8", "ms")),
        Row(f"p99 of a call of {RUNS_AT_ONCE}, 8 clients", series("sweep p99 8", "ms")),
        row(
            f"p99 of Get with {QUEUED:,} queued",
            series("get", "ms"),
            10.0,
            series("ray status", "ms"),
            f"{PEER}, {queued}",
        ),
        row(f"master back after SIGKILL with {QUEUED:,} queued", series("restart False", "s"), 2.0),
        Row(
            "the same, its store killed with it",
            series("restart True", "s"),
            series("ray restart", "s"),
            f"Ray's head, {queued}",
            noise=NOISE,
        ),
        row("runs kept over SIGKILL of the master", series("kept False", "%"), 100.0),
        row(
            "runs kept over SIGKILL of master and store",
            series("kept True", "%"),
            100.0,
            series("ray kept", "%"),
            "Ray's head",
        ),
        Row(
            watched,
            series("watched", "runs/s"),
            series("unwatched", "runs/s"),
            "nobody watches",
            "higher",
            0.8,
            noise=NOISE,
        ),
    ]
    for one in rows:
        if one.met is False:
            one.note = f"in the same run a bare echo answered {series('echo 1', 'calls/s')} of one client"
    return rows


def beside_echo(case: str, mine: Series, echo: Series) -> Row:
    """Build a row beside a bare server with messages of the same size."""
    return Row(case, mine, echo, "bare echo", "higher", noise=NOISE)


def row(case: str, mine: Series, target: float, theirs: Series | None = None, peer: str = "") -> Row:
    """Build a row with a bound on our figure as target: lower for rates and shares, upper for times."""
    better: Better = "higher" if mine.unit in ("runs/s", "%") else "lower"
    return Row(case, mine, theirs, peer, better, target, True, noise=NOISE)


# ---------------------------------------------------------------- processes


def bare_seconds(folder: Path, name: str) -> float:
    """Return the seconds from the start of a bare interpreter to the first line of a script."""
    path = folder / name
    began = time.monotonic()
    subprocess.run(timed_run("first", path), check=True)
    return written(path)[0] - began


def first_line_seconds(service: TrainingService, path: Path) -> float:
    """Return the seconds from a submission to a free slot to the first line of its script."""
    began = time.monotonic()
    service.submit(timed_run("first", path))
    return written(path)[0] - began


def next_line_seconds(service: TrainingService, path: Path) -> float:
    """Return the seconds from the last line of a script to the first line of the next, which was waiting."""
    one, other, free = (path.with_suffix(suffix) for suffix in (".one", ".other", ".free"))
    service.submit(timed_run("until", one, free))
    written(one)
    service.submit(timed_run("first", other))
    time.sleep(0.5)  # Ray's job supervisor takes a moment before it waits for the slot
    free.touch()
    began = written(other)[0]
    return began - until(lambda: found[1] if len(found := written(one)) > 1 else None, "the end")


def cancel_seconds(service: TrainingService, path: Path) -> float:
    """Return the seconds from a cancellation to the end of all processes, less the grace period."""
    job = service.submit(timed_run("stubborn", path))
    pids = [int(pid) for pid in written(path)]
    began = time.monotonic()
    service.cancel(job)
    return seconds_until_gone(pids, began, LEFT_SECONDS) - GRACE_SECONDS


def line_p99_ms(service: TrainingService, path: Path) -> float:
    """Return p99 of the time from a line's print to its reader."""
    job = service.submit(timed_run("lines", path, LINES))
    written(path)
    return percentile(service.log_delays(job, LINES), 99) * 1000


def process_rows(repeats: int) -> list[Row]:
    """Measure starts, ends and logs of processes, alternating between the services."""
    first, following, cancels, lines = ({"ours": [], "ray": []} for _ in range(4))
    with tempfile.TemporaryDirectory() as name, ours(1) as mine, ray(1) as peer:
        folder = Path(name)
        services: list[tuple[str, TrainingService]] = [("ours", mine), ("ray", peer)]
        for who, service in services:  # the first measurement includes one-time costs
            first_line_seconds(service, folder / f"{who}-warm")
        for number in range(repeats):
            progress(f"processes, run {number + 1} of {repeats}")
            bare = bare_seconds(folder, f"bare{number}")
            for who, service in services:
                path = folder / f"{who}{number}"
                first[who].append(first_line_seconds(service, path.with_suffix(".first")) - bare)
                following[who].append(next_line_seconds(service, path) - bare)
                cancels[who].append(cancel_seconds(service, path.with_suffix(".cancel")))
                lines[who].append(line_p99_ms(service, path.with_suffix(".lines")))

    def both(case: str, found: dict[str, list[float]], unit: str, target: float) -> Row:
        return row(case, Series(found["ours"], unit), target, Series(found["ray"], unit), PEER)

    return [
        both("submission to the first line of the script, beyond bare python", first, "s", 0.5),
        both(
            "a slot comes free, to the first line of the next script, beyond bare python", following, "s", 0.5
        ),
        both(f"cancel to the last process gone, beyond the grace of {GRACE_SECONDS:g} s", cancels, "s", 1.0),
        both("a line of the log to its reader, p99", lines, "ms", 100.0),
    ]


def adoption_rows(repeats: int) -> list[Row]:
    """Measure how a runner that was killed with all slots in use adopts its ranks after a restart."""
    seconds, restarted = [], []
    with tempfile.TemporaryDirectory() as name, ours(ADOPTED) as service:
        paths = [Path(name) / str(number) for number in range(ADOPTED)]
        runs = [int(service.submit(timed_run("stays", path))) for path in paths]
        before = [written(path) for path in paths]
        for number in range(repeats):
            progress(f"adoption, run {number + 1} of {repeats}")
            began = time.monotonic()
            service.kill_runner()
            until(lambda: None if service.attending() else True, "the end of the stream")
            service.start_runner()
            until(lambda: service.attending() or None, "the runner")
            states = [service.get(run).attempt for run in runs]
            seconds.append(time.monotonic() - began)
            assert service.service().slots_used == ADOPTED
            changed = sum(written(path) != pid for path, pid in zip(paths, before, strict=True))
            restarted.append(float(changed + sum(attempt != 1 for attempt in states)))
        for run in runs:
            service.cancel(str(run))
    return [
        row(f"runner killed, started again: its {ADOPTED} processes adopted", Series(seconds, "s"), 5.0),
        row("the same: processes started again", Series(restarted, ""), 0.0),
    ]


def benchmark(args: argparse.Namespace, report: Report) -> None:
    repeats, seconds, ray_seconds = (2, 2.0, 5.0) if args.quick else (5, 5.0, 20.0)
    report.facts["grace between SIGTERM and SIGKILL, on both sides"] = f"{GRACE_SECONDS:g} s"
    report.rows += queue_rows(measure_queue(repeats, seconds, ray_seconds))
    report.rows += process_rows(repeats)
    report.rows += adoption_rows(repeats)


if __name__ == "__main__":
    run_benchmark("training_service", __doc__, benchmark)
