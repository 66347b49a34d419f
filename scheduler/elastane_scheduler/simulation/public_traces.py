"""Readers of public traces: EasyScale's, Philly, Tiresias, Sia. Pure.

None of them says all that a job of ours needs, so each reader states what it assumes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from datetime import datetime

from elastane_scheduler.errors import InvalidSettings, InvalidTrace
from elastane_scheduler.jobs import Job
from elastane_scheduler.pool import Pool
from elastane_scheduler.simulation.times import StepTimes
from elastane_scheduler.simulation.traces import (
    Row,
    Shapes,
    Workload,
    distinct,
    flag,
    request_for,
    rows,
)

#: EasyScale's trace: samples of an epoch, a hundredth of the published data sets, by application.
_SAMPLES = {
    "resnet50": 12_800.0,
    "vgg19": 12_800.0,
    "shufflenetv2": 12_800.0,
    "swintransformer": 12_800.0,
    "yolov3": 165.51,
    "bert": 886.41,
    "electra": 886.41,
    "ncf": 49_708.45,
}
#: Philly and Tiresias say how long a job ran: its steps are taken to be so long.
STEP_SECONDS = 1.0
#: Sia's workloads leave the work to an adaptive batch: device-hours by the class of the application.
_SIA_DEVICE_HOURS = {
    "cifar10": 0.5,
    "ncf": 0.5,
    "deepspeech2": 3.0,
    "bert": 3.0,
    "yolov3": 30.0,
    "imagenet": 200.0,
}


def read_easyscale(lines: Iterable[str], pool: Pool, times: StepTimes, *, merge: bool = False) -> Workload:
    """Read EasyScale's trace; times in proportion to the batch, of determinism D1, or D2 for jobs that may
    mix.

    merge: rows of one name are one job, the last, in the place of the first, as the published simulator has
    it.
    """
    found: list[tuple[int, Job]] = []
    workload, shapes = Workload(), Shapes()
    needed = ("name", "time", "application", "max_parallelism", "batch_size", "epochs", "preferred_gpu")
    for row in rows(lines, needed):
        found.append((row.line, _easyscale_job(row, pool, times, shapes, workload.notices)))
    if merge:
        merged: dict[str, Job] = {}
        for _, job in found:
            merged[job.name] = job
        workload.jobs = list(merged.values())
        workload.notices.append(f"{len(found)} rows are {len(merged)} jobs: merged by name")
    else:
        workload.jobs = distinct(found, workload.notices)
    return workload


def _easyscale_job(row: Row, pool: Pool, times: StepTimes, shapes: Shapes, notices: list[str]) -> Job:
    application = row.text("application").lower()
    if application not in _SAMPLES:
        raise InvalidTrace(
            f"unknown application {application!r}", line=row.line, hint=f"Known: {', '.join(_SAMPLES)}."
        )
    ests, batch = row.whole("max_parallelism"), row.whole("batch_size")
    mixes = flag(row, "enable_heterogeneous_deterministic", notices)
    try:
        preferred = pool.index(row.text("preferred_gpu"))
        seconds = [
            times.est_seconds(application, batch, name, mixes) if mixes or i == preferred else math.inf
            for i, name in enumerate(pool.types)
        ]
        shape = shapes.get(ests, seconds)
        steps = row.above_zero("epochs") * _SAMPLES[application] / (batch * ests)
        request = request_for(shape, pool, preferred)
        return Job(row.text("name"), shape, steps, row.number("time"), request)
    except InvalidSettings as error:
        raise row.refuse(error) from None


def read_philly(lines: Iterable[str], pool: Pool, jobs_max: int | None, ests_per_device: int) -> Workload:
    """Read Philly's jobs as Sia's authors distil them: duration and devices, the earliest `jobs_max` of them.

    A job has `ests_per_device` ESTs for each device that it had, and would take as long on those devices as
    it did. It may run on every device type of the pool at one speed, unmixed. Times count from the first job.
    """
    found: list[tuple[float, int, int, float]] = []
    for row in rows(lines, ("timestamp", "duration", "num_gpus")):
        try:
            start = datetime.fromisoformat(row.text("timestamp")).timestamp()
        except ValueError:
            raise InvalidTrace(
                f"timestamp is {row.text('timestamp')!r}", line=row.line, hint="Write 2017-10-09 07:01:55."
            ) from None
        found.append((start, row.line, row.whole("num_gpus"), row.above_zero("duration")))
    found.sort()
    shapes, workload = Shapes(), Workload()
    for start, line, devices, duration in found[:jobs_max]:
        arrival = start - found[0][0]
        workload.jobs.append(
            _ran(f"job-{line}", line, devices, duration, arrival, pool, shapes, ests_per_device)
        )
    return workload


def read_tiresias(lines: Iterable[str], pool: Pool, ests_per_device: int) -> Workload:
    """Read a trace of Tiresias' simulator: devices, submission and duration of each job."""
    found: list[tuple[int, Job]] = []
    shapes, workload = Shapes(), Workload()
    for row in rows(lines, ("job_id", "num_gpu", "submit_time", "duration")):
        name, devices, arrival = f"job-{row.text('job_id')}", row.whole("num_gpu"), row.number("submit_time")
        duration = row.above_zero("duration")
        job = _ran(name, row.line, devices, duration, arrival, pool, shapes, ests_per_device)
        found.append((row.line, job))
    workload.jobs = distinct(found, workload.notices)
    return workload


def _ran(
    name: str,
    line: int,
    devices: int,
    duration: float,
    arrival: float,
    pool: Pool,
    shapes: Shapes,
    ests_per_device: int,
) -> Job:
    """A job that ran for `duration` seconds on `devices` devices of one speed."""
    try:
        seconds = [STEP_SECONDS / ests_per_device] * len(pool.types)
        shape = shapes.get(devices * ests_per_device, seconds, mixes=len(pool.types) > 1)
        largest = max(range(len(pool.types)), key=lambda i: pool.counts[i])
        wanted = min(devices, pool.counts[largest])
        request = tuple(wanted if i == largest else 0 for i in range(len(pool.types)))
        return Job(name, shape, duration / STEP_SECONDS, arrival, request)
    except InvalidSettings as error:
        raise InvalidTrace(str(error.args[0]), line=line, hint=error.hint) from None


def read_sia(lines: Iterable[str], pool: Pool, times: StepTimes) -> Workload:
    """Read a workload of Sia's simulator, with its tables of step times.

    A job has as many ESTs as replicas, with its batch split among them; its work is device-hours by the class
    of its application, at the speed of the fastest type.
    """
    found: list[tuple[int, Job]] = []
    shapes, workload = Shapes(), Workload()
    for row in rows(lines, ("name", "time", "application", "num_replicas", "batch_size")):
        application, ests = row.text("application").lower(), row.whole("num_replicas")
        if application not in _SIA_DEVICE_HOURS:
            raise InvalidTrace(
                f"unknown application {application!r}",
                line=row.line,
                hint=f"Known: {', '.join(_SIA_DEVICE_HOURS)}.",
            )
        batch = math.ceil(row.whole("batch_size") / ests)
        try:
            seconds = _measured(application, batch, pool.types, times)
            shape = shapes.get(ests, seconds)
            steps = _SIA_DEVICE_HOURS[application] * 3600 / (ests * min(seconds))
            fastest = min(range(len(seconds)), key=lambda i: seconds[i])
            request = request_for(shape, pool, fastest)
            found.append((row.line, Job(row.text("name"), shape, steps, row.number("time"), request)))
        except InvalidSettings as error:
            raise row.refuse(error) from None
    workload.jobs = distinct(found, workload.notices)
    return workload


def _measured(application: str, batch: int, types: Sequence[str], times: StepTimes) -> list[float]:
    """Seconds on the types for which the application was measured; InvalidSettings where there is none."""
    seconds = [
        times.est_seconds(application, batch, name, True) if times.has(application, name) else math.inf
        for name in types
    ]
    if min(seconds) == math.inf:
        raise InvalidSettings(
            f"no times of {application} on {', '.join(types)}", hint="Give its table with --times."
        )
    return seconds
