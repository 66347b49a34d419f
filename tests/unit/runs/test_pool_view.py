"""What a scheduling policy is shown of runs and runners, and what its decision means for them."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from msgspec.structs import replace as replace_struct

from elastane_master.decisions.runs import effects, events
from elastane_master.decisions.runs.pool_view import (
    NOT_MEASURED,
    WAITING_MAX,
    PoolView,
    Progress,
    est_seconds,
    pool_view,
)
from elastane_master.decisions.runs.queue_shares import QueueShare
from elastane_master.decisions.runs.state import ServiceSettings
from elastane_proto.job_settings import JobSettings
from elastane_scheduler.costs import Costs
from elastane_scheduler.policies.catalogue import POLICIES, make_policy
from elastane_scheduler.policies.prioritized import PrioritizedPolicy
from elastane_scheduler.policies.queued import ByQueuePolicy
from unit.runs.runs_driver import RunsDriver

POLICY = "elastic-srtf"


def driver_of() -> RunsDriver:
    """A service whose policy decides, and has decided that nobody gets anything."""
    driver = RunsDriver(ServiceSettings(scheduling_policy=POLICY))
    driver.do(events.MasterStarted("master", driver.machine.state.settings))
    driver.do(events.AllocationDecided(POLICY, 0))
    return driver


def seen(driver: RunsDriver, progress: dict[int, Progress] | None = None) -> PoolView:
    view = pool_view(driver.machine.state, driver.machine.index, progress or {}, driver.now, Costs())
    assert view is not None
    return view


def decide(driver: RunsDriver, progress: dict[int, Progress] | None = None, policy: str = POLICY) -> PoolView:
    """The policy decides about what it is shown."""
    view = seen(driver, progress)
    targets = view.targets(make_policy(policy).decide(view.view))
    driver.do(events.AllocationDecided(POLICY, view.revision, targets), after=31.0)
    return view


def elastic(driver: RunsDriver, instances: int = 4, **changes: Any) -> int:
    return driver.submit(framework="elastane", instances=instances, **changes)


def placed(driver: RunsDriver, run_id: int) -> int:
    return sum(1 for record in driver.run(run_id).ranks if record.placed)


def test_without_slots_or_runs_there_is_nothing_to_decide() -> None:
    driver = driver_of()
    assert pool_view(driver.machine.state, driver.machine.index, {}, driver.now, Costs()) is None
    elastic(driver)
    assert pool_view(driver.machine.state, driver.machine.index, {}, driver.now, Costs()) is None


def test_device_types_are_those_of_the_runners() -> None:
    driver = driver_of()
    driver.join("a", 3)
    driver.join("b", 2, device_type="gpu", memory_bytes=2**34)
    elastic(driver)
    pool = seen(driver).view.pool
    assert dict(zip(pool.types, pool.counts, strict=True)) == {"cpu": 3, "gpu": 2}
    driver.lose("b")
    assert seen(driver).view.pool.types == ("cpu",)


def test_slots_of_a_running_black_box_are_not_offered_and_it_is_left_alone() -> None:
    driver = driver_of()
    driver.join("a", 4)
    whole = driver.submit(instances=3)
    decide(driver)
    driver.start_all()
    elastic(driver)
    view = seen(driver)
    assert view.view.offered == (1,)
    assert [run.run_id for run in view.runs] != [whole]


def test_a_black_box_takes_all_that_it_asks_for_and_nothing_else() -> None:
    driver = driver_of()
    driver.join("a", 8)
    driver.submit(instances=3)
    shape = seen(driver).view.jobs[0].shape
    assert [shape.step_seconds((n,)) < math.inf for n in range(1, 5)] == [False, False, True, True]
    assert shape.widest((8,), (1.0,)) == (3,)


def test_no_instance_is_planned_with_more_ests_than_it_has_memory_for() -> None:
    driver = driver_of()
    driver.join("a", 4)
    run = elastic(driver)
    shape = seen(driver, {run: Progress({"cpu": 0.5}, ests_max={"cpu": 2})}).view.jobs[0].shape
    assert [shape.step_seconds((n,)) for n in (1, 2, 4)] == [math.inf, 1.0, 0.5]


def test_a_run_of_a_higher_priority_is_served_first_and_the_other_keeps_its_least() -> None:
    driver = driver_of()
    driver.join("a", 4)
    first = elastic(driver)
    decide(driver)
    driver.start_all()
    urgent = elastic(driver, priority=5)
    view = seen(driver)
    assert [state.job.priority for state in view.view.jobs] == [0, 5]
    policy = PrioritizedPolicy(lambda: make_policy("maxmin"))
    driver.do(
        events.AllocationDecided(POLICY, view.revision, view.targets(policy.decide(view.view))), after=31.0
    )
    targets = driver.machine.state.allocation.targets
    assert (targets[first], targets[urgent]) == ({"cpu": 1}, {"cpu": 3})


def test_slots_of_runners_that_do_not_fit_are_not_planned_with() -> None:
    driver = driver_of()
    driver.join("a", 2, labels={"zone": "x"})
    driver.join("b", 8)
    elastic(driver, 8, runner_labels={"zone": "x"})
    view = seen(driver).view
    assert view.offered == (10,)
    assert make_policy("elastic-srtf").decide(view).allocation == [(2,)]


def test_a_running_job_has_its_slots_and_its_steps_left() -> None:
    driver = driver_of()
    driver.join("a", 4)
    run = elastic(driver)
    decide(driver)
    driver.start_all()
    known = {run: Progress({"cpu": 0.5}, 100, 300, 0.75)}
    state = seen(driver, known).view.jobs[0]
    assert (state.devices, state.remaining, state.job.known) == ((4,), 200.0, True)
    assert state.shape.step_seconds((4,)) == pytest.approx(0.75)  # as it was measured
    assert state.shape.step_seconds((1,)) == pytest.approx(2.0)
    assert state.finish_seconds == pytest.approx(driver.now + 150.0)
    unknown = seen(driver, {run: Progress({"cpu": 0.5}, 100)}).view.jobs[0]
    assert (unknown.remaining, unknown.job.known) == (120.0, False)  # a minute at its best speed


@pytest.mark.parametrize(
    ("known", "usual", "expected"),
    [
        ({}, {}, (1.0, 1.0)),
        ({}, {"a": 3.0}, (3.0, 1.0)),
        ({"a": 0.2}, {}, (0.2, 0.2)),
        ({"a": 0.2}, {"a": 0.1, "b": 0.4}, (0.2, 0.8)),
        ({"a": 0.0}, {}, (1.0, 1.0)),
    ],
)
def test_a_speed_that_is_not_measured_is_guessed(
    known: dict[str, float], usual: dict[str, float], expected: tuple[float, ...]
) -> None:
    assert est_seconds(("a", "b"), known, usual) == pytest.approx(expected)


def test_the_reason_says_that_a_speed_is_not_measured() -> None:
    driver = driver_of()
    driver.join("a", 4)
    first, second = elastic(driver), elastic(driver)
    view = seen(driver, {first: Progress({"cpu": 0.1}, 1, 100)})
    targets = {one.run_id: one for one in view.targets(make_policy(POLICY).decide(view.view))}
    assert NOT_MEASURED not in targets[first].reason
    assert NOT_MEASURED in targets[second].reason
    assert f"run {first} gets 4 cpu" in targets[first].reason
    assert f"behind run {first}" in targets[second].reason


def test_a_gang_larger_than_the_pool_waits_and_the_others_run() -> None:
    driver = driver_of()
    driver.join("a", 4)
    large, small = driver.submit(instances=9), elastic(driver)
    view = decide(driver)
    assert (driver.state(large), driver.state(small)) == ("queued", "launching")
    assert "needs 9 instances at once" in view.left_out[large]
    assert driver.run(large).decided[-1].kind == "waits"


def test_instances_of_several_slots_get_whole_ones() -> None:
    driver = driver_of()
    driver.join("a", 5)
    run = elastic(driver, slots_per_instance=2)
    view = decide(driver)
    assert placed(driver, run) == 2
    (target,) = view.targets(make_policy(POLICY).decide(view.view))
    assert target.instances == {"cpu": 2}


NEW, OLD, GPU = "Intel(R) Xeon(R) 8480", "Intel(R) Xeon(R) E5", "NVIDIA L4"


def at_level(driver: RunsDriver, level: str, instances: int, **changes: Any) -> int:
    job = replace_struct(JobSettings(ests=instances), determinism=level)
    return elastic(driver, instances=instances, job=job, **changes)


@pytest.mark.parametrize("policy", ["elastic-srtf", "maxmin", "foresight", "easyscale-heter"])
@pytest.mark.parametrize(
    ("level", "types", "most"),
    [("d1", {NEW}, 3), ("d2", {NEW, OLD}, 5), ("d2", {GPU}, 4), ("d0", {NEW, OLD}, 5)],
)
def test_unlike_processors_train_one_run_at_d2_and_what_differs_in_its_bits_never(
    level: str, types: set[str], most: int, policy: str
) -> None:
    driver = driver_of()
    driver.join("new", 3, device_type=NEW, labels={"class": "cpu"})
    driver.join("old", 2, device_type=OLD, labels={"class": "cpu"})
    driver.join("gpu", 4, device_type=GPU, labels={"class": "gpu"})
    run = at_level(driver, level, 8, runner_labels={"class": "gpu" if GPU in types else "cpu"})
    for _ in range(8):
        decide(driver, {run: Progress({NEW: 0.5, OLD: 1.0, GPU: 0.1}, 3, 1000)}, policy)
        driver.start_all()
    has = {driver.runner(one.runner_id).device_type for one in driver.run(run).ranks if one.placed}
    assert has == types and placed(driver, run) == most


def test_at_d1_a_run_stays_on_the_type_it_began_with_also_when_it_has_lost_all() -> None:
    driver = driver_of()
    driver.join("new", 2, device_type=NEW)
    runs = [at_level(driver, "d1", 2), at_level(driver, "d2", 2)]
    driver.join("new2", 2, device_type=NEW)
    decide(driver)
    driver.start_all()
    assert [driver.run(run).trains_on for run in runs] == [NEW, NEW]
    driver.join("old", 8, device_type=OLD)
    driver.lose("new")
    driver.lose("new2")
    decide(driver)
    driver.start_all()
    assert [placed(driver, run) for run in runs] == [0, 2]
    assert "at D1 the run stays on what it began with" in seen(driver).left_out[runs[0]]
    driver.join("new3", 2, device_type=NEW)
    decide(driver)
    driver.start_all()
    assert placed(driver, runs[0]) == 2


def test_runs_keep_to_the_runners_that_fit_them() -> None:
    driver = driver_of()
    driver.join("a", 4)
    driver.join("b", 4, device_type="gpu", labels={"zone": "x"})
    elastic(driver, runner_labels={"zone": "x"})
    assert seen(driver).view.jobs[0].shape.limits == (0, 4)


def test_a_runner_that_comes_back_with_fewer_slots_offers_at_least_what_is_held() -> None:
    driver = driver_of()
    driver.join("a", 4)
    run = elastic(driver)
    decide(driver)
    driver.start_all()
    driver.lose_stream("a")
    driver.join("a", 1, *driver.reports(run, "a"))
    view = seen(driver).view
    assert view.offered == view.jobs[0].devices == (4,)
    for policy in POLICIES:
        make_policy(policy).decide(view)


def test_of_a_long_queue_a_policy_sees_the_first() -> None:
    driver = driver_of()
    driver.join("a", 4)
    for _ in range(WAITING_MAX + 5):
        elastic(driver)
    urgent = elastic(driver, priority=9)
    view = seen(driver)
    assert len(view.runs) == WAITING_MAX
    assert view.runs[-1].run_id == urgent  # the youngest, and among the first by priority


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_decides_about_a_service(policy: str) -> None:
    driver = driver_of()
    driver.join("a", 4)
    driver.join("b", 4, device_type="gpu")
    runs = [elastic(driver), driver.submit(instances=2), elastic(driver, instances=8, instances_min=2)]
    progress = {runs[0]: Progress({"cpu": 0.1, "gpu": 0.01}, 5, 10**6), runs[2]: Progress({}, 3)}
    for _ in range(3):
        decide(driver, progress, policy)
        for runner, stop in driver.take_with_runner(effects.Stop):
            driver.rank(runner, stop.attempt, stop.rank or 0, "exited", 143)
        driver.start_all()
    assert any(placed(driver, run) for run in runs)


def test_runs_whose_owner_has_no_quota_left_get_no_slots_that_others_could_use() -> None:
    driver = driver_of()
    driver.join("a", 8)
    driver.submit(instances=4, owner="bob", slots_max=4)
    decide(driver)
    for _ in range(WAITING_MAX):
        elastic(driver, owner="bob", instances_min=1, slots_max=4, priority=1)
    other = elastic(driver, owner="ann", instances_min=1)
    assert [run.run_id for run in seen(driver).runs] == [other]
    decide(driver)
    assert driver.run(other).launch is not None


def test_queues_share_what_black_boxes_leave() -> None:
    queues = (QueueShare("paid", 1.0, {"c*": 5}, ("ann",)), QueueShare("spare", 2.0, {}, ("bob",)))
    driver = RunsDriver(ServiceSettings(scheduling_policy=POLICY, queues=queues))
    driver.do(events.MasterStarted("master", driver.machine.state.settings))
    driver.do(events.AllocationDecided(POLICY, 0))
    driver.join("a", 9)
    driver.submit(instances=2)  # ann's black box
    decide(driver)
    driver.start_all()
    elastic(driver, 8)
    elastic(driver, 8, owner="bob")
    elastic(driver, 8, owner="carl")
    view = seen(driver).view
    assert [(queue.name, queue.weight, queue.guaranteed) for queue in view.queues] == [
        ("paid", 1.0, (3,)), ("spare", 2.0, (0,)),
    ]  # fmt: skip
    assert [state.job.queue for state in view.jobs] == ["paid", "spare", "default"]
    policy = ByQueuePolicy(lambda: make_policy("maxmin"))
    assert policy.decide(view).allocation == [(3,), (3,), (1,)]
    alone = replace(view, queues=())
    assert policy.decide(alone).allocation == make_policy("maxmin").decide(alone).allocation


@pytest.mark.parametrize("policy", ["elastic-srtf", "maxmin", "packing", "foresight"])
def test_slots_beyond_the_quota_of_an_owner_are_planned_for_others(policy: str) -> None:
    driver = driver_of()
    driver.join("a", 8)
    first = elastic(driver, slots_max=3)
    second = elastic(driver, slots_max=3)
    third = elastic(driver, slots_max=3, instances_min=2)
    bobs = elastic(driver, owner="bob")
    view = seen(driver)
    decision = make_policy(policy).decide(view.view)
    found = {target.run_id: target.instances.get("cpu", 0) for target in view.targets(decision)}
    assert found[first] == 2 and found[second] == 1, "the older one has what they do not need to start"
    assert found[bobs] == 4, "and others what is beyond the quota"
    reasons = {target.run_id: target.reason for target in view.targets(decision)}
    assert found[third] == 0 and reasons[third] == (
        f"run {third} needs 2 slots, and ann has 1 left of its quota of 3"
    )


def test_a_running_run_grows_within_the_quota_of_its_owner() -> None:
    driver = driver_of()
    driver.join("a", 1)
    first = elastic(driver, slots_max=2)
    decide(driver)
    driver.start_all()
    driver.join("b", 8)
    assert driver.machine.state.runs[first].slots_held == 1
    (counts,) = make_policy("elastic-srtf").decide(seen(driver).view).allocation
    assert counts == (2,)
