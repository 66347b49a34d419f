"""Elastic runs whose job scales by itself: they get its target, on runners of the class that it wants."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from elastane_master.decisions import events as job_events
from elastane_master.decisions.events import Rejection
from elastane_master.decisions.machine import JobMachine
from elastane_master.decisions.runs import effects, events, placement
from elastane_master.decisions.runs.machine import RunsMachine
from elastane_master.decisions.runs.state import ServiceSettings
from elastane_master.runs.elastic_jobs import targets_of
from elastane_proto.job_settings import JobSettings
from unit.runs.runs_driver import RunsDriver

DEADLINE = JobSettings(ests=1, scaling="deadline=2000000000", on_demand_workers=4)
BUDGET = JobSettings(ests=1, scaling="budget=5")


def elastic(driver: RunsDriver, instances: int = 8, job: JobSettings | None = BUDGET, **changes: Any) -> int:
    return driver.submit(framework="elastane", instances=instances, job=job, **changes)


def scale(driver: RunsDriver, run_id: int, workers: int, on_demand: int = 0) -> None:
    driver.do(events.ElasticJobScaled(run_id, driver.run(run_id).job, workers, on_demand))


def settle(driver: RunsDriver) -> None:
    """Runners start what they were asked to, and confirm what they were asked to stop."""
    for _ in range(6):
        driver.start_all()
        for runner, stop in driver.take_with_runner(effects.Stop):
            assert stop.rank is not None
            driver.rank(runner, stop.attempt, stop.rank, "exited", 143)


def placed(driver: RunsDriver, run_id: int) -> int:
    return sum(1 for record in driver.run(run_id).ranks if record.placed)


def by_runner(driver: RunsDriver, run_id: int) -> dict[str, int]:
    return dict(Counter(record.runner_id for record in driver.run(run_id).ranks if record.placed))


def test_a_run_is_given_what_its_job_wants_and_no_more() -> None:
    driver = RunsDriver()
    driver.join("a", 8)
    run_id = elastic(driver)
    settle(driver)
    assert placed(driver, run_id) == 8, "nothing is decided yet: as many as may train"
    scale(driver, run_id, 3)
    settle(driver)
    assert placed(driver, run_id) == 3 and "its job wants 3 workers" in driver.run(run_id).reason
    assert driver.runner("a").slots_used == 3
    scale(driver, run_id, 5)
    settle(driver)
    assert placed(driver, run_id) == 5 and driver.state(run_id) == "running"
    scale(driver, run_id, 0)
    settle(driver)
    assert placed(driver, run_id) == 8, "it scales no longer"


def test_what_it_has_no_use_for_another_run_gets() -> None:
    driver = RunsDriver()
    driver.join("a", 4)
    first = elastic(driver, 4)
    settle(driver)
    second = driver.submit(instances=2)
    assert driver.state(second) == "queued"
    scale(driver, first, 2)
    settle(driver)
    assert placed(driver, first) == 2 and driver.state(second) == "running"


def test_a_target_below_the_least_keeps_the_least() -> None:
    driver = RunsDriver()
    driver.join("a", 8)
    run_id = elastic(driver, instances_min=2)
    settle(driver)
    scale(driver, run_id, 1)
    settle(driver)
    assert placed(driver, run_id) == 2


def test_spot_until_the_deadline_requires_on_demand_and_then_both() -> None:
    driver = RunsDriver()
    driver.join("dear", 8, labels={"capacity": "on-demand"})
    run_id = elastic(driver, job=DEADLINE)
    assert driver.state(run_id) == "queued" and not placed(driver, run_id)
    run, dear = driver.run(run_id), driver.runner("dear")
    assert placement.mismatch(run, dear) == "is on demand, which the run's deadline does not require yet"
    driver.join("cheap", 4, labels={"capacity": "spot"})
    settle(driver)
    assert by_runner(driver, run_id) == {"cheap": 4}
    scale(driver, run_id, 6, 2)
    settle(driver)
    assert by_runner(driver, run_id) == {"cheap": 4, "dear": 2}
    scale(driver, run_id, 4, 2)
    settle(driver)
    assert by_runner(driver, run_id) == {"cheap": 2, "dear": 2}
    scale(driver, run_id, 4, 0)
    settle(driver)
    assert by_runner(driver, run_id) == {"cheap": 4}


def test_on_demand_comes_before_spot_goes() -> None:
    driver = RunsDriver()
    driver.join("cheap", 4)
    run_id = elastic(driver, job=DEADLINE)
    settle(driver)
    driver.join("dear", 2, labels={"capacity": "on-demand"})
    scale(driver, run_id, 4, 2)
    assert by_runner(driver, run_id) == {"cheap": 4, "dear": 2} and not driver.take(effects.Stop)
    settle(driver)
    assert by_runner(driver, run_id) == {"cheap": 2, "dear": 2}


def test_where_all_instances_have_a_place_some_make_room() -> None:
    driver = RunsDriver()
    driver.join("cheap", 4)
    run_id = elastic(driver, 4, job=DEADLINE)
    settle(driver)
    driver.join("dear", 1, labels={"capacity": "on-demand"})
    scale(driver, run_id, 4, 2)
    settle(driver)
    assert by_runner(driver, run_id) == {"cheap": 3, "dear": 1}, "as many as find a place there"


def test_on_demand_that_no_runner_can_give_is_said_in_words() -> None:
    driver = RunsDriver()
    driver.join("cheap", 4)
    run_id = elastic(driver, job=DEADLINE)
    settle(driver)
    scale(driver, run_id, 6, 2)
    said = driver.run(run_id).history[-1].reason
    assert "wants 2 workers on demand, and no runner has the label capacity=on-demand" in said
    assert by_runner(driver, run_id) == {"cheap": 4}


def test_targets_of_another_attempt_and_of_ended_jobs_change_nothing() -> None:
    driver = RunsDriver()
    driver.join("a", 4)
    run_id = elastic(driver, 4)
    settle(driver)
    before = driver.machine.snapshot()
    driver.do(events.ElasticJobScaled(run_id, "run-1-9", 1))
    driver.do(events.ElasticJobScaled(99, "run-99-1", 1))
    assert driver.machine.snapshot() == before
    scale(driver, run_id, 2)
    again = RunsMachine.restore(driver.machine.snapshot())
    assert again.state.runs[run_id].scaled == driver.run(run_id).scaled


def test_a_policy_gives_no_more_than_the_job_wants() -> None:
    from unit.runs.test_runs_allocation import decide

    settings = ServiceSettings(scheduling_policy="foresight", reshape_seconds=30.0)
    driver = RunsDriver(settings)
    driver.do(events.MasterStarted("master", settings))
    driver.join("a", 8)
    run_id = elastic(driver, instances_min=1)
    scale(driver, run_id, 3)
    decide(driver, {run_id: {"cpu": 8}})
    settle(driver)
    assert placed(driver, run_id) == 3


@pytest.mark.parametrize(
    ("job", "field"),
    [
        (JobSettings(ests=1, scaling="efficiency=0"), "job.scaling"),
        (JobSettings(ests=1, scaling="deadline=2026-12-04T18:00"), "job.scaling"),
        (JobSettings(ests=1, scaling="budget=5", recovery="fixed"), "job.scaling"),
        (JobSettings(ests=1, scaling="budget=5", on_demand_workers=1), "job.on_demand_workers"),
        (JobSettings(ests=1, pipeline_stages_min=3, pipeline_stages_max=2), "job.pipeline_stages_max"),
    ],
)
def test_a_scaling_that_its_job_would_refuse_is_refused_at_once(job: JobSettings, field: str) -> None:
    driver = RunsDriver()
    with pytest.raises(Rejection, match=field):
        elastic(driver, job=job)


def test_what_a_job_says_of_its_targets() -> None:
    plain = JobMachine.create("j", JobSettings(ests=4), 0.0)
    assert targets_of(7, "j", plain) == events.ElasticJobScaled(7, "j", 0)
    machine = JobMachine.create("j", JobSettings(ests=4, workers_max=3), 0.0)
    machine.handle(job_events.ScaleRequested("r", 0, 0, scaling="efficiency"), 1.0)
    assert targets_of(7, "j", machine).workers == 3
    machine.state.scaling.target, machine.state.scaling.on_demand_target = 2, 9
    assert targets_of(7, "j", machine) == events.ElasticJobScaled(7, "j", 2, 2)
