"""Planned changes where members begin the next step before Prepared: put off by one step, and no more."""

from __future__ import annotations

import msgspec
import pytest

from elastane_master.decisions import effects, events
from elastane_master.decisions.machine import JobMachine
from elastane_master.decisions.messages import prepared
from unit.decisions.job_driver import SIGNATURE, JobDriver, settings

LONG = msgspec.structs.replace(SIGNATURE, steps_per_epoch=100, epochs=1, dataset_size=800)
SHORT = msgspec.structs.replace(SIGNATURE, steps_per_epoch=2, epochs=20, dataset_size=16)


def trained(*, steps: int = 2, signature: events.Signature = LONG, **changes: object) -> JobDriver:
    """A ring of a and b that has done some steps."""
    driver = JobDriver(settings(4, **changes), signature)
    driver.form("a", "b")
    driver.steps(0, steps)
    driver.take()
    return driver


@pytest.fixture
def job() -> JobDriver:
    """A ring of a and b at step 2, and c, which is to join."""
    driver = trained()
    driver.join("c")
    return driver


def step(driver: JobDriver, number: int, *ahead: str, seconds: float = 0.0) -> dict[str, effects.Prepared]:
    """All report a step that takes so long, and these that they may go ahead; return what they are told."""
    driver.now += seconds
    for worker in driver.members:
        driver.report(worker, number, goes_ahead=worker in ahead)
    return driver.take(effects.Prepared)


def is_put_off(told: dict[str, effects.Prepared]) -> bool:
    """True if all are told to wait in the next step, False if the ring changes for all."""
    waits = {(one.next_waits, one.then_prepare is None) for one in told.values()}
    assert waits in ({(True, True)}, {(False, False)}), told
    return waits == {(True, True)}


@pytest.mark.parametrize("ahead", [("a",), ("b",), ("a", "b")])
def test_a_change_comes_one_step_later_if_somebody_goes_ahead(job: JobDriver, ahead: tuple[str, ...]) -> None:
    assert is_put_off(step(job, 2, *ahead)) and job.state.ring.stage == "running"
    assert not is_put_off(step(job, 3))
    assert job.state.ring.planned and job.members == ("a", "b", "c")
    assert [note.reason for note in job.noted("ring_change")][-1] == "c joins"
    job.ready("c")
    job.ready("a", 4, holds=True)
    job.ready("b", 4, holds=True)
    assert job.state.ring.resume_step == 4


def test_a_change_is_made_at_once_if_nobody_goes_ahead(job: JobDriver) -> None:
    assert not is_put_off(step(job, 2))


def test_without_a_change_nobody_is_told_to_wait() -> None:
    told = step(trained(), 2, "a", "b")
    assert not any(one.next_waits or one.then_prepare for one in told.values())


def test_a_worker_that_goes_ahead_though_it_was_told_to_wait_puts_nothing_off_again(job: JobDriver) -> None:
    assert is_put_off(step(job, 2, "a"))
    assert not is_put_off(step(job, 3, "a"))


def test_between_two_epochs_those_who_were_told_wait_on() -> None:
    """There the ring does not change. In epochs of two steps a change would else be put off for ever."""
    driver = trained(signature=SHORT)
    driver.join("c")
    assert is_put_off(step(driver, 2, "a"))
    assert is_put_off(step(driver, 3))  # the last one of an epoch
    assert not is_put_off(step(driver, 4))


def test_a_change_that_is_not_wanted_any_more_lets_members_go_ahead_again(job: JobDriver) -> None:
    assert is_put_off(step(job, 2, "a"))
    job.lose("c")
    told = step(job, 3)
    assert not any(one.next_waits or one.then_prepare for one in told.values())


def test_a_death_ends_the_waiting(job: JobDriver) -> None:
    assert is_put_off(step(job, 2, "a"))
    job.lose("b")
    assert job.state.ring.changing and not job.state.ring.planned
    job.ready("a", 3, holds=True)
    job.ready("c")
    told = step(job, 3, "a")
    assert not any(one.next_waits for one in told.values())


def test_a_new_master_tells_the_same(job: JobDriver) -> None:
    told = step(job, 2, "a")
    state = JobMachine.restore(job.machine.snapshot()).state
    assert {worker: prepared(state, worker) for worker in told} == told


@pytest.mark.parametrize(
    ("step_seconds", "notice_seconds", "waits"),
    [(0.1, 30.0, True), (10.0, 30.0, True), (10.0, 12.0, False), (10.0, 1.0, False)],
)
def test_who_leaves_with_its_node_is_not_kept_for_a_step_that_it_may_not_end(
    step_seconds: float, notice_seconds: float, waits: bool
) -> None:
    driver = trained()
    driver.do(events.LeavingReported("b", driver.session("b"), "spot notice", notice_seconds + step_seconds))
    assert is_put_off(step(driver, 2, "a", seconds=step_seconds)) is waits
    if waits:
        assert not is_put_off(step(driver, 3))
        return
    reason = driver.noted("ring_change")[-1].reason
    assert reason.startswith("b drains: spot notice; at once, and step 3 is begun anew where it has begun")
    assert "a step takes 10 s" in reason


def test_a_drain_without_a_deadline_waits() -> None:
    driver = trained()
    driver.do(events.DrainRequested("r", "b"))
    assert is_put_off(step(driver, 2, "a", seconds=500.0))
    assert not is_put_off(step(driver, 3))


def test_nobody_goes_ahead_in_the_step_beside_the_last_checkpoint() -> None:
    """The ring ends once it is saved: who went ahead then would lose two steps instead of one."""
    driver = trained(checkpoint_url="file:///c")
    for worker in ("a", "b"):
        driver.do(events.LeavingReported(worker, driver.session(worker), "spot notice"))
    told = step(driver, 2, "a", "b")
    assert all(one.then_checkpoint and one.next_waits for one in told.values())
