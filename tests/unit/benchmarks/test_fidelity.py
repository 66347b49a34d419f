"""What `make fidelity` accepts: averages, their order, and the weights of every job."""

from __future__ import annotations

from dataclasses import replace

import fidelity_jobs
import pytest
from fidelity_jobs import KeepsOneWorker, Measured, Played, as_plain, faults, simulate, small_jobs

from elastane_scheduler.costs import Costs
from elastane_scheduler.execution import change
from elastane_scheduler.jobs import Job, arrived
from elastane_scheduler.plan import Shape
from elastane_scheduler.policies.catalogue import make_policy
from elastane_scheduler.pool import Pool
from elastane_scheduler.view import View

MEASURED = Measured(start=4.0, stall=0.1, restore=2.0, est=0.26, exchange=0.015, end=0.4)
JOBS = small_jobs(12, 4)
WEIGHTS = {job.training: f"weights of {job.training}" for job in JOBS}
OWN = {job.name: WEIGHTS[job.training] for job in JOBS}


def played(policy: str, slower: float = 1.0) -> Played:
    """A policy whose jobs took so many times as long as the simulator says."""
    simulated, changes = simulate(JOBS, policy, MEASURED, 4)
    return Played(policy, {name: slower * time for name, time in simulated.items()}, simulated, OWN, changes)


def test_jobs_are_those_of_their_seed() -> None:
    assert small_jobs(12, 4) == JOBS != small_jobs(12, 5)
    assert [job.arrival_seconds for job in JOBS] == sorted(job.arrival_seconds for job in JOBS)
    assert len({job.name for job in JOBS}) == 12 and {job.training.ests for job in JOBS} == {1, 2, 4}


def test_every_job_is_simulated_with_the_costs() -> None:
    times, changes = simulate(JOBS, "foresight", MEASURED, 4)
    assert times.keys() == {job.name for job in JOBS} and changes > 0
    alone = simulate(JOBS[:1], "packing", MEASURED, 4)[0][JOBS[0].name]
    ests, steps = JOBS[0].training.ests, JOBS[0].training.steps
    step = MEASURED.est + (MEASURED.exchange if ests > 1 else 0.0)
    assert alone == pytest.approx(MEASURED.start + steps * step + MEASURED.end)
    dearer, _ = simulate(JOBS, "foresight", replace(MEASURED, start=8.0), 4)
    assert sum(dearer.values()) > sum(times.values())


def test_a_running_job_keeps_one_worker_in_the_simulator_as_in_the_service() -> None:
    pool, shape = Pool(("slot",), (4,)), Shape(4, (0.25,))
    states = [arrived(Job(name, shape, steps, 0.0, (4,))) for name, steps in (("long", 400), ("short", 10))]
    change(states[0], (4,), 0.0, Costs())
    view = View(1.0, states, pool, pool.counts, Costs())
    policy = make_policy("elastic-srtf")
    assert policy.decide(view).allocation == [(0,), (4,)]
    assert KeepsOneWorker(policy).decide(view).allocation == [(1,), (3,)]
    change(states[1], (3,), 1.0, Costs())
    third = arrived(Job("third", shape, 5, 0.0, (4,)))
    crowded = View(2.0, [*states, third], pool, pool.counts, Costs())
    assert KeepsOneWorker(policy).decide(crowded).allocation == [(1,), (1,), (2,)]


def test_simulated_policies_are_those_of_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    times, _ = simulate(JOBS, "elastic-srtf", MEASURED, 4)
    monkeypatch.setattr(fidelity_jobs, "KeepsOneWorker", lambda policy: policy)
    assert simulate(JOBS, "elastic-srtf", MEASURED, 4)[0] != times


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
    slow = replace(slow, measured=dict.fromkeys(slow.measured, 0.0), simulated=slow.simulated)
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
