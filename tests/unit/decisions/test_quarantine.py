"""Workers that die again and again stand by for a growing time, where the ring can do without them."""

from __future__ import annotations

import pytest

from elastane_master.decisions import quarantine
from elastane_master.decisions.machine import JobMachine
from unit.decisions.job_driver import JobDriver, settings


def job(*workers: str, **changes: object) -> JobDriver:
    driver = JobDriver(settings(4, **changes))
    driver.form(*workers)
    driver.steps(0, 1)
    driver.take()
    return driver


def go_on(driver: JobDriver) -> None:
    """Whatever change of the ring is under way comes to its end, and one more step is done."""
    step = driver.state.steps.current
    for _ in range(4):
        if driver.state.ring.stage == "preparing":
            driver.all_ready(driver.state.steps.current)
    assert driver.state.ring.stage == "running"
    assert driver.state.steps.current >= step
    driver.step(driver.state.steps.current)
    if driver.state.ring.stage == "preparing":
        driver.all_ready(driver.state.steps.current)


def flap(driver: JobDriver, worker: str, times: int) -> None:
    """It dies in the ring and comes back, so often; the last time it only comes back."""
    for number in range(times):
        driver.lose(worker)
        go_on(driver)
        driver.join(worker, session=f"{worker}-flap-{number}")
        go_on(driver)


def test_first_deaths_are_free_and_the_next_one_is_not() -> None:
    driver = job("a", "b", "c")
    flap(driver, "c", quarantine.DEATHS_FREE)
    assert set(driver.members) == {"a", "b", "c"}
    assert driver.noted("worker_quarantined") == []
    flap(driver, "c", 1)
    assert set(driver.members) == {"a", "b"}
    (note,) = driver.noted("worker_quarantined")
    assert note.worker == "c"
    assert "died 3 times within 10 min: stands by for 2 s" in note.reason
    assert driver.state.workers["c"].reason in note.reason
    driver.lose("b")
    assert "stands by for 2 s" in driver.state.workers["c"].reason


def test_it_is_let_in_when_its_time_is_over_and_the_next_delay_is_longer() -> None:
    driver = job("a", "b", "c")
    for expected_seconds in (2.0, 4.0, 8.0):
        flap(driver, "c", 1 if expected_seconds > 2 else quarantine.DEATHS_FREE + 1)
        assert "c" not in driver.members
        note = driver.noted("worker_quarantined")[-1]
        assert float(note.facts["delay_seconds"]) == expected_seconds
        due = driver.machine.next_deadline()
        assert due is not None and due <= driver.state.workers["c"].held_until
        driver.tick(after=expected_seconds - 0.5)
        assert driver.state.workers["c"].held_until is not None
        driver.tick(after=0.6)
        assert driver.noted("worker_released")[-1].worker == "c"
        go_on(driver)
        assert "c" in driver.members


def test_deaths_long_ago_do_not_count() -> None:
    driver = job("a", "b", "c", heartbeat_timeout_seconds=1e6, lease_min_seconds=1e5)
    flap(driver, "c", quarantine.DEATHS_FREE)
    driver.now += quarantine.WINDOW_SECONDS
    flap(driver, "c", 1)
    assert driver.noted("worker_quarantined") == []
    assert len(driver.state.deaths["c"]) == 1


def test_a_ring_that_cannot_be_without_it_takes_it_at_once() -> None:
    driver = job("a", "b", "c", workers_min=3)
    for number in range(quarantine.DEATHS_FREE + 2):
        driver.lose("c")
        driver.join("c", session=f"c-{number}")
        if driver.state.ring.stage == "none":
            driver.tick_due()
        driver.all_ready(1)
        assert driver.state.ring.stage == "running"
    assert driver.noted("worker_quarantined")
    assert set(driver.members) == {"a", "b", "c"}
    driver.step(driver.state.steps.current)
    driver.step(driver.state.steps.current)
    driver.join("d")
    driver.step(driver.state.steps.current)
    assert set(driver.members) == {"a", "b", "c", "d"}  # it is not evicted again for that


def test_who_is_alone_is_not_held_back() -> None:
    driver = job("a")
    for number in range(quarantine.DEATHS_FREE + 1):
        driver.lose("a")
        driver.join("a", session=f"a-{number}")
        driver.gather()
    assert driver.noted("worker_quarantined")
    assert driver.members == ("a",)


def test_who_alone_holds_the_state_is_not_held_back() -> None:
    driver = job("a", "b", "c")
    flap(driver, "c", quarantine.DEATHS_FREE)
    step = driver.state.steps.current
    driver.lose("c")
    for worker in ("a", "b"):
        driver.lose(worker)
    driver.join("d", session="d-1")
    driver.rejoin("c", driver.generation, step, session="c-last")
    assert driver.noted("worker_quarantined")
    driver.gather()
    if driver.state.ring.stage == "loading":
        raise AssertionError("history was given up although c holds the state")
    assert "c" in driver.members


def test_who_drains_or_ends_well_did_not_die() -> None:
    driver = job("a", "b", "c")
    for number in range(quarantine.DEATHS_FREE + 2):
        driver.bye("c", "drained", driver.state.steps.current)
        go_on(driver)
        driver.join("c", session=f"c-{number}")
        go_on(driver)
    assert driver.state.deaths == {}
    assert "c" in driver.members


def test_it_is_remembered_by_a_restarted_master() -> None:
    driver = job("a", "b", "c")
    flap(driver, "c", quarantine.DEATHS_FREE + 1)
    restored = JobMachine.restore(driver.machine.snapshot())
    assert restored.state.deaths == driver.state.deaths
    assert restored.state.workers["c"].held_until == driver.state.workers["c"].held_until


def test_memory_is_bounded() -> None:
    state = job("a").state
    for number in range(quarantine.WORKERS_MAX + 50):
        quarantine.died(state, f"w{number}", 100.0)
    assert len(state.deaths) == quarantine.WORKERS_MAX
    for _ in range(1000):
        quarantine.died(state, "again", 100.0)
    assert len(state.deaths["again"]) < 100


@pytest.mark.parametrize(
    ("deaths", "seconds"), [(0, 0), (2, 0), (3, 2), (4, 4), (8, 64), (9, 120), (10**6, 120)]
)
def test_delays_double_up_to_a_bound(deaths: int, seconds: float) -> None:
    assert quarantine.delay_seconds(deaths) == seconds
