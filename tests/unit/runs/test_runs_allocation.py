"""What becomes of a scheduling policy's decisions: runs start, grow, and give instances back."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
import pytest

from elastane_master.decisions.runs import effects, events, views
from elastane_master.decisions.runs.allocation import DECISIONS_MAX, RUN_DECISIONS_MAX, Target
from elastane_master.decisions.runs.forecast import Forecast, SlotHolder
from elastane_master.decisions.runs.queue_shares import QueueShare
from elastane_master.decisions.runs.state import ServiceSettings
from elastane_proto.job_settings import JobSettings
from unit.runs.runs_driver import RunsDriver

POLICY = "foresight"


def driver_of(**changes: Any) -> RunsDriver:
    """A service whose policy decides."""
    settings = ServiceSettings(scheduling_policy=POLICY, reshape_seconds=30.0)
    driver = RunsDriver(msgspec.structs.replace(settings, **changes))
    driver.do(events.MasterStarted("master", driver.machine.state.settings))
    return driver


def decide(driver: RunsDriver, targets: dict[int, dict[str, int]], after: float = 31.0, **more: Any) -> None:
    """The policy decides: instances by run and device type."""
    wanted = tuple(Target(run_id, instances, f"why {run_id}") for run_id, instances in targets.items())
    event = events.AllocationDecided(
        POLICY, driver.machine.state.revision, wanted, "best of two", ("other: +3 s",)
    )
    driver.do(msgspec.structs.replace(event, **more), after=after)


def elastic(driver: RunsDriver, instances: int = 4, **changes: Any) -> int:
    return driver.submit(framework="elastane", instances=instances, **changes)


def placed(driver: RunsDriver, run_id: int) -> int:
    return sum(1 for record in driver.run(run_id).ranks if record.placed)


def types_of(driver: RunsDriver, run_id: int) -> Counter[str]:
    return Counter(driver.runner(one.runner_id).device_type for one in driver.run(run_id).ranks if one.placed)


def stop_ranks(driver: RunsDriver) -> list[int]:
    """Runners confirm the instances that they were asked to stop; return them."""
    found = []
    for runner, stop in driver.take_with_runner(effects.Stop):
        assert stop.rank is not None
        found.append(stop.rank)
        driver.rank(runner, stop.attempt, stop.rank, "exited", 143)
    return found


def two_running(**changes: Any) -> tuple[RunsDriver, int, int]:
    """One run that has grown to four, and one that waits."""
    driver = driver_of(**changes)
    driver.join("a", 4)
    first = elastic(driver)
    decide(driver, {first: {"cpu": 4}})
    driver.start_all()
    driver.start_all()
    second = elastic(driver)
    return driver, first, second


def test_a_run_waits_for_the_first_decision_as_under_fair_share_and_for_targets_after_it() -> None:
    driver = driver_of()
    driver.join("a", 4)
    first = elastic(driver, instances=1)
    assert driver.state(first) == "launching"  # nobody has decided yet
    decide(driver, {})
    second = elastic(driver, instances=1)
    driver.tick(after=1.0)
    assert driver.state(second) == "queued"
    decide(driver, {second: {"cpu": 1}})
    assert driver.state(second) == "launching"


def test_a_run_grows_to_its_target_and_no_further() -> None:
    driver = driver_of()
    driver.join("a", 8)
    decide(driver, {})
    run = elastic(driver, instances=6)
    decide(driver, {run: {"cpu": 3}})
    driver.start_all()
    driver.tick(after=5.0)
    assert placed(driver, run) == 3
    decide(driver, {run: {"cpu": 5}})
    assert placed(driver, run) == 5


def test_a_running_run_gives_back_its_last_instances_one_by_one_and_the_other_starts_on_them() -> None:
    driver, first, second = two_running()
    driver.take(effects.Stop)
    decide(driver, {first: {"cpu": 2}, second: {"cpu": 2}})
    assert placed(driver, first) == 2
    assert driver.state(second) == "queued"  # the slots are not free before the runner says so
    assert sorted(stop_ranks(driver)) == [2, 3]
    assert driver.state(second) == "launching"
    assert placed(driver, second) == 2
    assert driver.run(first).failures == 0  # what the service stops is no failure
    assert driver.state(first) == "running"


def test_it_grows_back_when_the_other_has_ended() -> None:
    driver, first, second = two_running()
    decide(driver, {first: {"cpu": 2}, second: {"cpu": 2}})
    stop_ranks(driver)
    driver.start_all()
    driver.do(events.ElasticJobEnded(second, driver.run(second).job, "succeeded"))
    driver.stop_all()
    decide(driver, {first: {"cpu": 4}})
    driver.start_all()
    assert placed(driver, first) == 4
    assert {one.state for one in driver.run(first).ranks} == {"running"}


@pytest.mark.parametrize("target", [{}, {"cpu": 0}, {"cpu": -7}, {"cpu": 1}, {"tpu": 9}])
def test_no_decision_takes_a_running_run_below_its_least(target: dict[str, int]) -> None:
    driver = driver_of()
    driver.join("a", 4)
    first = elastic(driver, instances_min=2)
    decide(driver, {first: {"cpu": 4}})
    driver.start_all()
    decide(driver, {first: target} if target else {})
    stop_ranks(driver)
    assert placed(driver, first) == 2
    assert driver.state(first) == "running"


def test_a_black_box_keeps_its_slots_and_gets_all_that_it_needs_or_nothing() -> None:
    driver = driver_of()
    driver.join("a", 4)
    decide(driver, {})
    whole = driver.submit(instances=3)
    decide(driver, {whole: {"cpu": 2}})
    assert driver.state(whole) == "queued"
    decide(driver, {whole: {"cpu": 3}})
    driver.start_all()
    decide(driver, {whole: {"cpu": 1}})
    assert driver.take(effects.Stop) == []
    assert driver.state(whole) == "running"
    driver.join("b", 4)
    other = elastic(driver, instances=5)
    decide(driver, {whole: {"cpu": 3}, other: {"cpu": 5}})  # it does not count twice
    assert placed(driver, other) == 5


def test_nobody_gets_more_than_there_is_and_unknown_runs_get_nothing() -> None:
    driver = driver_of()
    driver.join("a", 4)
    decide(driver, {})
    first, second = elastic(driver), elastic(driver)
    decide(driver, {99: {"cpu": 4}, first: {"cpu": 10**9, "x": 3}, second: {"cpu": 4}})
    assert (placed(driver, first), placed(driver, second)) == (4, 0)
    assert driver.machine.state.allocation.targets == {first: {"cpu": 4}}


def test_nobody_is_planned_with_more_than_its_owner_may_have() -> None:
    driver = driver_of()
    driver.join("a", 8)
    decide(driver, {})
    first = elastic(driver, slots_max=5)
    second, others = elastic(driver, slots_max=5), elastic(driver, owner="bob")
    decide(driver, {first: {"cpu": 4}, second: {"cpu": 4}, others: {"cpu": 4}})
    assert driver.machine.state.allocation.targets == {
        first: {"cpu": 4},
        second: {"cpu": 1},
        others: {"cpu": 3},
    }
    driver.start_all()
    driver.start_all()
    decide(driver, {second: {"cpu": 4}, first: {"cpu": 4}, others: {"cpu": 4}})
    assert driver.machine.state.allocation.targets == {
        second: {"cpu": 4},
        first: {"cpu": 1},
        others: {"cpu": 3},
    }
    # A smaller quota takes nothing from what runs keep in any case.
    third = elastic(driver, slots_max=1)
    decide(driver, {first: {"cpu": 4}, second: {"cpu": 4}, third: {"cpu": 1}, others: {"cpu": 4}})
    targets = driver.machine.state.allocation.targets
    assert (targets[first], targets[second], targets[others]) == ({"cpu": 1}, {"cpu": 1}, {"cpu": 4})
    assert third not in targets


def test_what_is_guaranteed_is_taken_back_though_a_run_was_changed_a_moment_ago() -> None:
    queues = (QueueShare("paid", 1.0, {"cpu": 3}, ("ann",)), QueueShare("spare", 9.0, {}, ("bob",)))
    driver = driver_of(queues=queues)
    driver.join("a", 4)
    decide(driver, {})
    lent = [elastic(driver, owner="bob") for _ in range(2)]
    decide(driver, {lent[0]: {"cpu": 2}, lent[1]: {"cpu": 2}})
    driver.start_all()
    driver.start_all()
    paid = elastic(driver, instances_min=2)
    # The policy gives one of the others more than is left beside what the second keeps in any case.
    wanted = {lent[0]: {"cpu": 2}, lent[1]: {}, paid: {"cpu": 2}}
    decide(driver, wanted, after=1.0)
    assert driver.machine.state.allocation.targets == {
        lent[0]: {"cpu": 1},
        lent[1]: {"cpu": 1},
        paid: {"cpu": 2},
    }
    stop_ranks(driver)
    assert placed(driver, paid) == 2
    driver.start_all()
    # What is not guaranteed waits as ever.
    decide(driver, {lent[0]: {"cpu": 1}, lent[1]: {"cpu": 1}, paid: {"cpu": 2}}, after=31.0)
    decide(driver, {lent[0]: {"cpu": 2}, lent[1]: {"cpu": 1}, paid: {"cpu": 2}}, after=1.0)
    service = views.service_view(driver.machine, driver.now)
    assert [(one.share.name, one.slots_used, one.running, one.waiting) for one in service.queues] == [
        ("paid", {"cpu": 2}, 1, 0),
        ("spare", {"cpu": 2}, 2, 0),
    ]
    view = views.run_view(driver.machine, paid, driver.now)
    assert view is not None and view.queue == "paid"


def test_decisions_about_older_or_other_states_are_ignored() -> None:
    driver = driver_of()
    driver.join("a", 4)
    decide(driver, {})
    run = elastic(driver)
    decide(driver, {run: {"cpu": 2}})
    before = driver.machine.snapshot()
    decide(driver, {run: {"cpu": 4}}, revision=driver.machine.state.allocation.revision - 1)
    decide(driver, {run: {"cpu": 4}}, revision=driver.machine.state.revision + 1)
    decide(driver, {run: {"cpu": 4}}, policy="srtf")
    assert driver.machine.snapshot() == before


def test_a_running_run_is_not_changed_again_at_once_unless_its_slots_are_gone() -> None:
    driver, first, second = two_running()
    decide(driver, {first: {"cpu": 2}, second: {"cpu": 2}})
    stop_ranks(driver)
    driver.start_all()
    decide(driver, {first: {"cpu": 3}, second: {"cpu": 1}}, after=5.0)
    assert (placed(driver, first), placed(driver, second)) == (2, 2)
    last = driver.run(first).decided[-1]
    assert last.kind == "declined" and "changed a moment ago" in last.reason
    decide(driver, {first: {"cpu": 3}, second: {"cpu": 1}}, after=30.0)
    stop_ranks(driver)
    driver.start_all()
    assert (placed(driver, first), placed(driver, second)) == (3, 1)


OLD, NEW = "Intel(R) Xeon(R) E5", "Intel(R) Xeon(R) 8480"
D2 = JobSettings(ests=4, determinism="d2")


def test_a_run_at_d1_is_moved_to_no_other_device_type_whatever_the_policy_wants() -> None:
    driver = driver_of()
    driver.join("old", 2, device_type=OLD)
    decide(driver, {})
    run = elastic(driver, instances=4)
    decide(driver, {run: {OLD: 2}})
    driver.start_all()
    driver.join("new", 4, device_type=NEW)
    for wanted in ({NEW: 4}, {OLD: 2, NEW: 2}):
        decide(driver, {run: wanted})
        driver.start_all()
        assert types_of(driver, run) == {OLD: 2}


def test_a_run_moves_to_another_device_type_and_trains_meanwhile() -> None:
    driver = driver_of()
    driver.join("old", 2, device_type=OLD)
    decide(driver, {})
    run = elastic(driver, instances=2, job=D2)
    decide(driver, {run: {OLD: 2}})
    driver.start_all()
    driver.join("new", 2, device_type=NEW)
    decide(driver, {run: {NEW: 2}})
    for _ in range(4):
        assert sum(1 for one in driver.run(run).ranks if one.state == "running") >= 1
        stop_ranks(driver)
        driver.start_all()
    assert types_of(driver, run) == {NEW: 2}


def test_newcomers_are_ready_before_old_ones_go() -> None:
    driver = driver_of()
    driver.join("old", 2, device_type=OLD)
    decide(driver, {})
    run = elastic(driver, instances=4, instances_min=2, job=D2)
    decide(driver, {run: {OLD: 2}})
    driver.start_all()
    driver.join("new", 2, device_type=NEW)
    decide(driver, {run: {NEW: 2}})
    assert types_of(driver, run) == {OLD: 2, NEW: 2}
    driver.prepare_all()
    assert driver.take(effects.Stop) == []
    driver.start_all()
    stop_ranks(driver)
    assert types_of(driver, run) == {NEW: 2}


def test_a_run_that_has_waited_too_long_gets_slots_whatever_the_policy_wants() -> None:
    driver = driver_of(starvation_seconds=100.0)
    driver.join("a", 4)
    first = elastic(driver)
    decide(driver, {first: {"cpu": 4}})
    driver.start_all()
    other = driver.submit(instances=2)
    decide(driver, {first: {"cpu": 4}}, after=99.0)
    assert driver.take(effects.Stop) == []
    driver.tick(after=5.0)
    assert len(stop_ranks(driver)) == 2
    assert driver.state(other) == "launching"
    assert placed(driver, first) == 2


def test_when_the_policy_fails_runs_are_ordered_by_fair_share_until_it_decides() -> None:
    driver = driver_of()
    driver.join("a", 4)
    decide(driver, {})
    run = elastic(driver)
    assert driver.state(run) == "queued"
    decide(driver, {}, failure="it took 11 s")
    assert placed(driver, run) == 4
    decided = driver.machine.state.allocation.decided[-1]
    assert (decided.policy, "it took 11 s" in decided.choice) == ("fair-share", True)
    decide(driver, {run: {"cpu": 2}})
    assert driver.machine.state.allocation.in_charge


def test_a_new_master_has_the_same_allocation_and_moves_no_run_before_it_knows_more() -> None:
    driver, first, second = two_running()
    decide(driver, {first: {"cpu": 2}, second: {"cpu": 2}})
    stop_ranks(driver)
    driver.start_all()
    targets = dict(driver.machine.state.allocation.targets)
    driver.take(effects.Stop)
    driver.tick(after=100.0)
    driver.restart()
    driver.join("a", 4, *driver.reports(first, "a"), *driver.reports(second, "a"))
    assert driver.now - driver.machine.state.allocation.reshaped_at[first] > 30.0
    decide(driver, {first: {"cpu": 1}, second: {"cpu": 3}}, after=10.0)
    assert driver.machine.state.allocation.targets == targets
    assert driver.take(effects.Stop) == []
    assert (placed(driver, first), placed(driver, second)) == (2, 2)


def test_a_master_with_fair_share_forgets_targets() -> None:
    driver, first, second = two_running()
    settings = msgspec.structs.replace(driver.machine.state.settings, scheduling_policy="fair-share")
    driver.do(events.MasterStarted("master", settings))
    assert not driver.machine.state.allocation.targets
    decide(driver, {second: {"cpu": 4}})
    assert not driver.machine.state.allocation.in_charge
    assert placed(driver, first) == 4


def test_what_is_taken_back_ends_before_it_has_another_place_also_under_fair_share() -> None:
    driver, first, second = two_running()
    there = driver.reports(first, "a")  # all four run
    decide(driver, {first: {"cpu": 2}, second: {}})
    assert placed(driver, first) == 2
    driver.cancel(second)  # nobody else waits for slots
    settings = msgspec.structs.replace(driver.machine.state.settings, scheduling_policy="fair-share")
    driver.do(events.MasterStarted("master", settings))
    driver.take(effects.Stop)
    driver.join("a", 4, *there)
    driver.join("b", 2)
    driver.tick(after=1.0)
    assert placed(driver, first) == 2 and not driver.take(effects.Prepare)
    assert sorted(stop_ranks(driver)) == [2, 3]
    assert placed(driver, first) == 4
    launch = driver.run(first).launch
    assert launch is not None and launch.drained == []


def test_decisions_are_kept_with_their_reasons_and_no_more_than_a_number_of_them() -> None:
    driver, first, second = two_running(starvation_seconds=1e9)
    for turn in range(2 * DECISIONS_MAX):
        decide(driver, {first: {"cpu": 1 + turn % 4}, second: {}})
        stop_ranks(driver)
        driver.start_all()
    found = views.scheduling(driver.machine, first, 1)[0]
    assert (found.slots_before, found.slots_after, found.kind) == (3, 4, "granted")
    assert (found.choice, found.rejected, found.reason) == ("best of two", ("other: +3 s",), f"why {first}")
    assert len(driver.run(first).decided) == RUN_DECISIONS_MAX
    assert len(driver.machine.state.allocation.decided) == DECISIONS_MAX
    waits = views.scheduling(driver.machine, second)
    assert [(one.kind, one.reason) for one in waits] == [("waits", f"why {second}")]
    assert {one.run_id for one in views.scheduling(driver.machine, limit=1000)} >= {first}
    assert views.scheduling(driver.machine, covers=lambda owner: owner == "bob") == ()


def test_a_runner_that_is_found_to_be_unlike_costs_no_instance() -> None:
    driver = driver_of()
    driver.join("a", 2)
    driver.join("b", 2)
    run_id = elastic(driver)
    decide(driver, {run_id: {"cpu": 4}})
    driver.start_all()
    driver.start_all()
    unlike = {"b": "cpu of b"}
    decide(driver, {run_id: {"cpu": 4}}, unlike=unlike)  # the policy did not know of it yet
    assert driver.runner("b").computes_on == "cpu of b"
    assert not stop_ranks(driver) and placed(driver, run_id) == 4
    decide(driver, {run_id: {"cpu": 2, "cpu of b": 2}}, after=2.0, unlike=unlike)
    assert not stop_ranks(driver) and placed(driver, run_id) == 4
    assert driver.machine.state.allocation.targets == {run_id: {"cpu": 2, "cpu of b": 2}}
    decide(driver, {}, failure="slow")
    assert driver.runner("b").computes_on == "cpu of b", "a failure says nothing about runners"


def test_nobody_is_told_which_runs_of_others_there_are() -> None:
    driver, first, second = two_running()
    bobs = elastic(driver, owner="bob")
    decide(
        driver,
        {first: {"cpu": 4}, second: {}, bobs: {}},
        choice=f"shortest first, but run {bobs} before",
        rejected=(f"run {first} wider: +3 s", f"runs {first}, {second} and {bobs} alike: +4 s"),
    )

    def said(covers: str) -> tuple[str, str, tuple[str, ...]]:
        (one,) = views.scheduling(driver.machine, second, 1, covers=lambda owner: covers in ("*", owner))
        return one.reason, one.choice, one.rejected

    assert said("*")[1:] == (
        f"shortest first, but run {bobs} before",
        (f"run {first} wider: +3 s", f"runs {first}, {second} and {bobs} alike: +4 s"),
    )
    assert said("ann")[1:] == (
        "shortest first, but another run before",
        (f"run {first} wider: +3 s", f"runs {first}, {second} and 1 other alike: +4 s"),
    )
    assert said("bob")[1:] == (
        f"shortest first, but run {bobs} before",
        ("another run wider: +3 s", f"run {bobs} and 2 others alike: +4 s"),
    )
    assert said("eve")[2] == ("another run wider: +3 s", "3 other runs alike: +4 s")
    of_all = views.scheduling(driver.machine, covers=lambda owner: owner == "ann")
    assert of_all and not any(f"run {bobs}" in one.choice for one in of_all)


def test_holders_of_slots_are_named_to_those_who_may_see_them() -> None:
    driver, first, second = two_running()
    holder = SlotHolder(first, 4, None)
    forecast = Forecast(None, (holder,), f"waits for run {first}, whose end is unknown")

    def shown(covers: bool) -> views.RunView:
        view = views.run_view(
            driver.machine, second, driver.now, forecast=forecast, covers=lambda owner: covers
        )
        assert view is not None
        return view

    assert shown(True).holders == (holder,) and f"waits for run {first}," in shown(True).reason
    assert shown(False).holders == () and "waits for another run, whose end" in shown(False).reason
