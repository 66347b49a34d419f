"""Fairness of the scheduling policy: rho of each run that has succeeded. Pure.

A run's time from queueing to its end is compared with its time if all elastic runs had shared the slots
evenly, at the same costs, with the measured steps and speeds. Later runs would only have made the even share
slower, so the comparison at the end of a run can only underrate a policy. Black boxes and their slots are
left out. Nothing is stored: a new master starts over, and knows only runs that it has seen train.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from elastane_master.decisions.runs.pool_view import PoolView
from elastane_master.decisions.runs.run import Run
from elastane_scheduler.costs import Costs
from elastane_scheduler.jobs import Job
from elastane_scheduler.pool import Pool
from elastane_scheduler.simulation.fairness import fair_seconds, rhos

RUNS_MAX = 200
"""Runs that are compared, the newest: a play of them takes up to a second."""


@dataclass(frozen=True)
class Comparison:
    """Runs that have ended, and all runs to compare with. seconds: from queue to end, by job."""

    seconds: Mapping[str, float]
    jobs: tuple[Job, ...]
    pool: Pool
    costs: Costs

    def rhos(self) -> list[float]:
        """Return rho of each run. Slow: compute it in a thread."""
        return list(rhos(self.seconds, fair_seconds(self.jobs, self.pool, self.costs)).values())


class FairnessBook:
    """Elastic runs that the policy has seen, kept as long as they are needed for comparisons."""

    def __init__(self) -> None:
        self._jobs: dict[int, Job] = {}
        self._told: set[int] = set()
        self._measured: set[int] = set()
        self._pool: Pool | None = None
        self._costs = Costs()

    def observe(self, shown: PoolView) -> None:
        """Record the current state of runs. If device types have changed, all records are dropped."""
        view = shown.view
        if self._pool is None or view.pool.types != self._pool.types:
            self._jobs, self._told, self._measured = {}, set(), set()
        self._pool, self._costs = replace(view.pool, counts=view.offered), view.costs
        for run, state in zip(shown.runs, view.jobs, strict=True):
            if not run.demand.elastic:
                continue
            self._jobs[run.run_id] = state.job
            if state.job.known and run.run_id not in shown.unmeasured:
                self._measured.add(run.run_id)

    def ended(self, runs: Mapping[int, Run]) -> Comparison | None:
        """Return the comparison for runs that have succeeded since the last call; None: no run has."""
        seconds: dict[str, float] = {}
        for run_id, job in self._jobs.items():
            run = runs.get(run_id)
            if run_id in self._told or (run is not None and not run.over):
                continue
            self._told.add(run_id)
            if run is not None and run.state == "succeeded" and run.ended_at and run_id in self._measured:
                seconds[job.name] = run.ended_at - run.queued_at
        compared = tuple(sorted(self._jobs.values(), key=lambda job: job.arrival_seconds)[-RUNS_MAX:])
        self._forget(runs)
        if self._pool is None or not seconds:
            return None
        return Comparison(seconds, compared, self._pool, self._costs)

    def _forget(self, runs: Mapping[int, Run]) -> None:
        """Drop runs that ended before any current run was queued, and the oldest ones beyond the limit."""
        going = [job.arrival_seconds for run_id, job in self._jobs.items() if run_id not in self._told]
        first = min(going, default=float("inf"))

        def matters(run_id: int) -> bool:
            run = runs.get(run_id)
            return run_id not in self._told or (run is not None and (run.ended_at or 0.0) > first)

        kept = [run_id for run_id in self._jobs if matters(run_id)][-2 * RUNS_MAX :]
        self._jobs = {run_id: self._jobs[run_id] for run_id in kept}
        self._told &= self._jobs.keys()
        self._measured &= self._jobs.keys()
