"""The order of the queue, slots that are reserved, and what a waiting run says."""

from __future__ import annotations

import msgspec
import pytest
from runs_driver import SPEC, RunsDriver

from elastane_master.decisions.events import Rejection
from elastane_master.decisions.retention import Retention
from elastane_master.decisions.runs import events, usage, views
from elastane_master.decisions.runs.chapter import STATUS, Metadata, spec_of, status_of
from elastane_master.decisions.runs.run import TRANSITIONS
from elastane_master.decisions.runs.state import ServiceSettings


def order(driver: RunsDriver) -> list[int]:
    return [run_id for run_id, _, _ in views.queue(driver.machine, driver.now)]


def test_priority_then_age() -> None:
    driver = RunsDriver()
    low = driver.submit(priority=-1)
    first, second = driver.submit(), driver.submit()
    high = driver.submit(priority=5)
    assert order(driver) == [high, first, second, low]
    driver.do(events.PriorityChanged(second, 6))
    assert order(driver) == [second, high, first, low]
    views_ = [views.run_view(driver.machine, run_id, driver.now) for run_id in order(driver)]
    assert [view.position for view in views_ if view] == [1, 2, 3, 4]


def test_the_owner_who_used_less_goes_first_and_use_decays() -> None:
    driver = RunsDriver()
    driver.join("a", 1)
    used = driver.submit("ann")
    driver.start_all()
    ann = driver.submit("ann")
    bob = driver.submit("bob")
    driver.now += 600
    driver.machine.state.settings = msgspec.structs.replace(
        driver.machine.state.settings, starvation_seconds=1e6
    )
    assert order(driver) == [bob, ann]
    driver.finish(used)
    assert driver.state(bob) == "launching"
    use = driver.machine.state.uses["ann"]
    before = usage.used(use, driver.now)
    assert usage.used(use, driver.now + 3600) == pytest.approx(before / 2, rel=0.02)


def test_weights_of_owners_count() -> None:
    driver = RunsDriver(ServiceSettings(weights={"ann": 10.0}, starvation_seconds=1e6))
    driver.join("a", 2)
    runs = driver.submit("ann"), driver.submit("bob")
    driver.start_all()
    ann, bob = driver.submit("ann"), driver.submit("bob")
    driver.now += 600
    driver.finish(runs[1])
    assert driver.state(ann) == "launching" and driver.state(bob) == "queued"


def test_a_large_run_that_is_passed_over_gets_slots_reserved() -> None:
    driver = RunsDriver()
    driver.join("a", 2)
    small = [driver.submit(), driver.submit()]
    driver.start_all()
    large = driver.submit(instances=2)
    for _ in range(5):  # there is always a small one of higher priority that fits
        small.append(driver.submit(priority=9))
        driver.tick(after=100.0)
        driver.finish(small.pop(0))
        driver.start_all()
        assert driver.state(large) == "queued"
    small.append(driver.submit(priority=9))
    driver.tick(after=101.0)
    for run_id in list(small):
        if driver.run(run_id).launch is not None:
            driver.finish(run_id)
    assert driver.state(large) == "launching"


def test_what_can_never_fit_has_nothing_reserved() -> None:
    driver = RunsDriver()
    driver.join("a", 2)
    giant = driver.submit(instances=3)
    labelled = driver.submit(runner_labels={"gpu": "yes"})
    driver.tick(after=1000.0)
    small = driver.submit()
    assert driver.state(small) == "launching"
    giant_view, labelled_view = (views.run_view(driver.machine, one, driver.now) for one in (giant, labelled))
    assert giant_view and "its runners have room for 2" in giant_view.reason
    assert labelled_view and "has no label gpu=yes" in labelled_view.reason


def test_a_waiting_run_is_told_what_it_needs_and_its_place() -> None:
    driver = RunsDriver()
    driver.join("a", 4)
    driver.submit(instances=2)
    for _ in range(9):
        last = driver.submit(instances=4)
    view = views.run_view(driver.machine, last, driver.now)
    assert view is not None and view.reason == "needs 4 slots, 2 free; 9th of 9"
    assert (view.position, view.queue_length) == (9, 9)
    assert [views.ordinal(number) for number in (1, 2, 3, 4, 11, 12, 21, 102, 111)] == (
        ["1st", "2nd", "3rd", "4th", "11th", "12th", "21st", "102nd", "111th"]
    )


def test_waiting_for_data_is_off_the_queue() -> None:
    driver = RunsDriver()
    driver.join("a", 1)
    event = events.RunSubmitted(
        msgspec.structs.replace(SPEC, priority=9), "ann", data="preparing", data_reason="copies"
    )
    waiting: int = driver.do(event).run_id
    other = driver.submit()
    assert (driver.state(waiting), driver.state(other)) == ("waiting_data", "launching")
    driver.do(events.DataResolved(waiting, "preparing", reason="copies 3 of 4"))
    assert driver.run(waiting).reason == "copies 3 of 4"
    driver.do(events.DataResolved(waiting, "ready", "file:///data"))
    assert driver.state(waiting) == "queued" and driver.run(waiting).data_url == "file:///data"
    event = events.RunSubmitted(SPEC, "ann", data="preparing")
    missing: int = driver.do(event).run_id
    driver.do(events.DataResolved(missing, "missing", reason="no such version"))
    assert driver.state(missing) == "failed" and driver.run(missing).reason == "no such version"


def test_pages_are_filtered_and_newest_first() -> None:
    driver = RunsDriver()
    runs = [driver.submit("ann" if number % 2 else "bob", labels={"n": str(number)}) for number in range(7)]
    page = views.list_runs(driver.machine, page_size=3)
    assert page.run_ids == tuple(reversed(runs))[:3]
    rest = views.list_runs(driver.machine, page_size=4, before=page.next_before)
    assert rest.run_ids == tuple(reversed(runs))[3:] and rest.next_before == 0
    assert views.list_runs(driver.machine, owner="ann").run_ids == (runs[5], runs[3], runs[1])
    assert views.list_runs(driver.machine, labels={"n": "2"}).run_ids == (runs[2],)
    assert views.list_runs(driver.machine, states=["running"]).run_ids == ()


def test_runs_beyond_the_limits_of_retention() -> None:
    driver = RunsDriver()
    runs = [driver.submit() for _ in range(3)]
    for run_id in runs[:2]:
        driver.cancel(run_id)
    driver.now += 100
    assert views.overdue(driver.machine, Retention(seconds=50), driver.now) == runs[:2]
    assert views.overdue(driver.machine, Retention(newest=1), driver.now) == runs[:1]


def test_the_chapters_states_are_a_projection() -> None:
    assert set(STATUS) == set(TRANSITIONS)
    metadata = Metadata("intent", "7", "job", "abc", {"PARALLEL_INSTANCES": "3"}, "intent-model")
    spec = spec_of(metadata)
    driver = RunsDriver()
    driver.join("a", 4, algorithms=("intent",))
    run_id: int = driver.do(events.RunSubmitted(spec, "ann")).run_id
    view = views.run_view(driver.machine, run_id, driver.now)
    assert view is not None and len(view.ranks) == 3
    status = status_of(view)
    assert (status.status, status.job_id, status.metadata) == ("launch", run_id, metadata)


def test_an_owner_without_quota_left_waits_and_holds_nobody_up() -> None:
    driver = RunsDriver()
    driver.join("a", 4)
    first = driver.submit("ann", slots_max=2, instances=2)
    second = driver.submit("ann", priority=9)
    other = driver.submit("bob")
    driver.start_all()
    assert [driver.state(run_id) for run_id in (first, second, other)] == ["running", "queued", "running"]
    view = views.run_view(driver.machine, second, driver.now)
    assert view is not None and "ann has 0 left of its quota of 2" in view.reason
    driver.finish(first)
    assert driver.state(second) == "launching"


def test_no_slots_are_reserved_for_an_owner_without_quota_left() -> None:
    driver = RunsDriver(ServiceSettings(starvation_seconds=10.0))
    driver.join("a", 2)
    driver.submit("ann", slots_max=1)
    driver.start_all()
    blocked = driver.submit("ann")
    driver.tick(after=60.0)
    other = driver.submit("bob")
    assert driver.state(blocked) == "queued" and driver.state(other) == "launching"


def test_an_elastic_run_grows_within_its_owners_quota() -> None:
    driver = RunsDriver()
    driver.join("a", 8)
    run_id = driver.submit("ann", slots_max=3, framework="elastane", instances=4)
    driver.start_all()
    assert driver.machine.state.uses["ann"].slots == 3
    driver.submit("ann", slots_max=4, instances=4)
    driver.start_all()
    assert driver.machine.state.uses["ann"].slots == 4
    assert len([rank for rank in driver.run(run_id).ranks if rank.runner_id]) == 4


def test_a_run_that_its_owners_quota_could_never_hold_is_refused() -> None:
    driver = RunsDriver()
    with pytest.raises(Rejection, match="needs 4 slots at once, and 'ann' may use 3") as refused:
        driver.submit("ann", slots_max=3, instances=4)
    assert refused.value.reason == "quota_exceeded"
    assert not driver.machine.state.slots_max
    driver.submit("ann", slots_max=0, instances=4)
