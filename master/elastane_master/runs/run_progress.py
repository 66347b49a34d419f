"""What the jobs of elastic runs have measured and done, for scheduling policies."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping

from elastane_master.decisions.runs.pool_view import Progress
from elastane_master.decisions.runs.runner import Runner
from elastane_master.decisions.runs.state import RunsState
from elastane_master.decisions.state import JobState

JobOf = Callable[[str], JobState | None]
"""The state of a job by its name; None if this master does not serve it now."""


def run_progress(state: RunsState, job_of: JobOf) -> dict[int, Progress]:
    """Return what the jobs of runs say, by run; nothing of those that are not served."""
    types = _types_by_host(state.runners)
    found: dict[int, Progress] = {}
    for run in state.runs.values():
        if run.over or not run.job:
            continue
        job = job_of(run.job)
        if job is not None:
            found[run.run_id] = _progress(job, types, {one.device_type for one in state.runners.values()})
    return found


def _types_by_host(runners: Mapping[str, Runner]) -> dict[str, str]:
    """Return the device type of hosts all of whose runners have the same."""
    by_host: defaultdict[str, set[str]] = defaultdict(set)
    for runner in runners.values():
        by_host[runner.host].add(runner.device_type)
    return {host: next(iter(types)) for host, types in by_host.items() if len(types) == 1}


def _progress(job: JobState, types: Mapping[str, str], known: set[str]) -> Progress:
    """Speeds count for the type that a worker's runner has, whatever the worker calls its device."""
    measured: defaultdict[str, list[float]] = defaultdict(list)
    rings: list[float] = []
    for worker in job.workers.values():
        name = types.get(worker.host) or worker.device_type
        if name not in known and len(known) == 1:
            name = next(iter(known))
        if worker.est_seconds and name in known:
            measured[name].append(worker.est_seconds)
        if worker.step_seconds and worker.step_generation == job.ring.generation:
            rings.append(worker.step_seconds)
    return Progress(
        {name: statistics.median(seconds) for name, seconds in measured.items()},
        job.steps.committed,
        job.total_steps,
        statistics.median(rings) if rings else 0.0,
    )
