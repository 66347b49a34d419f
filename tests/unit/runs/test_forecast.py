"""When waiting runs could start: the queue played forward with the ends that are known."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from runs_driver import ELASTIC, RunsDriver

from elastane_master.decisions.runs.forecast import RUNS_MAX, Forecast, SlotHolder, forecasts
from elastane_master.decisions.runs.state import ServiceSettings


def forecast(driver: RunsDriver, ends: Mapping[int, float]) -> dict[int, Forecast]:
    """Forecast with these runs' ends, in seconds from now; nothing is changed by that."""
    machine, before = driver.machine, driver.machine.snapshot()
    at = {run_id: driver.now + seconds for run_id, seconds in ends.items()}
    found = forecasts(
        machine.state, machine.index.waiting, machine.policy, machine.index.active, at, driver.now
    )
    assert machine.snapshot() == before
    return {run_id: rounded(one, driver.now) for run_id, one in found.items()}


def rounded(found: Forecast, now: float) -> Forecast:
    """The same with seconds from now."""

    def since(at: float | None) -> float | None:
        return None if at is None else round(at - now, 3)

    holders = tuple(SlotHolder(one.run_id, one.slots, since(one.until_at)) for one in found.holders)
    return Forecast(since(found.earliest_at), holders, found.reason)


def held(run_id: int, slots: int, until: float | None) -> SlotHolder:
    """A holder, whose end is so many seconds from now."""
    return SlotHolder(run_id, slots, until)


def full(slots: int, *instances: int, starvation_seconds: float = 1e6) -> tuple[RunsDriver, list[int]]:
    """A runner with so many slots, and runs of so many instances that take them."""
    driver = RunsDriver(ServiceSettings(starvation_seconds=starvation_seconds))
    driver.join("a", slots)
    runs = [driver.submit(instances=count) for count in instances]
    driver.start_all()
    return driver, runs


def test_a_run_starts_when_the_runs_before_it_leave_it_room() -> None:
    driver, (short, long) = full(4, 2, 2)
    first, second = driver.submit(instances=2), driver.submit(instances=2)
    assert forecast(driver, {short: 10, long: 30}) == {
        first: Forecast(10, (held(short, 2, 10),), f"waits for run {short}"),
        second: Forecast(30, (held(long, 2, 30),), f"waits for run {long}"),
    }


def test_all_whose_slots_a_run_will_take_are_its_holders() -> None:
    driver, (short, long) = full(4, 3, 1)
    wide = driver.submit(instances=4)
    found = forecast(driver, {short: 10, long: 30})[wide]
    assert found == Forecast(
        30, (held(short, 3, 10), held(long, 1, 30)), f"waits for runs {short} and {long}"
    )


def test_a_wide_run_waits_for_all_and_a_narrow_one_behind_it_goes_before() -> None:
    driver, (short, long) = full(4, 2, 2)
    wide, narrow = driver.submit(instances=4), driver.submit(instances=1)
    found = forecast(driver, {short: 10, long: 30})
    assert found[narrow].earliest_at == 10
    assert found[wide] == Forecast(
        None,
        (held(short, 2, 10), held(long, 2, 30)),
        "waits for runs of the queue that come before it, whose lengths are unknown",
    )


def test_an_unknown_end_is_said_to_be_unknown() -> None:
    driver, (known, unknown) = full(2, 1, 1)
    first, second = driver.submit(), driver.submit()
    assert forecast(driver, {known: 5}) == {
        first: Forecast(5, (held(known, 1, 5),), f"waits for run {known}"),
        second: Forecast(None, (held(unknown, 1, None),), f"waits for run {unknown}, whose end is unknown"),
    }


def test_slots_are_reserved_in_the_play_as_they_will_be() -> None:
    driver, (short, long) = full(2, 1, 1, starvation_seconds=60.0)
    wide = driver.submit(instances=2)
    driver.now += 61
    narrow = driver.submit()
    found = forecast(driver, {short: 10, long: 20})
    assert found[wide].earliest_at == 20 and found[narrow].earliest_at is None


def test_an_elastic_run_needs_only_what_it_starts_with() -> None:
    driver, (short, long) = full(4, 1, 3)
    elastic = driver.submit(framework=ELASTIC.framework, instances=4, instances_min=1)
    assert forecast(driver, {short: 10, long: 20})[elastic].earliest_at == 10


def test_only_runners_that_fit_count() -> None:
    driver, (here,) = full(1, 1)
    driver.join("b", 1, labels={"gpu": "h100"})
    other = driver.submit(runner_labels={"gpu": "h100"})
    driver.start_all()
    waits = driver.submit(runner_labels={"gpu": "h100"})
    nowhere = driver.submit(runner_labels={"gpu": "t4"})
    assert forecast(driver, {here: 1, other: 50}) == {
        waits: Forecast(50, (held(other, 1, 50),), f"waits for run {other}"),
        nowhere: Forecast(None, (), ""),
    }
    unknown = Forecast(None, (held(other, 1, None),), f"waits for run {other}, whose end is unknown")
    assert forecast(driver, {})[waits] == unknown


def test_who_has_no_quota_left_waits_for_no_other() -> None:
    driver = RunsDriver()
    driver.join("a", 2)
    own, other = driver.submit("ann", slots_max=1), driver.submit("bob")
    driver.start_all()
    waits = driver.submit("ann", slots_max=1)
    assert forecast(driver, {own: 10, other: 20}) == {waits: Forecast(None, (), "")}


def test_an_end_that_is_overdue_is_expected_now() -> None:
    driver, (running,) = full(1, 1)
    waits = driver.submit()
    assert forecast(driver, {running: -5})[waits].earliest_at == 0


@pytest.mark.parametrize("waiting", [RUNS_MAX + 50])
def test_the_first_of_a_long_queue_are_played(waiting: int) -> None:
    driver, (running,) = full(1, 1)
    queued = [driver.submit() for _ in range(waiting)]
    found = forecast(driver, {running: 5})
    assert list(found) == queued[:RUNS_MAX]
    assert [run_id for run_id, one in found.items() if one.earliest_at is not None] == queued[:1]
