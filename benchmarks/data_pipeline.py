"""Samples a second from the data workers that ESTs share, beside a stock DataLoader for every rank.

    python benchmarks/data_pipeline.py [--quick] [--json [FILE]] [--only TEXT] [--repeats R]

Stock: K ranks, each a process with its own W data workers. Ours: one worker that hosts the K ESTs, with W
data workers for all of them: a quarter of the processes. Nothing is trained, so that only batches cost time.
Both sides load alternately, a segment at a time (`baton`); batches that were prefetched while the other side
ran are not counted. Every rank must get the same batches from both.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from baton import Segment, Side
from harness import Report, Row, Series, run_benchmark

SCRIPT = str(Path(__file__).with_name("data_script.py"))
ESTS = 4
AHEAD = 12
"""Uncounted batches of a rank at the start of a segment, which may have been prefetched before it."""


@dataclass(frozen=True)
class Case:
    """One case. segment: batches of each rank in a segment."""

    dataset: str
    what: str
    workers: int
    batch: int
    segment: int
    quick: bool = True

    @property
    def name(self) -> str:
        return f"{self.what}: {self.workers} shared data workers beside {ESTS} ranks with {self.workers} each"


CASES = [
    Case("decode", "images, decompressed and cropped", 2, 16, 240),
    Case("decode", "images, decompressed and cropped", 4, 16, 240, quick=False),
    Case("rows", "rows of a table", 2, 64, 600),
    Case("rows", "rows of a table", 4, 64, 600, quick=False),
]


def measure(args: argparse.Namespace, report: Report) -> None:
    """Measure every case. Raises SystemExit if a rank gets other batches than under stock."""
    repeats = args.repeats or (3 if args.quick else 7)
    for case in CASES:
        if (args.quick and not case.quick) or args.only not in case.name:
            continue
        ours, theirs = run_case(case, repeats)
        report.rows.append(
            Row(
                case.name,
                Series([rate(case, segment) for segment in ours], "samples/s"),
                Series([rate(case, segment) for segment in theirs], "samples/s"),
                f"stock, {ESTS} x {case.workers} data workers",
                better="higher",
                target=1.0,
                noise=1.25,
                note=f"{1 + case.workers} processes beside {ESTS * (1 + case.workers)}",
            )
        )
        done = report.rows[-1]
        print(f"{done.case}: {done.ours}, {done.peer_name} {done.peer}: {done.ratio:.3f}", file=sys.stderr)
    report.facts["batches"] = "the same for every rank on both sides"
    report.facts["repeats"] = repeats


def rate(case: Case, segment: Segment) -> float:
    """Return samples per second of a side, without prefetched batches, until its last process is done."""
    counted = [steps[AHEAD * len(steps) // case.segment :] for steps in segment.processes]
    return sum(map(len, counted)) * case.batch / max(map(sum, counted))


def run_case(case: Case, repeats: int) -> tuple[list[Segment], list[Segment]]:
    """Return our segments and stock's, run alternately."""
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        batches = case.segment * (repeats + 1)
        ours = stack.enter_context(running(case, "shared", folder, batches, 1))
        theirs = stack.enter_context(running(case, "stock", folder, batches, ESTS))
        segments: dict[str, list[Segment]] = {"shared": [], "stock": []}
        for number in range(repeats + 1):
            for side in (ours, theirs) if number % 2 else (theirs, ours):
                segments[side.name].append(side.run())
        check_batches(case, segments)
        return segments["shared"][1:], segments["stock"][1:]


def check_batches(case: Case, segments: dict[str, list[Segment]]) -> None:
    """Compare the digests of every rank's batches on both sides. Raises SystemExit."""
    ours = segments["shared"][-1].facts["digests"]
    for report in segments["stock"][-1].reports:
        for rank, digest in report["digests"].items():
            if ours[rank] != digest:
                raise SystemExit(f"{case.name}: rank {rank} got other batches than under stock")


@contextlib.contextmanager
def running(case: Case, kind: str, folder: Path, batches: int, processes: int) -> Iterator[Side]:
    """Start the processes of a side; yield it when all have reached their first batch."""
    side = Side(kind, folder / f"{kind}.sock", processes)
    command = [
        sys.executable, SCRIPT, kind, "--dataset", case.dataset, "--ests", str(ESTS),
        "--workers", str(case.workers), "--batch", str(case.batch), "--batches", str(batches),
        "--segment", str(case.segment), "--baton", str(side.path),
    ]  # fmt: skip
    log = folder / f"{kind}.log"
    started: list[subprocess.Popen[bytes]] = []

    def failed() -> str | None:
        return log.read_text()[-2000:] if any(one.poll() is not None for one in started) else None

    try:
        with log.open("ab") as out:
            for rank in range(processes):
                started.append(
                    subprocess.Popen(
                        [*command, "--rank", str(rank)],
                        stdout=out,
                        stderr=out,
                        env={**os.environ, "OMP_NUM_THREADS": "1"},
                    )
                )
        side.meet(failed)
        yield side
    finally:
        side.close()
        for one in started:
            try:
                one.wait(10.0)
            except subprocess.TimeoutExpired:
                one.kill()
                one.wait()


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", default="", metavar="TEXT", help="cases whose name holds it")
    parser.add_argument("--repeats", type=int, default=0, help="counted segments of each side")


if __name__ == "__main__":
    run_benchmark("data_pipeline", __doc__ or "", measure, options)
