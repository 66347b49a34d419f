"""What `make fidelity` accepts: averages, their order, and the weights of every job."""

from __future__ import annotations

import math
from dataclasses import replace

import fidelity_jobs
import pytest
from fidelity_jobs import (
    AsInService,
    Measured,
    Played,
    SmallJob,
    Training,
    as_plain,
    faults,
    simulate,
    small_jobs,
)  # fmt: skip

from elastane_scheduler.costs import Costs
from elastane_scheduler.execution import change
from elastane_scheduler.jobs import Job, JobState, arrived
from elastane_scheduler.plan import Shape
from elastane_scheduler.pool import Pool
from elastane_scheduler.view import Decision, View

MEASURED = Measured(
    first_start=9.0,
    starts={1: 4.0, 2: 4.5, 4: 8.0},
    stall=0.1,
    restore=2.0,
    est=0.26,
    exchange=0.015,
    end=0.4,
)
JOBS = small_jobs(12, 4)
WEIGHTS = {job.training: f"weights of {job.training}" for job in JOBS}
OWN = {job.name: WEIGHTS[job.training] for job in JOBS}


def played(policy: str, slower: float = 1.0) -> Played:
    """A policy whose jobs took so many times as long as the simulator says."""
    simulated = simulate(JOBS, policy, MEASURED, 4)
    return Played(policy, {name: slower * time for name, time in simulated.times.items()}, simulated, OWN)


def test_jobs_are_those_of_their_seed() -> None:
    assert small_jobs(12, 4) == JOBS != small_jobs(12, 5)
    assert [job.arrival_seconds for job in JOBS] == sorted(job.arrival_seconds for job in JOBS)
    assert len({job.name for job in JOBS}) == 12 and {job.training.ests for job in JOBS} == {1, 2, 4}


def test_every_job_is_simulated_with_the_costs() -> None:
    found = simulate(JOBS, "foresight", MEASURED, 4)
    assert found.times.keys() == {job.name for job in JOBS} and found.changes > 0
    alone = simulate(JOBS[:1], "packing", MEASURED, 4).times[JOBS[0].name]
    ests, steps = JOBS[0].training.ests, JOBS[0].training.steps
    step = MEASURED.est + (MEASURED.exchange if ests > 1 else 0.0)
    assert alone == pytest.approx(4.0 + steps * step + MEASURED.end)
    dearer = simulate(JOBS, "foresight", replace(MEASURED, starts={1: 8.0}), 4)
    assert sum(dearer.times.values()) > sum(found.times.values())


def test_workers_that_start_at_once_share_the_processors() -> None:
    assert [MEASURED.start(count) for count in (1, 2, 3, 4, 5)] == [4.0, 4.5, 6.25, 8.0, 8.0]
    assert MEASURED.costs(4) == Costs(8.0, 0.1, 2.0)
    four = SmallJob("four", Training(4, 24), 0.0)
    assert simulate([four], "packing", MEASURED, 4).starts == [8.0]
    ones = [SmallJob(f"one-{place}", Training(1, 24), place / 10) for place in range(4)]
    assert simulate(ones, "packing", MEASURED, 4).starts == [4.0, 4.5, 6.25, 8.0]
    later = [SmallJob(f"one-{place}", Training(1, 24), place * 5.0) for place in range(4)]
    assert simulate(later, "packing", MEASURED, 4).starts == [4.0] * 4
    # What is known of a first start is charged to nobody.
    assert simulate(JOBS, "packing", replace(MEASURED, first_start=99.0), 4) == simulate(
        JOBS, "packing", MEASURED, 4
    )


def two_jobs() -> tuple[JobState, JobState]:
    """A long job that trains on all four devices, and a short one that has just come."""
    shape = Shape(4, (0.25,))
    long, short = (
        arrived(Job(name, shape, steps, 0.0, (4,))) for name, steps in (("long", 900), ("short", 10))
    )
    change(long, (4,), 0.0, Costs())
    return long, short


class Asked:
    """A policy that gives the last job all, and remembers what it was shown."""

    name = "asked"

    def __init__(self) -> None:
        self.views: list[View] = []

    def decide(self, view: View) -> Decision:
        self.views.append(view)
        return Decision([*[(0,)] * (len(view.jobs) - 1), (4,)], math.inf, "the last")


def test_a_running_job_keeps_one_worker_in_the_simulator_as_in_the_service() -> None:
    long, short = two_jobs()
    pool, policy = Pool(("slot",), (4,)), AsInService(Asked())
    decision = policy.decide(View(10.0, [long, short], pool, pool.counts, Costs()))
    assert decision.allocation == [(1,), (3,)] and decision.wake_seconds == 11.0
    change(short, (3,), 10.0, Costs())
    third = arrived(Job("third", short.shape, 5, 0.0, (4,)))
    crowded = View(12.0, [long, short, third], pool, pool.counts, Costs())
    assert policy.decide(crowded).allocation == [(1,), (1,), (2,)]


def test_the_service_does_not_know_how_long_a_job_is_before_it_trains() -> None:
    long, short = two_jobs()
    pool, asked = Pool(("slot",), (4,)), Asked()
    AsInService(asked).decide(View(10.0, [long, short], pool, pool.counts, Costs(9.0, 9.0, 9.0)))
    (view,) = asked.views
    assert view.jobs[0] is long and view.jobs[1].remaining == 60 / 0.25 and not view.jobs[1].job.known
    assert view.costs == Costs() and short.remaining == 10 and short.job.known


def test_simulated_policies_are_those_of_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    times = simulate(JOBS, "elastic-srtf", MEASURED, 4).times
    monkeypatch.setattr(fidelity_jobs, "AsInService", lambda policy: policy)
    assert simulate(JOBS, "elastic-srtf", MEASURED, 4).times != times


def test_what_is_as_simulated_is_accepted() -> None:
    found = [played("packing", 1.09), played("elastic-srtf", 0.91), played("foresight")]
    assert faults(found, WEIGHTS, JOBS) == []
    document = as_plain(JOBS, MEASURED, found, [])
    assert document["holds"] is True and found[0].ratio == pytest.approx(1.09)


def test_an_average_that_is_too_far_away_is_refused() -> None:
    (fault,) = faults([played("packing", 1.11)], WEIGHTS, JOBS)
    assert fault.startswith("packing: measured") and "11% apart" in fault
    assert faults([played("packing", 0.89)], WEIGHTS, JOBS)


def test_another_order_is_refused() -> None:
    slow, fast = played("elastic-srtf"), played("foresight")
    slow = replace(slow, measured=dict.fromkeys(slow.measured, 0.0))
    found = faults([slow, fast], WEIGHTS, JOBS)
    assert any(
        fault == "measured, the order is elastic-srtf, foresight; simulated, foresight, elastic-srtf"
        for fault in found
    )


def test_other_weights_are_refused_and_missing_ones_too() -> None:
    one, other = JOBS[0].name, JOBS[1].name
    spoiled = replace(played("packing"), weights={**OWN, one: "others", other: ""})
    found = faults([spoiled], WEIGHTS, JOBS)
    assert [fault.split(":")[1].split()[0] for fault in found] == [one, other]
    assert len(faults([played("packing")], {}, JOBS)) == len(JOBS)
    assert len(faults([replace(played("packing"), weights={})], {}, JOBS)) == len(JOBS)
