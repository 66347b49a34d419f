"""Overhead of elastic training when nothing happens: milliseconds per step beside stock PyTorch.

    python benchmarks/steady_step.py [--quick] [--json [FILE]] [--only TEXT] [--repeats R]

P = N: two workers with one EST each beside stock DDP(gloo) of two processes. P < N: workers with k ESTs each
beside stock DDP with as many processes, which accumulates k micro-batches. The sides train alternately, a
segment of steps each (`baton`), with one thread per process; master and store run on the same machine. The
figure of a segment is the leader's median step, and the ratio is the median over neighbouring segments.

Also at P = N: a master that is 20 ms away (10 ms each way, by a proxy on loopback), with and without steps
that are applied ahead of its answer, beside the same job with a near master.

At P = N, weights, buffers and optimizer state of both sides must be equal at the end; at P < N, those of
all mappings of the same ESTs. Otherwise the benchmark fails.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
from baton import Segment, Side
from harness import Report, Row, Series, run_benchmark
from peers import peer_python
from slow_link import SlowLink

from elastane_cli.rehearse.cluster import LocalCluster
from elastane_cli.rehearse.stock_run import run_stock_ddp
from elastane_proto.v1 import job_pb2

SCRIPT = str(Path(__file__).with_name("steady_script.py"))
FINGERPRINT_SCRIPT = Path(__file__).with_name("fingerprint_cost.py")
TURN_SCRIPT = Path(__file__).with_name("turn_cost.py")


@dataclass(frozen=True)
class Case:
    """One case. batch: mini-batch of an EST. segment: steps in a segment, about a second."""

    model: str
    batch: int
    ests: int
    workers: int
    segment: int
    quick: bool = True
    torchft: bool = False

    @property
    def name(self) -> str:
        """Name of the case, the key of its row."""
        size = f"{MODEL_NAMES[self.model]}, batch {self.batch}"
        if self.ests == self.workers:
            return f"{size}: {self.workers} workers, P = N"
        return f"{size}: {self.ests} ESTs on {self.workers} worker{'s' if self.workers > 1 else ''}"


MODEL_NAMES = {"mlp": "MLP", "cnn": "CNN with BatchNorm", "gpt": "GPT 0.9 M", "gpt-25m": "GPT 25 M"}
CASES = [
    Case("mlp", 32, 2, 2, 250, torchft=True),
    Case("mlp", 512, 2, 2, 80, quick=False),
    Case("cnn", 8, 2, 2, 50),
    Case("cnn", 64, 2, 2, 20),
    Case("gpt", 2, 2, 2, 60, quick=False),
    Case("gpt", 16, 2, 2, 20),
    Case("gpt-25m", 2, 2, 2, 6),
    Case("gpt-25m", 8, 2, 2, 5, quick=False),
    Case("mlp", 64, 4, 1, 80),
    Case("mlp", 64, 4, 2, 100, quick=False),
    Case("cnn", 64, 4, 1, 8),
    Case("cnn", 64, 4, 2, 10),
    Case("gpt", 64, 4, 1, 4, quick=False),
    Case("gpt", 64, 4, 2, 5),
    Case("gpt-25m", 8, 4, 1, 4, quick=False),
    Case("gpt-25m", 8, 4, 2, 4, quick=False),
]
#: Model and batch of an EST: a step of about 20 ms, and one of about 300 ms.
FINGERPRINTED = [("cnn", 16), ("gpt-25m", 2)]
#: Model, batch of an EST, and steps: about 5, 45 and 200 ms a step.
TURNS = [("mlp", 64, 400), ("cnn", 8, 100), ("cnn", 64, 40)]
TURN_ESTS = 4
#: A step of some 25 to 35 ms, and what is added to the way to the master, there and back.
FAR_CASE = Case("cnn", 48, 2, 2, 40)
FAR_SECONDS = 0.02


def measure(args: argparse.Namespace, report: Report) -> None:
    """Measure every case. Raises SystemExit if bits differ."""
    repeats = args.repeats or (3 if args.quick else 8)
    digests: dict[tuple[str, int, int], str] = {}
    for case in CASES:
        if (args.quick and not case.quick) or args.only not in case.name:
            continue
        segments = run_case(case, repeats)
        ours, theirs = segments["elastane"], segments["ddp"]
        report.rows.append(row(case, ours, theirs))
        if "torchft" in segments:
            report.rows.append(torchft_row(case, ours, segments["torchft"]))
        for done in report.rows[-2 if case.torchft else -1 :]:
            print(
                f"{done.case}: {done.ours}, {done.peer_name} {done.peer}: {done.ratio:.3f}", file=sys.stderr
            )
        check_bits(case, ours[-1].facts["digest"], theirs[-1].facts["digest"], digests)
    for model, batch in FINGERPRINTED:
        name = f"{MODEL_NAMES[model]}, batch {batch}: fingerprints of a step"
        if args.only in name:
            report.rows.append(fingerprint_row(name, model, batch, repeats))
    for model, batch, steps in TURNS:
        name = f"{MODEL_NAMES[model]}, batch {batch}: CPU of {TURN_ESTS} ESTs on 1 worker, in one process"
        if args.only in name:
            report.rows.append(turn_row(name, model, batch, steps, repeats))
    for is_ahead in (True, False):
        words = "applied ahead" if is_ahead else "none applied ahead"
        name = f"{FAR_CASE.name}, master {FAR_SECONDS * 1000:.0f} ms away, {words}"
        if args.only in name:
            report.rows.append(far_row(name, repeats, is_ahead=is_ahead))
    report.facts["bits"] = "equal to stock DDP's in every P = N case, and for all mappings of the same ESTs"
    report.facts["repeats"] = repeats


def row(case: Case, ours: list[Segment], theirs: list[Segment]) -> Row:
    """Build the row of our figures beside stock DDP's."""
    whole = case.ests == case.workers
    k = case.ests // case.workers
    return Row(
        case.name,
        series(ours),
        series(theirs),
        "stock DDP" if whole else f"DDP, {k} micro-batches",
        target=1.02 if whole else 1.03,
        slack=1.0 if whole else 0.0,
        noise=1.15 if series(theirs).median > 20 else 1.35,
        note=f"CPU a step, all processes: {cpu(ours):.3g} ms, with the master's; DDP {cpu(theirs):.3g} ms"
        + (f". {CAUSES[whole]}" if series(theirs).median < SMALL_STEP_MILLISECONDS else ""),
    )


def torchft_row(case: Case, ours: list[Segment], theirs: list[Segment]) -> Row:
    """Build the row of our figures beside those of torchft with two replica groups of one process."""
    return Row(
        f"{case.name}, beside torchft",
        series(ours),
        series(theirs),
        "torchft",
        target=1.0,
        noise=1.5,
        note="torchft asks its lighthouse for a quorum and votes on every step",
    )


def fingerprint_row(name: str, model: str, batch: int, repeats: int) -> Row:
    """Measure the CPU time of comparing workers' state beside that of a step."""
    command = [sys.executable, str(FINGERPRINT_SCRIPT), model, str(batch), str(repeats)]
    found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return Row(
        name,
        Series(found["fingerprints"], "ms CPU"),
        Series(found["step"], "ms CPU"),
        "the step",
        target=0.01,
        noise=1.5,
        note="in a ring of several workers; one that is alone has nobody to compare with, and pays nothing",
    )


def turn_row(name: str, model: str, batch: int, steps: int, repeats: int) -> Row:
    """Measure the CPU time of a step of several ESTs beside accumulation, alternately in one process."""
    command = [sys.executable, str(TURN_SCRIPT), model, str(batch), str(TURN_ESTS), str(steps), str(repeats)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    run = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    found = json.loads(run.stdout)
    return Row(
        name,
        Series(found["ours"], "ms CPU"),
        Series(found["plain"], "ms CPU"),
        "accumulation",
        target=1.05,
        noise=1.15,
        note="all threads of the process, without the master's; a step of each side in turn. Accumulation is "
        "plain PyTorch's, which zeroes gradients and steps once for 4 mini-batches",
    )


def far_row(name: str, repeats: int, *, is_ahead: bool) -> Row:
    """Measure a job whose master is far away beside the same job with a near one. Raises SystemExit if bits
    differ."""
    case = FAR_CASE
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        steps = case.segment * (repeats + 1)
        near = stack.enter_context(elastane_side(case, Path(folder, "near"), steps))
        far = stack.enter_context(
            elastane_side(case, Path(folder, "far"), steps, link_seconds=FAR_SECONDS / 2, is_ahead=is_ahead)
        )
        segments: dict[str, list[Segment]] = {"near": [], "far": []}
        for number in range(repeats + 1):
            order = [("near", near), ("far", far)]
            for side_name, side in order if number % 2 else reversed(order):
                segment = side.run()
                if number:
                    segments[side_name].append(segment)
    if segments["near"][-1].facts["digest"] != segments["far"][-1].facts["digest"]:
        raise SystemExit(f"{name}: the result differs from that with a near master")
    return Row(
        name,
        series(segments["far"]),
        series(segments["near"]),
        "a near master",
        target=1.0 if is_ahead else None,
        slack=1.0,
        noise=1.3,
        note="" if is_ahead else "with ELASTANE_APPLY_AHEAD=0 the answer is added to each step",
    )


def series(segments: list[Segment]) -> Series:
    return Series([statistics.median(segment.steps) * 1000 for segment in segments], "ms")


def cpu(segments: list[Segment]) -> float:
    return statistics.median(segment.cpu for segment in segments) * 1000


def check_bits(case: Case, ours: str, theirs: str, digests: dict[tuple[str, int, int], str]) -> None:
    """Raise SystemExit if the result differs from stock DDP's, or depends on the number of workers."""
    if case.ests == case.workers and ours != theirs:
        raise SystemExit(f"{case.name}: the result differs from stock DDP's: {ours[:12]}, {theirs[:12]}")
    known = digests.setdefault((case.model, case.batch, case.ests), ours)
    if known != ours:
        raise SystemExit(f"{case.name}: the result depends on the number of workers")


def run_case(case: Case, repeats: int) -> dict[str, list[Segment]]:
    """Return the segments of each side, one per repeat, run alternately."""
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        # The first segment is an uncounted extra; all mappings of the same ESTs must train equally long.
        steps = SEGMENT_OF[case.model, case.batch, case.ests] * (repeats + 1)
        sides = [stack.enter_context(elastane_side(case, folder, steps))]
        sides.append(stack.enter_context(ddp_side(case, folder, steps)))
        if case.torchft:
            sides.append(stack.enter_context(torchft_side(case, folder, steps)))
        segments: dict[str, list[Segment]] = {side.name: [] for side in sides}
        for number in range(repeats + 1):
            for side in sides if number % 2 else reversed(sides):
                segment = side.run()
                if number:
                    segments[side.name].append(segment)
        return segments


#: Profiled with py-spy and timers around every part of a turn (benchmarks/changes/step.md).
SMALL_STEP_MILLISECONDS = 25.0
CAUSES = {
    True: "A step this short cannot hide the master's answer (1 ms and more from report to Prepared) behind "
    "backward and sums; reporting a batch, and the master on the same two cores, cost as much again",
    False: "What does not shrink with the model: 0.15 ms an EST for context, loader and gradients, and most "
    "of the master's answer (1 ms), which so short a backward cannot hide; accumulation has neither",
}
SEGMENT_OF = {(case.model, case.batch, case.ests): case.segment for case in reversed([*CASES, FAR_CASE])}


def arguments(case: Case, framework: str, steps: int, baton: Path, accumulate: int) -> list[str]:
    segment = SEGMENT_OF[case.model, case.batch, case.ests]
    return [
        SCRIPT, framework, "--model", case.model, "--batch", str(case.batch), "--steps", str(steps),
        "--segment", str(segment), "--accumulate", str(accumulate), "--baton", str(baton),
        "--turns", str(case.ests // case.workers),
    ]  # fmt: skip


@contextlib.contextmanager
def elastane_side(
    case: Case, folder: Path, steps: int, *, link_seconds: float = 0.0, is_ahead: bool = True
) -> Iterator[Side]:
    """Start a master, its private store, and workers that all join the first ring.

    link_seconds: added to the way between them, in each direction. is_ahead: steps may be applied ahead.
    """
    folder.mkdir(exist_ok=True)
    path = folder / "elastane.sock"
    settings = job_pb2.JobSettings(ests=case.ests, workers_min=case.workers, workers_max=case.workers)
    script = arguments(case, "elastane", steps, path, 1)
    environment = {"ELASTANE_APPLY_AHEAD": str(int(is_ahead))}
    cluster = LocalCluster(folder / "cluster", settings, script, environment=environment)
    link: SlowLink | None = None

    def master_cpu() -> float:
        assert cluster.master.pid is not None
        master = psutil.Process(cluster.master.pid)
        times = [process.cpu_times() for process in [master, *master.children(recursive=True)]]
        return sum(time.user + time.system for time in times)

    def failed() -> str | None:
        ended = any(status is not None for status in cluster.statuses().values())
        return cluster.last_lines() if ended else None

    side = Side("elastane", path, case.workers, master_cpu)
    try:
        cluster.start()
        link = SlowLink(cluster.addresses, link_seconds) if link_seconds else None
        for _ in range(case.workers):
            cluster.add_worker(environment={"ELASTANE_MASTER": link.address} if link is not None else {})
        side.meet(failed)
        yield side
        cluster.wait_for_end()
    finally:
        side.close()
        cluster.close()
        if link is not None:
            link.close()


@contextlib.contextmanager
def ddp_side(case: Case, folder: Path, steps: int) -> Iterator[Side]:
    """Start stock DDP, with gradient accumulation if our workers host several ESTs."""
    path = folder / "ddp.sock"
    side = Side("ddp", path, case.workers)
    script = arguments(case, "elastane", steps, path, case.ests // case.workers)
    errors: list[BaseException] = []

    def run() -> None:
        try:
            run_stock_ddp(folder / "ddp", script, processes=case.workers)
        except BaseException as error:  # noqa: BLE001 (raised where it is waited for)
            errors.append(error)

    thread = threading.Thread(target=run, name="stock-ddp")
    thread.start()
    try:
        side.meet(lambda: str(errors[0]) if errors else None)
        yield side
    finally:
        side.close()
        thread.join()
    if errors:
        raise errors[0]


@contextlib.contextmanager
def torchft_side(case: Case, folder: Path, steps: int) -> Iterator[Side]:
    """Start torchft's lighthouse and replica groups of one process each."""
    path = folder / "torchft.sock"
    python = peer_python("torchft")
    side = Side("torchft", path, case.workers)
    port, processes = _free_port(), []
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "TORCH_CPP_LOG_LEVEL": "ERROR",
        "TORCHFT_LIGHTHOUSE": f"http://127.0.0.1:{port}",
    }
    lighthouse = [str(Path(python).parent / "torchft_lighthouse")]
    commands = [[*lighthouse, "--min_replicas", str(case.workers), "--bind", f"[::]:{port}"]]
    for rank in range(case.workers):
        commands.append([python, *arguments(case, "torchft", steps, path, 1), "--rank", str(rank)])
    logs = [folder / f"torchft-{number}.log" for number in range(len(commands))]

    def failed() -> str | None:
        ended = any(process.poll() is not None for process in processes)
        return "\n".join(log.read_text()[-2000:] for log in logs) if ended else None

    try:
        for command, log in zip(commands, logs, strict=True):
            with log.open("wb") as out:
                processes.append(subprocess.Popen(command, stdout=out, stderr=out, env=environment))
        side.meet(failed)
        yield side
    finally:
        side.close()
        for process in processes:
            process.kill()
            process.wait()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", default="", metavar="TEXT", help="cases whose name holds it")
    parser.add_argument("--repeats", type=int, default=0, help="counted segments of each side")


if __name__ == "__main__":
    run_benchmark("steady_step", __doc__ or "", measure, options)
