"""Trace formats, recognized by their header. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from elastane_scheduler.errors import InvalidSettings, InvalidTrace
from elastane_scheduler.pool import Pool
from elastane_scheduler.simulation.public_traces import (
    read_easyscale,
    read_philly,
    read_sia,
    read_tiresias,
)
from elastane_scheduler.simulation.times import StepTimes
from elastane_scheduler.simulation.traces import Workload, read_own

#: A column that only this format has.
_MARKS = {
    "own": "est_seconds",
    "easyscale": "max_parallelism",
    "philly": "gpu_time",
    "tiresias": "submit_time",
    "sia": "num_replicas",
}


@dataclass(frozen=True)
class ReadOptions:
    """How to read a trace. jobs_max: the first jobs alone. ests_per_device: of traces that know devices
    alone.

    merge: rows of one name are one job, as EasyScale's published simulator has it.
    """

    jobs_max: int | None = None
    ests_per_device: int = 1
    merge: bool = False


def format_of(header: str) -> str:
    """Return the format of a trace by its first line. Raises InvalidTrace."""
    columns = [name.strip() for name in header.split(",")]
    for name, mark in _MARKS.items():
        if mark in columns:
            return name
    raise InvalidTrace(
        f"no known trace has the columns {header.strip()[:80]!r}",
        line=1,
        hint=f"Known: {', '.join(_MARKS)}; ours begins with name,arrival_seconds,ests,steps,est_seconds.",
    )


def read_trace(lines: Sequence[str], pool: Pool, times: StepTimes, options: ReadOptions) -> Workload:
    """Read a trace of any known format. Raises InvalidTrace, InvalidSettings for options that it has not."""
    kind = format_of(lines[0] if lines else "")
    if options.merge and kind != "easyscale":
        raise InvalidSettings(f"a trace of {kind} has no published reading", hint="Leave out --artifact.")
    if kind == "philly":
        return read_philly(lines, pool, options.jobs_max, options.ests_per_device)
    if kind == "easyscale":
        workload = read_easyscale(lines, pool, times, merge=options.merge)
    elif kind == "tiresias":
        workload = read_tiresias(lines, pool, options.ests_per_device)
    elif kind == "sia":
        workload = read_sia(lines, pool, times)
    else:
        workload = read_own(lines, pool)
    if options.jobs_max is not None:
        workload.jobs = sorted(workload.jobs, key=lambda job: job.arrival_seconds)[: options.jobs_max]
    return workload


def add_times(times: StepTimes, lines: Sequence[str], file_name: str) -> None:
    """Read a table of step times: EasyScale's, or one of Sia's named scalability-APPLICATION-TYPE.csv."""
    columns = [name.strip() for name in (lines[0] if lines else "").split(",")]
    if "ddp_determinism" in columns:
        times.add_easyscale(lines)
        return
    stem = file_name.removesuffix(".csv")
    prefix, _, rest = stem.partition("-")
    application, _, device_type = rest.partition("-")
    if prefix != "scalability" or not application or not device_type:
        raise InvalidTrace(
            f"{file_name} is no table of times", line=1, hint="Name it scalability-APPLICATION-TYPE.csv."
        )
    times.add_sia(lines, application, device_type)
