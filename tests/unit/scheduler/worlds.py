"""Random pools, jobs and events for tests of policies."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

from elastane_scheduler.costs import Costs
from elastane_scheduler.execution import change
from elastane_scheduler.jobs import Job, JobState, arrived
from elastane_scheduler.plan import Shape
from elastane_scheduler.pool import Counts, Pool
from elastane_scheduler.view import Decision, Policy, View


def random_job(rng: random.Random, number: int, now: float, pool: Pool) -> Job:
    types = len(pool.types)
    while True:
        ests = rng.choice([1, 2, 3, 4, 8, 12, 16])
        bound = rng.randrange(types)
        mixed = rng.random() < 0.5
        seconds = tuple(rng.uniform(0.1, 1) if mixed or i == bound else math.inf for i in range(types))
        least = rng.choice([1, 1, 1, rng.randint(1, ests)])
        limits = tuple(rng.choice([ests, ests, rng.randint(1, ests)]) for _ in range(types))
        shape = Shape(ests, seconds, limits, rng.random() < 0.8, least)
        request = tuple(min(ests, pool.counts[i]) if i == bound else 0 for i in range(types))
        if shape.step_seconds(request) < math.inf:
            return Job(f"job-{number}", shape, rng.uniform(1, 400), now, request, known=rng.random() < 0.8)


def random_pool(rng: random.Random) -> Pool:
    counts = tuple(rng.randint(1, 8) for _ in range(rng.randint(1, 3)))
    return Pool(("v100", "p100", "t4")[: len(counts)], counts)


def decisions(policy: Policy, rng: random.Random, events: int) -> Iterator[tuple[View, Decision]]:
    """Play random arrivals, ends and changes of the offer; yields every decision with what it was about."""
    pool = random_pool(rng)
    costs = Costs(*(rng.choice([0.0, 0.1, 2.0, 20.0]) for _ in range(3)))
    offered, now, jobs = pool.counts, 0.0, list[JobState]()
    for number in range(events):
        happens = rng.random()
        ends = [state.finish_seconds for state in jobs if state.finish_seconds < math.inf]
        if happens < 0.45 or not jobs:
            now += rng.choice([0.0, rng.uniform(0, 30)])
            jobs = [state for state in jobs if state.finish_seconds > now]
            jobs.append(arrived(random_job(rng, number, now, pool)))
        elif happens < 0.8 and ends:
            now = max(now, min(ends))
            jobs = [state for state in jobs if state.finish_seconds > now]
        else:
            offered = tuple(rng.choice([most, rng.randint(0, most)]) for most in pool.counts)
        view = View(now, tuple(jobs), pool, offered, costs)
        decision = policy.decide(view)
        yield view, decision
        for state, devices in zip(jobs, decision.allocation, strict=True):
            change(state, devices, now, costs)


def given(decision: Decision, types: int) -> Counts:
    return tuple(sum(devices[i] for devices in decision.allocation) for i in range(types))
