"""Elastic runs with parameter servers, and the end of runs that only do tasks."""

from __future__ import annotations

from typing import Any

import pytest

from elastane_master.decisions.events import Rejection
from elastane_master.decisions.runs import effects, events
from elastane_master.decisions.runs.allocation import Target
from elastane_master.decisions.runs.state import ServiceSettings
from elastane_master.runs.elastic_jobs import settings_of
from elastane_proto.job_settings import JobSettings
from unit.runs.runs_driver import RunsDriver


def with_servers(driver: RunsDriver, **changes: Any) -> int:
    """Two workers and two parameter servers, which are ranks 2 and 3."""
    return driver.submit(**{"framework": "elastane", "instances": 4, "parameter_servers": 2, **changes})


def settle(driver: RunsDriver) -> None:
    for _ in range(6):
        driver.start_all()
        for runner, stop in driver.take_with_runner(effects.Stop):
            assert stop.rank is not None
            driver.rank(runner, stop.attempt, stop.rank, "exited", 143)


def placed(driver: RunsDriver, run_id: int) -> list[int]:
    return [record.rank for record in driver.run(run_id).ranks if record.placed]


def exited(driver: RunsDriver, run_id: int, rank: int, code: int = 0) -> None:
    driver.rank(driver.run(run_id).ranks[rank].runner_id, driver.key(run_id), rank, "exited", code)


def tasks_over(driver: RunsDriver, run_id: int, over: bool = True) -> None:
    driver.do(events.ElasticJobScaled(run_id, driver.run(run_id).job, 0, tasks_over=over))


def test_parameter_servers_have_places_first_and_give_them_back_last() -> None:
    driver = RunsDriver()
    driver.join("a", 2)
    run_id = with_servers(driver)
    assert driver.state(run_id) == "queued", "two parameter servers and no worker are no run"
    driver.join("b", 1)
    settle(driver)
    assert placed(driver, run_id) == [0, 2, 3] and driver.state(run_id) == "running"
    driver.join("c", 1)
    settle(driver)
    assert placed(driver, run_id) == [0, 1, 2, 3]
    lost = driver.run(run_id).ranks[3].runner_id
    driver.rank(lost, driver.key(run_id), 3, "lost")
    exited(driver, run_id, 1, 143)
    settle(driver)
    assert placed(driver, run_id) == [0, 1, 2, 3]
    settings = settings_of(driver.run(run_id), "file:///c")
    assert (settings.ests, settings.workers_min, settings.workers_max) == (2, 1, 2)


def test_a_scheduling_policy_takes_workers_back() -> None:
    settings = ServiceSettings(scheduling_policy="maxmin", reshape_seconds=30.0)
    driver = RunsDriver(settings)
    driver.do(events.MasterStarted("master", settings))
    driver.join("a", 4)
    run_id = with_servers(driver)
    for slots in (4, 3):
        revision, targets = driver.machine.state.revision, (Target(run_id, {"cpu": slots}, "because"),)
        driver.do(events.AllocationDecided("maxmin", revision, targets), after=40.0)
        settle(driver)
    assert placed(driver, run_id) == [0, 2, 3]


def test_it_has_succeeded_once_tasks_and_workers_are_done() -> None:
    driver = RunsDriver()
    driver.join("a", 4)
    run_id = with_servers(driver)
    settle(driver)
    exited(driver, run_id, 0)
    tasks_over(driver, run_id)
    assert not driver.take(effects.Stop), "a worker is still at work"
    exited(driver, run_id, 1)
    driver.stop_all()
    assert driver.state(run_id) == "succeeded" and "all tasks are done" in driver.run(run_id).reason
    assert driver.runner("a").slots_used == 0
    assert any(isinstance(effect, effects.CancelElasticJob) for effect in driver.effects)


def test_scripts_may_end_before_the_master_tells_of_the_tasks() -> None:
    driver = RunsDriver()
    driver.join("a", 4)
    run_id = with_servers(driver)
    settle(driver)
    exited(driver, run_id, 0)
    exited(driver, run_id, 1)
    tasks_over(driver, run_id, False)
    assert driver.state(run_id) == "running" and not driver.take(effects.Stop)
    tasks_over(driver, run_id)
    driver.stop_all()
    assert driver.state(run_id) == "succeeded"


def test_a_worker_that_dies_after_the_tasks_comes_again() -> None:
    driver = RunsDriver()
    driver.join("a", 4)
    run_id = with_servers(driver)
    settle(driver)
    tasks_over(driver, run_id)
    exited(driver, run_id, 0, 137)
    exited(driver, run_id, 1, 137)
    assert driver.state(run_id) != "succeeded", "nobody has come to the script's end"
    driver.stop_all()
    settle(driver)
    exited(driver, run_id, 0, 1)
    driver.stop_all()
    assert driver.state(run_id) == "failed", "a script that failed has not come to its end"


def test_a_run_without_parameter_servers_that_does_tasks_ends_as_well() -> None:
    driver = RunsDriver()
    driver.join("a", 2)
    run_id = driver.submit(framework="elastane", instances=2)
    settle(driver)
    driver.finish(run_id)
    tasks_over(driver, run_id)
    driver.stop_all()
    assert driver.state(run_id) == "succeeded"


def test_another_attempt_has_its_tasks_before_it() -> None:
    driver = RunsDriver()
    driver.join("a", 3)
    run_id = with_servers(driver, retries_max=1)
    settle(driver)
    tasks_over(driver, run_id)
    exited(driver, run_id, 0, 1)
    driver.stop_all()
    driver.do(events.RunRetryRequested(run_id, "ann"))
    settle(driver)
    assert not driver.run(run_id).tasks_over


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"framework": "pytorch"}, "parameter_servers"),
        ({"parameter_servers": 4}, "parameter_servers"),
        ({"instances_min": 2}, "parameter_servers"),
        ({"chief": True}, "chief"),
        ({"job": JobSettings(ests=1, scaling="efficiency")}, "parameter_servers"),
        ({"job": JobSettings(ests=1, pipeline_stages_max=2)}, "parameter_servers"),
    ],
)
def test_what_cannot_be_is_refused(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(Rejection) as refused:
        with_servers(RunsDriver(), **changes)
    assert refused.value.facts["field"] == f"spec.{field}"
