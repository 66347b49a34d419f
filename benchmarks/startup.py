"""Start-up times: help, the first step of a run, the state in a newcomer.

    python benchmarks/startup.py [--quick] [--json [FILE]]

`elastane run` starts its master, its store and two workers; its peer, `torchrun --standalone`, starts two
workers of the same script. The hand-over copies the state of 25 million parameters with AdamW (300 MB) into
the memory of a joining worker, from one donor and from two; its peer is a plain socket, with one sender, into
freshly allocated tensor memory.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil
from harness import Report, Row, Series, in_turn, run_benchmark
from recovery_clusters import SCRIPT, Marks, until

from elastane_cli.commands.catalogue import COMMANDS

MEMBER = str(Path(__file__).parent / "peer_scripts" / "handover_member.py")
ELASTANE = [str(Path(sys.executable).with_name("elastane"))]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]
WORKERS = 2
HELP_SECONDS_MAX = 0.15
PRELOAD_SECONDS = 12.0
"""Seconds from the first step to the kill, enough for a preloaded worker to finish its imports."""
REPLACED_SECONDS_MAX = 1.5


def help_seconds(*command: str) -> float:
    """Return the seconds that `elastane COMMAND --help` takes."""
    began = time.perf_counter()
    subprocess.run([*ELASTANE, *command, "--help"], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def first_step_seconds(command: Sequence[str], framework: str) -> float:
    """Return the seconds from the start of the command to the first step of the last worker."""
    with tempfile.TemporaryDirectory() as name:
        marks = Marks(Path(name) / "marks")
        marks.folder.mkdir()
        arguments = [*command, SCRIPT, framework, "small", str(marks.folder)]
        with running(arguments, Path(name)) as began:
            until(lambda: len(marks.training(1)) == WORKERS, "first step", 120.0)
            return max(marks.steps(pid)[0] for pid in marks.pids()) - began


def replacement_seconds(*options: str) -> float:
    """Return the seconds from the SIGKILL of a worker to the first step of the one that takes its place."""
    with tempfile.TemporaryDirectory() as name:
        marks = Marks(Path(name) / "marks")
        marks.folder.mkdir()
        command = [*ELASTANE, "run", "--ests", str(WORKERS), "--workers", str(WORKERS), *options]
        with running([*command, SCRIPT, "elastane", "small", str(marks.folder)], Path(name)):
            until(lambda: len(marks.training(1)) == WORKERS, "first step", 120.0)
            time.sleep(PRELOAD_SECONDS)  # both ways: the same number of steps before
            victim, *others = marks.pids()
            os.kill(victim, signal.SIGKILL)
            killed = time.monotonic()
            until(lambda: set(marks.training(1, killed)) - {victim, *others}, "step of the other", 120.0)
            [other] = set(marks.training(1, killed)) - {victim, *others}
            is_warm = "elastane.warm_start" in psutil.Process(other).cmdline()
            if is_warm != ("--warm" in options):
                raise SystemExit(f"the replacement was {'a' if is_warm else 'no'} preloaded worker")
            return marks.steps(other)[0] - killed


@contextlib.contextmanager
def running(command: Sequence[str], folder: Path) -> Iterator[float]:
    """Run a command inside the block; yield the time of its start."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(folder)}
    began = time.monotonic()
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)
    try:
        yield began
    except BaseException:
        sys.stderr.write((folder / "log").read_text(errors="replace")[-2000:])
        raise
    finally:
        for _ in range(2):  # the second signal kills the workers instead of waiting for them
            process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(2)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def handover_rates(how: str, donors: int, repeats: int) -> list[float]:
    """Return GB/s of each hand-over to one joining worker."""
    with tempfile.TemporaryDirectory() as name:
        store = str(Path(name) / "store")
        size = donors + 1
        command = [sys.executable, MEMBER, how]
        members = [
            subprocess.Popen([*command, str(rank), str(size), store, str(repeats)], stdout=subprocess.PIPE)
            for rank in range(size)
        ]
        try:
            output, _ = members[0].communicate(timeout=120)
            for member in members[1:]:
                member.wait(30)
        finally:
            for member in members:
                member.kill()
                member.wait()
        rates: list[float] = json.loads(output)
        return rates[1:]  # the first one includes the allocator's warm-up


def benchmark(args: argparse.Namespace, report: Report) -> None:
    def say(text: str) -> None:
        print(text, file=sys.stderr)

    repeats = 5 if args.quick else 15
    help_seconds()  # warm up: loads the files into the page cache
    say("help")
    report.rows.append(
        Row(
            "elastane --help",
            Series([help_seconds() for _ in range(repeats)], "s"),
            target=HELP_SECONDS_MAX,
            target_absolute=True,
        )
    )
    names = [name for name, entry in COMMANDS.items() if not entry.hidden]
    by_command = {name: Series([help_seconds(name) for _ in range(3)], "s") for name in names}
    # `elastane master --help` runs the master's own program, so it is reported separately.
    others = {name: series for name, series in by_command.items() if name != "master"}
    slowest = max(others, key=lambda name: others[name].median)
    report.rows.append(
        Row(
            "elastane COMMAND --help, the slowest",
            others[slowest],
            target=HELP_SECONDS_MAX,
            target_absolute=True,
            note=f"it is that of {slowest}",
        )
    )
    report.facts["help of each command, seconds"] = {
        name: round(series.median, 3) for name, series in by_command.items()
    }

    runs = 3 if args.quick else 7
    with tempfile.TemporaryDirectory() as name:
        state = Path(name) / "state"
        ours = [
            *ELASTANE,
            "run",
            "--ests",
            str(WORKERS),
            "--workers",
            str(WORKERS),
            "--state-dir",
            str(state),
        ]
        ours += ["--job"]
        count = iter(range(1000))
        figures = in_turn(
            runs,
            lambda: first_step_seconds([*ours, f"job-{next(count)}"], "elastane"),
            lambda: first_step_seconds(
                [*TORCHRUN, "--standalone", f"--nproc-per-node={WORKERS}"], "torchrun"
            ),
            progress=lambda text: say(f"first step, {text}"),
        )
    report.rows.append(
        Row(
            "run to first step, 2 workers",
            Series(figures[0], "s"),
            Series(figures[1], "s"),
            "torchrun",
            target=1.0,
            noise=1.4,
            note="ours: the command 0.25 s, master and store 0.5 s; then, as in torchrun's workers, Python, "
            "torch 0.9 s, and torch's compiler, which every optimizer imports, 0.9 s",
        )
    )
    replaced = in_turn(
        runs,
        lambda: replacement_seconds("--warm", "1"),
        replacement_seconds,
        progress=lambda text: say(f"replacement, {text}"),
    )
    report.rows.append(
        Row(
            "worker killed: first step of its preloaded replacement",
            Series(replaced[0], "s"),
            Series(replaced[1], "s"),
            "without --warm",
            target=REPLACED_SECONDS_MAX,
            target_absolute=True,
            noise=1.4,
            note="0.25 s of it is the delay before a restart",
        )
    )
    rounds = 6 if args.quick else 16
    say("hand-over")
    plain = handover_rates("socket", 1, rounds)
    for donors in (1, 2):
        report.rows.append(
            Row(
                f"hand-over of 300 MB, {donors} donor{'s' * (donors > 1)}",
                Series(handover_rates("handover", donors, rounds), "GB/s"),
                Series(plain, "GB/s"),
                "plain socket",
                better="higher",
                noise=1.5,
                note="checksums on both sides are part of it; on two cores donors and newcomer share them"
                if donors > 1
                else "",
            )
        )


if __name__ == "__main__":
    run_benchmark("startup", __doc__, benchmark)
