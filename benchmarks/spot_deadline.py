"""A job with a deadline on spot machines: its cost over on-demand machines, beside Uniform Progress.

    python benchmarks/spot_deadline.py TRACE... [--quick] [--json [FILE]]

TRACE: spot availability as JSON, such as the 16-node traces of github.com/skypilot-org/spot-traces. A job of
16 ESTs with 24 h of work on 8 workers starts each 12 h of each trace, with a deadline 1.1, 1.25 and 1.5 times
its work; spot costs 0.33 of on-demand machines, and a machine trains 360 s after it is asked for. Time is
simulated: the figures do not depend on the machine.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from harness import Report, Row, Series, run_benchmark

from elastane_scheduler.autoscaling.spot_deadline import UniformProgress, WideSpot
from elastane_scheduler.errors import SchedulerError
from elastane_scheduler.simulation.availability import Availability, read_availability
from elastane_scheduler.simulation.spot_replay import SpotJob, replay_all

AIMS = {1.1: 0.66, 1.25: 0.64, 1.5: 0.61}
"""Target by deadline: mean cost of the wide policy relative to on-demand machines."""


def options(parser: argparse.ArgumentParser) -> None:
    """Add the traces."""
    parser.add_argument("traces", nargs="+", type=Path, metavar="TRACE")


def read(path: Path) -> Availability:
    """Read a trace. Exits if it cannot be read."""
    try:
        return read_availability(path.read_text())
    except (OSError, UnicodeDecodeError, SchedulerError) as error:
        raise SystemExit(f"{path}: {error}") from error


def measure(arguments: argparse.Namespace, report: Report) -> None:
    """Simulate all starts under both policies."""
    traces, job = [read(path) for path in arguments.traces], SpotJob()
    every = 48.0 if arguments.quick else 12.0
    for deadline, aim in AIMS.items():
        try:
            wide = replay_all(traces, job, deadline, WideSpot(), every)
            uniform = replay_all(traces, job, deadline, UniformProgress(job.workers), every)
        except SchedulerError as error:
            raise SystemExit(f"{error}. {error.hint}") from error
        case = f"deadline x{deadline:g}"
        starts = len(wide.outcomes)
        report.rows.append(
            Row(
                f"{case}: mean cost of {starts} starts",
                Series([wide.cost], ""),
                Series([uniform.cost], ""),
                "Uniform Progress",
                target=aim,
                target_absolute=True,
            )
        )
        report.rows.append(
            Row(
                f"{case}: jobs that are late",
                Series([float(wide.late)], ""),
                Series([float(uniform.late)], ""),
                "Uniform Progress",
                target=0.0,
                target_absolute=True,
                note=f"the last one ends {-wide.latest_seconds:,.0f} s before its deadline",
            )
        )


if __name__ == "__main__":
    run_benchmark("spot_deadline", __doc__ or "", measure, options)
