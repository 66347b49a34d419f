"""Progress and measurements of elastic runs' jobs, for scheduling policies."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping

from elastane_master.decisions.runs.pool_view import Progress
from elastane_master.decisions.runs.runner import Runner
from elastane_master.decisions.runs.state import RunsState
from elastane_master.decisions.state import JobState

UNLIKE_FACTOR = 1.5
"""A runner slower or faster than others of its type by this factor counts by itself."""
ALIKE_FACTOR = 1.25
"""One that counts by itself is like the others again below this: measurements vary, and runs move with it."""

JobOf = Callable[[str], JobState | None]
"""The state of a job by its name; None if this master does not serve it now."""
Speeds = Mapping[str, float]
"""Seconds of an EST's part of a step, by runner."""


def run_progress(state: RunsState, job_of: JobOf) -> tuple[dict[int, Progress], dict[str, str]]:
    """Return what the jobs of runs say, by run, and the runners that are not what they say.

    Nothing is said of jobs that are not served. A runner that was measured to be unlike counts as a type of
    its own, until it is measured to be like the others.
    """
    runners = _runners_by_host(state.runners)
    jobs = {
        run.run_id: job
        for run in state.runs.values()
        if not run.over and run.job and (job := job_of(run.job)) is not None
    }
    speeds = {run_id: _speeds(job, runners, state.runners) for run_id, job in jobs.items()}
    unlike = _unlike(state.runners, speeds.values())
    found = {}
    for run_id, job in jobs.items():
        measured: defaultdict[str, list[float]] = defaultdict(list)
        for name, seconds in speeds[run_id].items():
            measured[unlike.get(name) or state.runners[name].device_type].append(seconds)
        types = {name: statistics.median(seconds) for name, seconds in measured.items()}
        steps = job.steps.committed
        found[run_id] = Progress(types, steps, job.total_steps, _step_seconds(job), _ests_max(job))
    return found, unlike


def _runners_by_host(runners: Mapping[str, Runner]) -> dict[str, list[str]]:
    by_host: defaultdict[str, list[str]] = defaultdict(list)
    for name, runner in sorted(runners.items()):
        if not runner.lost:
            by_host[runner.host].append(name)
    return by_host


def _speeds(job: JobState, hosts: Mapping[str, list[str]], runners: Mapping[str, Runner]) -> Speeds:
    """Return what a job's workers have measured, by runner: by their hosts, whatever they call their device.

    Where a host has several runners, or is that of none, the first one that says the worker's device type
    counts; with one runner in all, that one.
    """
    found: defaultdict[str, list[float]] = defaultdict(list)
    for worker in job.workers.values():
        there = hosts.get(worker.host, [])
        if len(there) != 1:
            alike = (name for name in there or sorted(runners) if not runners[name].lost)
            there = [name for name in alike if runners[name].device_type == worker.device_type][:1]
        if not there and len(runners) == 1:
            there = list(runners)
        if worker.added_seconds and there:
            found[there[0]].append(worker.added_seconds)
    return {name: statistics.median(seconds) for name, seconds in found.items()}


def _unlike(runners: Mapping[str, Runner], measured: Iterable[Speeds]) -> dict[str, str]:
    """Return the runners that are unlike others of the type that they say, by what runs have measured."""
    factors: defaultdict[str, list[float]] = defaultdict(list)
    for speeds in measured:
        by_type: defaultdict[str, list[float]] = defaultdict(list)
        for name, seconds in speeds.items():
            by_type[runners[name].device_type].append(seconds)
        for name, seconds in speeds.items():
            alike = by_type[runners[name].device_type]
            if len(alike) > 1:
                factors[name].append(seconds / statistics.median_low(alike))
    found = {name: runner.measured_type for name, runner in runners.items() if runner.measured_type}
    for name, of_runs in factors.items():
        factor = statistics.median(of_runs)
        if max(factor, 1 / factor) > (ALIKE_FACTOR if name in found else UNLIKE_FACTOR):
            found[name] = f"{runners[name].device_type} of {name}"
        else:
            found.pop(name, None)
    return found


def _ests_max(job: JobState) -> dict[str, int]:
    """Return for how many ESTs each of a job's workers has memory, by the device type that they say."""
    limits = dict(job.balance.ests_max)
    for worker in job.workers.values():
        if worker.ests_max:
            name = worker.device_type
            limits[name] = min(limits.get(name, worker.ests_max), worker.ests_max)
    return limits


def _step_seconds(job: JobState) -> float:
    """Return the seconds of a step of the present ring; 0.0: unknown."""
    found = [
        worker.step_seconds
        for worker in job.workers.values()
        if worker.step_seconds and worker.step_generation == job.ring.generation
    ]
    return statistics.median(found) if found else 0.0
