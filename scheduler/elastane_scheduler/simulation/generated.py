"""A generated trace with a seed: bursts of jobs, short ones and a few long ones. Pure."""

from __future__ import annotations

import math
import random

from elastane_scheduler.jobs import Job
from elastane_scheduler.pool import Pool
from elastane_scheduler.simulation.traces import Shapes, Workload, request_for

#: How much slower each further device type of a pool is.
_SLOWER = 1.5
_GAP_SECONDS = 60.0


def generate(pool: Pool, jobs: int, seed: int) -> Workload:
    """Return `jobs` jobs for a pool: the same for the same seed.

    Half of them may mix device types. Work is log-normal, arrivals come in bursts.
    """
    rng = random.Random(seed)
    shapes, workload = Shapes(), Workload()
    now = 0.0
    for number in range(jobs):
        if rng.random() < 0.6:
            now += rng.expovariate(1 / _GAP_SECONDS)
        ests = rng.choice((2, 4, 8, 8, 16, 16, 32))
        base = round(rng.uniform(0.05, 0.5), 3)
        mixes = rng.random() < 0.5
        preferred = rng.choices(range(len(pool.types)), [max(count, 1) for count in pool.counts])[0]
        seconds = [base * _SLOWER**i if mixes or i == preferred else math.inf for i in range(len(pool.types))]
        shape = shapes.get(ests, seconds)
        alone = min(10_000.0, rng.lognormvariate(4.0, 1.2))
        steps = math.ceil(max(1.0, alone / seconds[preferred]))
        workload.jobs.append(
            Job(f"job-{number}", shape, steps, round(now, 3), request_for(shape, pool, preferred))
        )
    return workload
