"""rho: a job's completion time relative to that under a fair share. Pure.

The fair share is a max-min run of the same jobs at the same costs. Under 1 a job was better off than by it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from elastane_scheduler.costs import Costs
from elastane_scheduler.jobs import Job
from elastane_scheduler.policies.catalogue import make_policy
from elastane_scheduler.pool import Pool
from elastane_scheduler.simulation.engine import Simulation

FAIR_SECONDS_MIN = 60.0
"""A fair share shorter than this counts as so long: else a start would weigh more than sharing."""


def fair_seconds(jobs: Sequence[Job], pool: Pool, costs: Costs) -> dict[str, float]:
    """Return the completion times of a max-min run, by job; without those that cannot run."""
    ended = Simulation(jobs, make_policy("maxmin"), pool, costs).run().ended
    return {job.name: job.completion_seconds for job in ended}


def rhos(seconds: Mapping[str, float], fair: Mapping[str, float]) -> dict[str, float]:
    """Return rho of each job that has a fair share. seconds, fair: completion times by job."""
    return {
        name: taken / max(fair[name], FAIR_SECONDS_MIN) for name, taken in seconds.items() if name in fair
    }
