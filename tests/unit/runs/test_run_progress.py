"""What scheduling policies learn from the jobs of runs, and who is believed about device types."""

from __future__ import annotations

import pytest

from elastane_master.decisions.runs import events
from elastane_master.decisions.runs.state import ServiceSettings
from elastane_master.decisions.state import JobState, WorkerRecord
from elastane_master.runs.run_progress import run_progress
from elastane_proto.job_settings import JobSettings
from unit.runs.runs_driver import RunsDriver

POLICY = "maxmin"


def service(*device_types: str) -> tuple[RunsDriver, int]:
    """A run, with an instance on each of several hosts, whose runners say these types."""
    driver = RunsDriver(ServiceSettings(scheduling_policy=POLICY))
    for number, name in enumerate(device_types):
        driver.join(f"r{number}", 1, device_type=name)
    run = driver.submit(framework="elastane", instances=len(device_types))
    driver.do(events.MasterStarted("master", driver.machine.state.settings))
    return driver, run


def job_of(*seconds: float, device_type: str = "", steps: int = 0) -> JobState:
    """A job with a worker on each host, and what each has measured."""
    job = JobState("job", JobSettings(ests=4), JobSettings(ests=4), 0.0)
    for number, measured in enumerate(seconds):
        job.workers[f"w{number}"] = WorkerRecord(
            f"w{number}", "s", "ring", 0.0, number,
            host=f"host-r{number}", device_type=device_type, est_seconds=measured,
            step_seconds=1.5, step_generation=job.ring.generation,
        )  # fmt: skip
    job.steps.committed = steps
    return job


def test_speeds_are_those_of_the_runners_types_and_steps_the_jobs() -> None:
    driver, run = service("gpu", "gpu", "old")
    job = job_of(0.1, 0.12, 0.5, device_type="whatever", steps=7)
    progress, unlike = run_progress(driver.machine.state, {f"run-{run}-1": job}.get)
    assert progress[run].est_seconds == pytest.approx({"gpu": 0.11, "old": 0.5})
    assert (progress[run].steps, progress[run].steps_all, progress[run].step_seconds) == (7, 0, 1.5)
    assert unlike == {}


def test_the_least_memory_of_a_device_type_counts() -> None:
    driver, run = service("gpu", "gpu")
    job = job_of(0.1, 0.1, device_type="gpu")
    assert run_progress(driver.machine.state, {f"run-{run}-1": job}.get)[0][run].ests_max == {}
    job.workers["w0"].ests_max, job.workers["w1"].ests_max = 5, 3
    assert run_progress(driver.machine.state, {f"run-{run}-1": job}.get)[0][run].ests_max == {"gpu": 3}
    job.balance.ests_max = {"gpu": 2, "old": 1}
    assert run_progress(driver.machine.state, {f"run-{run}-1": job}.get)[0][run].ests_max == {
        "gpu": 2,
        "old": 1,
    }


def test_of_a_job_that_is_not_served_nothing_is_known() -> None:
    driver, _ = service("gpu")
    assert run_progress(driver.machine.state, lambda job: None) == ({}, {})


@pytest.mark.parametrize("lie", [0.02, 0.5])
def test_a_host_that_lies_about_its_type_is_known_by_its_speed(lie: float) -> None:
    driver, run = service("gpu", "gpu", "gpu")
    jobs = {f"run-{run}-1": job_of(0.1, 0.1, lie)}
    progress, unlike = run_progress(driver.machine.state, jobs.get)
    assert unlike == {"r2": "gpu of r2"}
    assert progress[run].est_seconds == {"gpu": 0.1, "gpu of r2": lie}
    driver.do(events.AllocationDecided(POLICY, driver.machine.state.revision, unlike=unlike))
    assert driver.runner("r2").computes_on == "gpu of r2"
    # It stays so while nobody measures it, and not for longer.
    assert run_progress(driver.machine.state, lambda job: None)[1] == unlike
    jobs = {f"run-{run}-1": job_of(0.1, 0.1, 0.11)}
    _, unlike = run_progress(driver.machine.state, jobs.get)
    driver.do(events.AllocationDecided(POLICY, driver.machine.state.revision, unlike=unlike))
    assert driver.runner("r2").computes_on == "gpu"


def test_a_runner_that_comes_back_with_another_type_is_believed_at_first() -> None:
    driver, _ = service("gpu", "gpu")
    driver.do(events.AllocationDecided(POLICY, driver.machine.state.revision, unlike={"r1": "gpu of r1"}))
    driver.join("r1", 1, device_type="gpu")
    assert driver.runner("r1").computes_on == "gpu of r1"
    driver.join("r1", 1, device_type="old")
    assert driver.runner("r1").computes_on == "old"


def test_a_runner_at_the_edge_of_being_unlike_does_not_change_its_type_back_and_forth() -> None:
    driver, run = service("gpu", "gpu", "gpu")
    said = []
    for seconds in (0.149, 0.151, 0.149, 0.13, 0.12):
        _, unlike = run_progress(driver.machine.state, {f"run-{run}-1": job_of(0.1, 0.1, seconds)}.get)
        driver.do(events.AllocationDecided(POLICY, driver.machine.state.revision, unlike=unlike))
        said.append(driver.runner("r2").computes_on)
    assert said == ["gpu", "gpu of r2", "gpu of r2", "gpu of r2", "gpu"]
