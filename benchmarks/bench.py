"""Runs all benchmarks, keeps their figures, and writes docs/benchmarks.md from them.

    python benchmarks/bench.py [--only NAME,...] [--full] [--page-only]
    python benchmarks/bench.py --check [--only NAME,...] [--results FOLDER]

Without --full the quick forms are run, which take less than 25 minutes on two idle cores. With --check
nothing is kept: the ratios are compared with the kept ones (benchmarks/results). Ratios that are worse by
more than the noise stated by their benchmark are measured once more, and if they are worse again the exit
code is 1. With --results the figures of an earlier run are compared. Exit code 2: a benchmark failed; the
others are still run.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench_check import Comparison, compare, least_worse
from bench_page import write_page
from harness import Report, Row, Series
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"
PAGE = HERE.parent / "docs" / "benchmarks.md"
BENCHMARKS = (
    "dispatch",
    "data_scale",
    "worker_scale",
    "recovery",
    "steady_step",
    "data_pipeline",
    "allreduce",
    "startup",
    "succession",
    "training_service",
    "schedule_decisions",
    "stragglers",
    "parameter_servers",
    "planner",
    "pipeline_step",
    "pipeline_timeline",
    "pipeline_memory",
    "micro",
)
"""Benchmarks in the order of the page: files beside this one; "micro" is a folder for pytest-benchmark."""

TIMEOUT_SECONDS = 3 * 3600.0
VALUES_MAX = 9
"""Longest series of values that is kept unshortened; ratios are computed from all values before."""

REFERENCE = "reference"
"""Name of the micro-benchmark that the others are compared with."""


class BenchmarkError(Exception):
    """One benchmark failed; the message has the end of its output."""


def run(name: str, results: Path, *, full: bool, profiles: Path | None = None) -> Path:
    """Run one benchmark; return the file with its figures. Raises BenchmarkError.

    profiles: folder with PipeDream's profiles, for the planner; None: it is measured without them.
    """
    found = results / f"{name}.json"
    with tempfile.TemporaryDirectory() as folder:
        fresh, log = Path(folder) / "figures.json", Path(folder) / "log"
        if name == "micro":
            command = [sys.executable, "-m", "pytest", str(HERE / "micro"), f"--benchmark-json={fresh}"]
        else:
            command = [sys.executable, str(HERE / f"{name}.py"), "--json", str(fresh)]
            command += [] if full else ["--quick"]
            command += ["--profiles", str(profiles)] if profiles and name == "planner" else []
        _call(command, log)
        if not fresh.exists():
            raise BenchmarkError(f"{name} wrote no figures; it printed:\n{_end_of(log)}")
        figures = json.loads(fresh.read_text())
        if name == "micro":
            figures = of_micro(figures).as_dict() | {"quick": not full}
        found.write_text(json.dumps(shortened(figures), indent=1) + "\n")
    return found


def shortened(figures: dict[str, Any]) -> dict[str, Any]:
    """Reduce long series of values to minimum, median and maximum, which page and comparison need."""
    for row in figures["rows"]:
        for series in filter(None, (row["ours"], row["peer"])):
            if len(series["values"]) > VALUES_MAX:
                values = series["values"]
                series["values"] = [min(values), statistics.median(values), max(values)]
            series["values"] = [float(f"{value:.6g}") for value in series["values"]]
    return figures


def _call(command: Sequence[str], log: Path) -> None:
    """Run the command in a separate session, so that everything it started can be killed with it."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True, cwd=HERE.parent
        )
        try:
            code = process.wait(TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            _end(process)
            raise BenchmarkError(f"did not end within {TIMEOUT_SECONDS:g} s:\n{_end_of(log)}") from None
        except KeyboardInterrupt:
            _end(process)
            raise
    if code:
        raise BenchmarkError(f"ended with {code}; it printed:\n{_end_of(log)}")


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ask the benchmark to clean up and exit; kill what remains."""
    os.killpg(process.pid, signal.SIGINT)
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _end_of(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-25:])


def of_micro(figures: dict[str, Any]) -> Report:
    """Convert pytest-benchmark's figures to a report in which the reference is the peer of all others."""
    report = Report("micro", "Pure parts alone, in microseconds, beside a fixed amount of plain Python work.")
    names = {one["name"].removeprefix("test_"): one for one in figures["benchmarks"]}
    reference = _series(names.pop(REFERENCE)) if REFERENCE in names else None
    for name, one in names.items():
        note = str(one.get("extra_info", {}).get("note", ""))
        report.rows.append(
            Row(name.replace("_", " "), _series(one), reference, "reference", noise=2.0, note=note)
        )
    return report


def _series(one: dict[str, Any]) -> Series:
    stats = one["stats"]
    # Only the lower half of the distribution: the rest is longer because of other load on the machine.
    return Series([stats[name] * 1e6 for name in ("min", "q1", "median")], "us")


def run_all(
    names: Sequence[str], results: Path, console: Console, *, full: bool, profiles: Path | None = None
) -> dict[str, str]:
    """Run the benchmarks one after the other; return the failures by name."""
    results.mkdir(parents=True, exist_ok=True)
    failures: dict[str, str] = {}
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("", total=len(names))
        for name in names:
            progress.update(task, description=name)
            start = time.monotonic()
            try:
                run(name, results, full=full, profiles=profiles)
            except BenchmarkError as error:
                failures[name] = str(error)
            verdict = "failed" if name in failures else "done"
            progress.console.print(f"{name}: {verdict} after {time.monotonic() - start:.0f} s")
            progress.advance(task)
    for name, text in failures.items():
        console.print(f"[red]{name}[/] {text}", highlight=False)
    return failures


def load(folder: Path, names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Load the kept figures of the benchmarks that have any."""
    files = {name: folder / f"{name}.json" for name in names}
    return {name: json.loads(file.read_text()) for name, file in files.items() if file.exists()}


def show(comparisons: Sequence[Comparison], console: Console) -> None:
    """Print a table of the ratios, with how much worse each is than before."""
    table = Table(title="Ratios beside the kept ones", title_justify="left")
    for column in ("benchmark", "case", "kept", "now", "worse by", "noise", ""):
        table.add_column(column, overflow="fold")
    for one in comparisons:
        now = "missing" if one.now is None else f"{one.now:.3g}"
        worse = "" if one.now is None else f"{one.worse:.2f}x"
        verdict = "[red]regression[/]" if one.regression else "ok"
        table.add_row(one.benchmark, one.case, f"{one.kept:.3g}", now, worse, f"{one.noise:g}x", verdict)
    console.print(table)


def measure(
    names: Sequence[str], kept: dict[str, dict[str, Any]], console: Console, *, full: bool
) -> tuple[dict[str, str], list[Comparison]]:
    """Run the benchmarks and compare them with the kept figures; return failures by name, and comparisons."""
    with tempfile.TemporaryDirectory() as folder:
        failures = run_all(names, Path(folder), console, full=full)
        return failures, compare_all(kept, load(Path(folder), names))


def compare_all(kept: dict[str, dict[str, Any]], now: dict[str, dict[str, Any]]) -> list[Comparison]:
    """Compare all benchmarks that have figures in both."""
    return [one for name in now if name in kept for one in compare(name, kept[name], now[name])]


def check(args: argparse.Namespace, names: Sequence[str], console: Console) -> int:
    """Compare a run with the kept figures; return the exit code."""
    kept = load(RESULTS, names)
    if not kept:
        console.print(f"nothing to compare with: {RESULTS} has no figures of {', '.join(names)}")
        return 2
    failures: dict[str, str] = {}
    if args.results:
        comparisons = compare_all(kept, load(args.results, names))
    else:
        failures, comparisons = measure(list(kept), kept, console, full=args.full)
        if doubtful := list(dict.fromkeys(one.benchmark for one in comparisons if one.regression)):
            console.print(f"measured again, since something was worse: {', '.join(doubtful)}")
            more, second = measure(doubtful, kept, console, full=args.full)
            failures |= more
            comparisons = least_worse(comparisons, second)
    show(comparisons, console)
    worse = [one for one in comparisons if one.regression]
    console.print(f"{len(comparisons)} ratios compared, {len(worse)} worse than noise explains")
    for one in worse:
        console.print(f"worse: {one.benchmark}: {one.case}", soft_wrap=True)
    return 2 if failures or not comparisons else int(bool(worse))


def main() -> None:
    """Entry point: parse the options; run, check, or only write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help=f"some of: {', '.join(BENCHMARKS)}")
    parser.add_argument("--full", action="store_true", help="the long forms, an hour or more")
    parser.add_argument("--profiles", type=Path, help="PipeDream's profiles, for the planner: not shipped")
    parser.add_argument("--page-only", action="store_true", help="write the page from the kept figures")
    parser.add_argument("--check", action="store_true", help="compare with the kept figures, keep nothing")
    parser.add_argument("--results", type=Path, help="with --check: figures of an earlier run")
    args = parser.parse_args()
    names = [name for name in args.only.split(",") if name] or list(BENCHMARKS)
    if unknown := sorted(set(names) - set(BENCHMARKS)):
        parser.error(f"no such benchmark: {', '.join(unknown)}; there are {', '.join(BENCHMARKS)}")
    if args.profiles and not args.profiles.is_dir():
        parser.error(f"no such folder: {args.profiles}")
    if args.results and not args.results.is_dir():
        parser.error(f"no such folder: {args.results}")
    console = Console(highlight=False)
    try:
        if args.check:
            sys.exit(check(args, names, console))
        failures = (
            {} if args.page_only else run_all(names, RESULTS, console, full=args.full, profiles=args.profiles)
        )
    except KeyboardInterrupt:
        sys.exit(130)
    from bench_pictures import draw  # matplotlib is slow to import, and a check does not need it

    write_page(PAGE, load(RESULTS, BENCHMARKS), HERE / "changes", draw)
    console.print(f"wrote {PAGE.relative_to(HERE.parent)}")
    sys.exit(2 if failures else 0)


if __name__ == "__main__":
    main()
