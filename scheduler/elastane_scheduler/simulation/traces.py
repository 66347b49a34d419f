"""Traces: parsing of CSV of several formats into jobs. Pure; every refusal names the line.

own        name,arrival_seconds,ests,steps,est_seconds[,mixes,preferred,workers_min,queue,weight,known]
easyscale  name,time,application,max_parallelism,batch_size,epochs,enable_...,preferred_gpu, with a table of
times philly     timestamp,duration,num_gpus,gpu_time,cluster tiresias
job_id,num_gpu,submit_time,iterations,model_name,duration,interval sia
name,time,application,num_replicas,batch_size, with a table of times for each application
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from elastane_scheduler.amounts import AMOUNT_MAX
from elastane_scheduler.errors import InvalidSettings, InvalidTrace
from elastane_scheduler.jobs import Job
from elastane_scheduler.plan import Shape
from elastane_scheduler.pool import Counts, Pool

ROWS_MAX = 1_000_000


@dataclass(frozen=True)
class Row:
    """A line of a trace by the names of its columns."""

    line: int
    cells: dict[str, str]

    def text(self, column: str, default: str | None = None) -> str:
        """Return a cell. Raises InvalidTrace for an empty one without a default."""
        value = (self.cells.get(column) or "").strip()
        if not value and default is None:
            raise InvalidTrace(f"no {column}", line=self.line, hint=f"Every job needs {column}.")
        return value or default or ""

    def number(self, column: str, *, least: float = 0.0, default: str | None = None) -> float:
        """Return a finite number of at least `least`. Raises InvalidTrace."""
        text = self.text(column, default)
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value) or value < least or value > AMOUNT_MAX:
            raise InvalidTrace(
                f"{column} is {text!r}",
                line=self.line,
                hint=f"Give a number from {least:g} to {AMOUNT_MAX:g}.",
            )
        return value

    def above_zero(self, column: str) -> float:
        """Return a number above 0. Raises InvalidTrace."""
        value = self.number(column)
        if value == 0:
            raise InvalidTrace(f"{column} is 0", line=self.line, hint="Give a number above 0.")
        return value

    def whole(self, column: str, *, least: int = 1, default: str | None = None) -> int:
        """Return a whole number. Raises InvalidTrace."""
        value = self.number(column, least=least, default=default)
        if value != int(value):
            raise InvalidTrace(f"{column} is {value:g}", line=self.line, hint="Give a whole number.")
        return int(value)

    def refuse(self, error: InvalidSettings) -> InvalidTrace:
        """Return the refusal of a value as one of this line."""
        return InvalidTrace(str(error.args[0]), line=self.line, hint=error.hint)


@dataclass
class Workload:
    """Jobs of a trace in the order of their lines, and notices about how they were read."""

    jobs: list[Job] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)


def rows(lines: Iterable[str], needed: Sequence[str]) -> Iterator[Row]:
    """Read CSV with a header.

    Raises InvalidTrace for columns that are missing and lines that are too long.
    """
    reader = csv.reader(lines)
    try:
        header = [name.strip() for name in next(reader)]
    except StopIteration:
        raise InvalidTrace("the trace is empty", line=1, hint="It begins with a header.") from None
    except csv.Error as error:
        raise InvalidTrace(str(error), line=1) from None
    missing = [column for column in needed if column not in header]
    if missing:
        raise InvalidTrace(f"no column {', '.join(missing)}", line=1, hint=f"It has {', '.join(header)}.")
    while True:
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise InvalidTrace(str(error), line=reader.line_num) from None
        if reader.line_num > ROWS_MAX:
            raise InvalidTrace(f"more than {ROWS_MAX} lines", line=reader.line_num)
        if any(cell.strip() for cell in cells):
            yield Row(reader.line_num, dict(zip(header, cells, strict=False)))


class Shapes:
    """Shapes of jobs: equal jobs share one, and its cache of plans."""

    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], Shape] = {}

    def get(self, ests: int, seconds: Sequence[float], mixes: bool = True, workers_min: int = 1) -> Shape:
        """Return the shape of these values. Raises InvalidSettings."""
        key = (ests, tuple(seconds), mixes, workers_min)
        if key not in self._known:
            self._known[key] = Shape(ests, tuple(seconds), (), mixes, workers_min)
        return self._known[key]


def request_for(shape: Shape, pool: Pool, preferred: int) -> Counts:
    """Return one device for each EST on the preferred type, or as many as the pool has."""
    wanted = min(shape.ests, pool.counts[preferred])
    return tuple(wanted if i == preferred else 0 for i in range(len(pool.counts)))


def flag(row: Row, column: str, notices: list[str], default: str = "0") -> bool:
    """Return a flag; other values than 0 and 1 count as 1, with a notice."""
    text = row.text(column, default)
    if text not in ("0", "1"):
        notices.append(f"line {row.line}: {column} is {text!r}, taken as 1")
    return text != "0"


def distinct(jobs: Sequence[tuple[int, Job]], notices: list[str]) -> list[Job]:
    """Tell repeated names apart by their line, with one notice."""
    counts: dict[str, int] = {}
    for _, job in jobs:
        counts[job.name] = counts.get(job.name, 0) + 1
    repeated = [name for name, count in counts.items() if count > 1]
    if repeated:
        shown = ", ".join(repeated[:3]) + (" ..." if len(repeated) > 3 else "")
        notices.append(f"{len(repeated)} names stand on several lines ({shown}): told apart by the line")
    return [job if counts[job.name] == 1 else renamed(job, f"{job.name}@{line}") for line, job in jobs]


def renamed(job: Job, name: str) -> Job:
    """Return the job under another name."""
    return Job(name, job.shape, job.steps, job.arrival_seconds, job.request, job.queue, job.weight, job.known)


def read_own(lines: Iterable[str], pool: Pool) -> Workload:
    """Read our own format. est_seconds: `v100=0.2;p100=0.35`, the types on which the job may run.

    mixes: 0 or 1, whether they may train together. preferred: the type of a request without elasticity, else
    the fastest. known: 0 hides the steps from policies. Raises InvalidTrace.
    """
    found: list[tuple[int, Job]] = []
    workload, shapes = Workload(), Shapes()
    for row in rows(lines, ("name", "arrival_seconds", "ests", "steps", "est_seconds")):
        seconds = _est_seconds(row, pool)
        mixes = flag(row, "mixes", workload.notices)
        try:
            shape = shapes.get(row.whole("ests"), seconds, mixes, row.whole("workers_min", default="1"))
            fastest = pool.types[min(range(len(seconds)), key=lambda i: seconds[i])]
            preferred = pool.index(row.text("preferred", fastest))
            job = Job(
                row.text("name"),
                shape,
                row.above_zero("steps"),
                row.number("arrival_seconds"),
                request_for(shape, pool, preferred),
                row.text("queue", "default"),
                row.number("weight", default="1"),
                flag(row, "known", workload.notices, "1"),
            )
        except InvalidSettings as error:
            raise row.refuse(error) from None
        found.append((row.line, job))
    workload.jobs = distinct(found, workload.notices)
    return workload


def _est_seconds(row: Row, pool: Pool) -> list[float]:
    seconds = [math.inf] * len(pool.types)
    for part in row.text("est_seconds").split(";"):
        name, equals, value = part.strip().partition("=")
        try:
            index = pool.index(name)
            number = float(value) if equals else math.nan
        except InvalidSettings as error:
            raise row.refuse(error) from None
        except ValueError:
            number = math.nan
        if not (math.isfinite(number) and number > 0):
            raise InvalidTrace(f"est_seconds has {part!r}", line=row.line, hint="Write v100=0.2;p100=0.35.")
        seconds[index] = number
    return seconds
