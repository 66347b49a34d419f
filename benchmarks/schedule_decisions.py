"""Decisions of the scheduler's policies with 200 running and 1,000 waiting jobs: how long one takes.

    python benchmarks/schedule_decisions.py [--quick] [--json [FILE]]

Jobs are those of the seeded generator (`elastane simulate`), on 256 devices of three types. Each decision is
made one second after the last, when one job has ended and another has arrived; state that a policy keeps
between decisions (plans, the virtual fair share) is kept, as in a service.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import deque

from harness import Report, Row, Series, percentile, run_benchmark

from elastane_scheduler.costs import Costs
from elastane_scheduler.execution import change
from elastane_scheduler.jobs import JobState, arrived
from elastane_scheduler.policies.catalogue import POLICIES, make_policy
from elastane_scheduler.pool import Pool
from elastane_scheduler.simulation.generated import generate
from elastane_scheduler.view import View

RUNNING, WAITING = 200, 1_000
COSTS = Costs(2.0, 0.5, 1.0)
LIST_TARGET_MS, PLAYING_TARGET_MS = 50.0, 1_000.0
PLAYING = ("fair-sojourn", "foresight")
"""Policies that simulate the future; the others sort lists."""

SEED = 1


def pool() -> Pool:
    """Return the devices."""
    return Pool(("a", "b", "c"), (128, 64, 64))


def states(place: Pool, count: int) -> list[JobState]:
    """Return the first `count` jobs of the generated trace, none of which has a device."""
    return [arrived(job) for job in generate(place, count, SEED).jobs]


def share(view: View, allocation: list[tuple[int, ...]]) -> None:
    """Give the jobs the devices that a policy has decided on."""
    for state, devices in zip(view.jobs, allocation, strict=True):
        if devices != state.devices:
            change(state, devices, view.now, view.costs)


def seconds_of_decisions(name: str, decisions: int) -> list[float]:
    """Return the seconds of each decision, after a first one that is not counted."""
    place, policy = pool(), make_policy(name)
    coming = deque(states(place, RUNNING + WAITING + decisions))
    present = [coming.popleft() for _ in range(RUNNING + WAITING)]
    now = max(state.job.arrival_seconds for state in coming) if coming else 0.0
    took = []
    for number in range(decisions + 1):
        view = View(now + number, tuple(present), place, place.counts, COSTS)
        began = time.perf_counter()
        decision = policy.decide(view)
        if number:
            took.append(time.perf_counter() - began)
        share(view, decision.allocation)
        if coming:
            ended = next((state for state in present if state.running), present[0])
            present.remove(ended)
            present.append(coming.popleft())
    return took


def measure(options: argparse.Namespace, report: Report) -> None:
    """Measure all policies."""
    decisions, repeats = (30, 3) if options.quick else (200, 5)
    for name in POLICIES:
        values = []
        for number in range(repeats):
            print(f"{name}, run {number + 1} of {repeats}", file=sys.stderr)
            values.append(percentile(seconds_of_decisions(name, decisions), 99) * 1000)
        target = PLAYING_TARGET_MS if name in PLAYING else LIST_TARGET_MS
        series = Series(values, "ms")
        report.rows.append(Row(f"p99 of a decision, {name}", series, target=target, target_absolute=True))


if __name__ == "__main__":
    run_benchmark("schedule_decisions", __doc__ or "", measure)
