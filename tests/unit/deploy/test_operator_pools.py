"""Pools, in miniature: never a device too many, guarantees at once, the same shares after every restart."""

from __future__ import annotations

import random
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from elastane_operator.decisions.pool_grants import with_grants
from elastane_operator.decisions.pool_jobs import PoolPod
from elastane_operator.decisions.pool_spec import (
    COOL_DOWN_SECONDS_MAX,
    DeviceType,
    PoolQueue,
    PoolSpec,
    check_pool,
    read_pool_spec,
)
from elastane_operator.decisions.pool_status import PoolStatus, Share
from elastane_operator.decisions.pools import JOBS_MAX, inputs_digest, look_at_pool, refuse_pool
from elastane_operator.decisions.spec import WEIGHT_MAX, InvalidSpecError
from elastane_scheduler.policies.catalogue import POLICIES
from unit.deploy.pool_worlds import START, World, job, pool, pool_body


def test_a_job_gets_what_is_useful_to_it_and_never_more_than_its_maximum() -> None:
    world = World(pool(a=8))
    world.add(job("one", workers_max=3))
    world.settle()
    assert world.devices("one") == {"a": 3}
    share = world.share("one")
    assert share.planned == share.granted == {"a": 3}
    assert share.predicted_finish == START + timedelta(seconds=1000 * 3 * 0.5)


def test_workers_of_a_job_are_of_one_type_and_stay_on_it() -> None:
    world = World(pool(a=2, b=4))
    world.add(job("one", workers_max=4))
    world.settle()
    assert world.devices("one") == {"b": 4}
    world.change("one", in_ring=True)
    world.look()
    world.spec = pool(a=4, b=1)
    world.settle()
    world.look(60)
    world.settle()
    assert world.devices("one") == {"b": 1}


PROCESSORS = (
    DeviceType("new", 3, {"cpu": "new"}, processor="Intel"),
    DeviceType("old", 2, {"cpu": "old"}, processor="Intel"),
    DeviceType("epyc", 4, {"cpu": "epyc"}, processor="AMD"),
)
MEASURED = {"new": 0.5, "old": 1.0, "epyc": 0.5}


@pytest.mark.parametrize("policy", ["foresight", "maxmin", "elastic-srtf"])
def test_at_d2_processors_of_one_vendor_train_a_job_together_and_at_d1_never(policy: str) -> None:
    for mixes, devices in ((True, {"new": 3, "old": 2}), (False, {"new": 3})):
        world = World(PoolSpec(PROCESSORS, policy=policy))
        world.add(
            job("one", workers_max=5, mixes=mixes, est_seconds_on=MEASURED, unusable=frozenset({"epyc"}))
        )
        for _ in range(5):
            world.settle()
            world.look(60)
        assert world.devices("one") == devices


def test_a_job_at_d2_stays_with_the_vendor_it_began_with_and_within_its_maximum() -> None:
    world = World(PoolSpec(PROCESSORS[:2]))
    world.add(job("one", ests=7, workers_max=4, mixes=True, est_seconds_on=MEASURED))
    world.settle()
    assert sum(world.devices("one").values()) == 4 and len(world.devices("one")) == 2
    world.change("one", in_ring=True)
    world.look()
    world.spec = PoolSpec((DeviceType("new", 0, processor="Intel"), *PROCESSORS[1:]))
    world.settle()
    world.look(60)
    world.settle()
    assert world.devices("one") == {"old": 2}, "epyc would be faster, and its bits are others"


def test_a_gang_of_two_types_is_granted_whole_or_not_at_all() -> None:
    world = World(PoolSpec(PROCESSORS[:2]))
    world.add(job("gang", workers_min=5, workers_max=5, mixes=True, est_seconds_on=MEASURED))
    blocked = [PoolPod("uid-gone", "old")]
    status = look_at_pool(world.spec, world.kept(), list(world.jobs.values()), blocked, START)
    share = status.share_of("uid-gang")
    assert share is not None and (share.planned, share.granted) == ({"new": 3, "old": 2}, {})
    world.settle()
    assert world.devices("gang") == {"new": 3, "old": 2}
    apart = World(PoolSpec(PROCESSORS[:2]))
    apart.add(job("gang", workers_min=5, workers_max=5))
    apart.settle()
    assert apart.devices("gang") == {} and "at most 3 devices of one type" in apart.share("gang").reason


def test_a_template_that_excludes_a_types_nodes_keeps_the_job_away_from_it() -> None:
    world = World(pool(a=2, b=4))
    world.add(job("one", unusable=frozenset({"b"})))
    world.settle()
    assert world.devices("one") == {"a": 2}


def test_a_guarantee_is_given_back_at_once_and_only_as_pods_go() -> None:
    queues = (PoolQueue("sure", guaranteed={"a": 2}), PoolQueue("spare"))
    world = World(pool(a=4, queues=queues))
    world.add(job("borrower", queue="spare"))
    world.settle()
    assert world.devices("borrower") == {"a": 4}
    world.add(job("owner", queue="sure", created=START + timedelta(seconds=1)))
    status = world.look(1)
    assert status.share_of("uid-borrower").granted == {"a": 2}  # type: ignore[union-attr]
    # The pods of the borrower are still there: the owner has nothing before they are gone.
    owner = status.share_of("uid-owner")
    assert owner is not None
    assert (owner.planned, owner.granted) == ({"a": 2}, {})
    world.read_share("borrower")
    world.act("borrower")
    assert world.look().share_of("uid-owner").granted == {}  # type: ignore[union-attr]
    world.leaving.clear()
    assert world.look().share_of("uid-owner").granted == {"a": 2}  # type: ignore[union-attr]


def test_a_guarantee_does_not_wait_for_the_end_of_a_cool_down() -> None:
    queues = (PoolQueue("sure", guaranteed={"a": 2}), PoolQueue("spare"))
    world = World(pool(a=4, queues=queues))
    world.add(job("borrower", queue="spare"))
    world.settle()
    world.change("borrower", workers_max=3)
    world.settle()
    assert world.devices("borrower") == {"a": 3}
    quiet_until = world.kept().quiet_until
    assert quiet_until is not None
    assert quiet_until > world.now
    other = job("other", queue="spare", workers_min=2, created=START + timedelta(seconds=1))
    world.add(other)
    assert world.look(1).share_of("uid-other").planned == {}  # type: ignore[union-attr]
    world.add(job("owner", queue="sure", workers_min=2, created=START + timedelta(seconds=2)))
    assert world.look(1).share_of("uid-owner").planned == {"a": 2}  # type: ignore[union-attr]
    assert world.now < quiet_until


def test_a_grant_that_a_job_may_still_act_upon_is_not_given_to_another() -> None:
    """The job has read a larger share, and acts upon it only after the pool has taken devices away."""
    queues = (PoolQueue("sure", guaranteed={"a": 2}), PoolQueue("spare"))
    world = World(pool(a=4, queues=queues))
    world.add(job("borrower", queue="spare"))
    world.look()
    world.read_share("borrower")
    world.add(job("owner", queue="sure", created=START + timedelta(seconds=1)))
    world.look(1)
    assert world.share("borrower").granted == {"a": 2}
    assert world.share("owner").granted == {}
    world.act("borrower")
    assert world.used("a") == 4
    world.settle()
    assert (world.devices("borrower"), world.devices("owner")) == ({"a": 2}, {"a": 2})


def test_an_operator_that_starts_again_moves_no_job() -> None:
    world = World(pool(a=6, b=2, queues=(PoolQueue("q", guaranteed={"a": 2}),)))
    world.add(job("one"), job("two", queue="q"), job("three", workers_min=2))
    world.settle()
    before = world.status
    for seconds in (0, 1, 5):
        # Jobs advance meanwhile, which is no reason to plan again.
        world.change("one", step=world.jobs["one"].step + 100)
        world.look(seconds)
        assert world.status == before


def test_a_decision_that_was_not_written_is_made_again() -> None:
    world = World(pool(a=6))
    world.add(job("one"), job("two", steps=100, created=START + timedelta(seconds=1)))
    args = (world.spec, world.kept(), list(world.jobs.values()), world.pods(), world.now)
    assert look_at_pool(*args) == look_at_pool(*args)
    # In whatever order the API server lists them.
    assert look_at_pool(*args) == look_at_pool(*args[:2], args[2][::-1], *args[3:])


def test_offers_that_flap_each_second_reshape_a_job_once_in_a_cool_down() -> None:
    world = World(pool(a=4))
    world.add(job("one"))
    world.settle()
    changes = []
    for second in range(60):
        world.spec = pool(a=4 if second % 2 else 2)
        world.look(1)
        for name in world.jobs:
            world.read_share(name)
            world.act(name)
        world.leaving.clear()
        if not changes or changes[-1] != world.devices("one"):
            changes.append(world.devices("one"))
    # Down, up after thirty seconds, and down with the next offer.
    assert len(changes) <= 4, changes
    assert all(each in ({"a": 2}, {"a": 4}) for each in changes)


def test_a_job_that_lost_all_its_devices_does_not_get_them_back_each_second() -> None:
    world = World(pool(a=4))
    world.add(job("one", workers_min=2, workers_max=2), job("two", workers_min=2, workers_max=2))
    world.settle()
    assert world.used("a") == 4
    starts = 0
    for second in range(20):
        world.spec = pool(a=4 if second % 2 else 2)
        before = {name for name in world.jobs if world.devices(name)}
        world.look(1)
        for name in world.jobs:
            world.read_share(name)
            world.act(name)
        world.leaving.clear()
        starts += len({name for name in world.jobs if world.devices(name)} - before)
    assert starts == 0
    world.spec = pool(a=4)
    world.look(60)
    world.settle()
    assert world.used("a") == 4


def test_what_a_job_says_that_it_may_have_is_counted_whatever_the_pools_status_says() -> None:
    spec, share = pool(a=4), Share("ml", "two", "uid-two", planned={"a": 4})
    lost = Share("ml", "one", "uid-one")
    jobs = [job("one", acknowledged={"a": 2}), job("two")]
    assert [each.granted for each in with_grants(spec, jobs, [lost, share], [])] == [{}, {"a": 2}]


def test_jobs_that_wait_get_free_devices_during_the_cool_down() -> None:
    world = World(pool(a=4))
    world.add(job("one"))
    world.settle()
    world.change("one", workers_max=2)
    world.settle()
    world.add(job("two", created=START + timedelta(seconds=1)))
    world.look(1)
    world.settle()
    assert (world.devices("one"), world.devices("two")) == ({"a": 2}, {"a": 2})


def test_a_higher_priority_is_served_first() -> None:
    world = World(pool(a=4))
    world.add(job("late", steps=10**6, priority=5, created=START + timedelta(seconds=1)), job("early"))
    world.settle()
    assert (world.devices("late"), world.devices("early")) == ({"a": 4}, {})
    assert "late" in world.share("early").reason


def test_a_gang_that_is_larger_than_the_pool_waits_and_is_told_why() -> None:
    world = World(pool(a=4))
    world.add(job("gang", ests=16, workers_min=8, workers_max=8), job("one"))
    world.settle()
    assert world.devices("gang") == {}
    assert "workers.min is 8, and the pool has at most 4 devices" in world.share("gang").reason
    assert world.devices("one") == {"a": 4}


def test_a_gang_starts_whole_or_not_at_all() -> None:
    world = World(pool(a=4))
    world.add(job("one"))
    world.settle()
    world.add(job("gang", workers_min=3, workers_max=3, steps=10, created=START + timedelta(seconds=1)))
    world.look(60)
    world.read_share("one")
    world.act("one")
    share = world.share("gang")
    if share.planned:
        while world.leaving:
            granted = world.look().share_of("uid-gang").granted  # type: ignore[union-attr]
            assert granted in ({}, {"a": 3})
            world.leaving.pop()
    world.settle()
    assert world.devices("gang") in ({}, {"a": 3})


def test_pods_that_kueue_has_not_admitted_are_not_planned_with() -> None:
    world = World(pool(a=4))
    world.add(job("one", workers_max=2))
    world.settle()
    world.change("one", workers_max=4)
    gated = [PoolPod("uid-one", "a"), PoolPod("uid-one", "a", gated=True)]
    status = look_at_pool(world.spec, world.kept(), list(world.jobs.values()), gated, START)
    share = status.share_of("uid-one")
    assert share is not None
    assert share.planned == {"a": 2}, "no growth while a pod waits for its admission"
    assert "has 2 a instead of 1 a" in share.reason
    # All admitted: the job grows.
    admitted = [PoolPod("uid-one", "a"), PoolPod("uid-one", "a")]
    later = START + timedelta(seconds=60)
    status = look_at_pool(world.spec, status, list(world.jobs.values()), admitted, later)
    assert status.share_of("uid-one").planned == {"a": 4}  # type: ignore[union-attr]


def test_a_deadline_that_is_missed_is_told_in_seconds() -> None:
    world = World(pool(a=4))
    world.add(job("one", deadline=START + timedelta(seconds=900)))
    world.settle()
    assert "; 100 s after its deadline" in world.share("one").reason


def test_a_pool_that_was_made_anew_takes_no_devices_from_its_jobs() -> None:
    world = World(pool(a=4))
    world.add(job("one"))
    world.settle()
    world.status = {}
    assert world.look().share_of("uid-one").granted == {"a": 4}  # type: ignore[union-attr]


@pytest.mark.parametrize("seed", range(25))
def test_there_is_never_a_pod_too_many(seed: int) -> None:
    """Random jobs, orders of events, lost writes, late actions: sums, gangs, types and reasons hold."""
    rng = random.Random(seed)
    queues = (PoolQueue("sure", 2, {"a": 2}), PoolQueue("spare"))
    vendor = rng.choice(["", "AMD"])
    world = World(pool(a=rng.randint(2, 7), b=rng.randint(1, 6), queues=queues, processor=vendor))
    policies = ("foresight", "maxmin", "elastic-srtf", "las", "fifo")
    world.spec = msgspec.structs.replace(world.spec, policy=rng.choice(policies))
    world.add(job("first", workers_max=2))
    granted_most = 0
    for event in range(200):
        match rng.randrange(10):
            case 0 if len(world.jobs) < 7:
                least = rng.randint(1, 3)
                world.add(_random_job(rng, f"j{event}", least, world))
            case 1 if world.jobs:
                name = rng.choice(list(world.jobs))
                world.change(name, active=not world.jobs[name].active)
            case 2 if world.jobs:
                world.change(rng.choice(list(world.jobs)), est_seconds=0.1, in_ring=True)
            case 3 | 4 if world.jobs:
                world.read_share(rng.choice(list(world.jobs)))
            case 5 | 6 if world.read:
                world.act(rng.choice(list(world.read)))
            case 7:
                world.pod_ends(rng)
            case _:
                _check(world.look(rng.choice([0, 1, 40])), world)
        for kind, quota in zip(world.spec.names, world.spec.quotas, strict=True):
            assert world.used(kind) <= quota, (seed, event)
        granted_most = max(granted_most, world.used("a") + world.used("b"))
    world.settle()
    for name, each in world.jobs.items():
        devices = world.devices(name)
        assert len(devices) <= 1 or (each.mixes and vendor)
        assert not devices or each.workers_min <= sum(devices.values()) <= each.workers_max
    assert granted_most > 0


def _random_job(rng: random.Random, name: str, least: int, world: World) -> Any:
    return job(
        name,
        ests=rng.randint(least, 8),
        workers_min=least,
        workers_max=rng.randint(least, 6),
        queue=rng.choice(["sure", "spare", "other"]),
        priority=rng.choice([0, 0, 1]),
        steps=rng.choice([0, 50, 5000]),
        mixes=rng.random() < 0.5,
        est_seconds_on=rng.choice([{}, {"a": 0.1, "b": 0.3}]),
        est_seconds=rng.choice([None, 0.2]),
        created=world.now,
    )


def _check(status: Any, world: World) -> None:
    for kind, quota in zip(world.spec.names, world.spec.quotas, strict=True):
        assert sum(share.planned.get(kind, 0) for share in status.shares) <= quota
        assert sum(share.granted.get(kind, 0) for share in status.shares) <= quota
    for share in status.shares:
        assert f"ml/{share.name}" in share.reason
        assert " s" in share.reason


BAD: list[tuple[dict[str, Any], str]] = [
    ({"types": []}, "types must name"),
    ({"types": [{"name": "a", "quota": 1}, {"name": "a", "quota": 1}]}, "types: a is named twice"),
    ({"types": [{"name": "a", "quota": -1}]}, "types[a].quota"),
    ({"types": [{"name": "a", "quota": 2**63}]}, "quota"),
    ({"types": [{"name": "a", "quota": "many"}]}, "quota"),
    ({"policy": "best"}, "policy: there is no policy 'best'"),
    ({"coolDownSeconds": -1}, "coolDownSeconds"),
    ({"queues": [{"name": "q", "weight": 0}]}, "queues[q].weight"),
    ({"queues": [{"name": "q", "weight": -3}]}, "queues[q].weight"),
    ({"queues": [{"name": "q", "weight": 2**63}]}, "weight"),
    ({"queues": [{"name": "q", "weight": float("nan")}]}, "weight"),
    ({"queues": [{"name": "q"}, {"name": "q"}]}, "queues: q is named twice"),
    ({"queues": [{"name": "q", "guaranteed": {"c": 1}}]}, "queues[q].guaranteed.c"),
    ({"queues": [{"name": "q", "guaranteed": {"a": -1}}]}, "queues[q].guaranteed.a"),
    (
        {"queues": [{"name": "q", "guaranteed": {"a": 5}}]},
        "guarantee 5 devices of a, and types[a].quota is 4",
    ),
]


@pytest.mark.parametrize(("bad", "said"), BAD, ids=[str(bad) for bad, _ in BAD])
def test_a_bad_pool_is_refused_by_the_name_of_its_field(bad: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidSpecError) as refused:
        read_pool_spec(pool_body(**bad))
    assert said in str(refused.value)
    assert not check_pool(read_pool_spec(pool_body()))


def test_the_definition_has_the_policies_defaults_and_limits_of_the_code() -> None:
    path = Path(__file__).resolve().parents[3] / "deploy" / "kubernetes" / "crd" / "elasticpool.yaml"
    [version] = yaml.safe_load(path.read_text())["spec"]["versions"]
    parts = version["schema"]["openAPIV3Schema"]["properties"]
    fields, queue = parts["spec"]["properties"], parts["spec"]["properties"]["queues"]["items"]["properties"]
    assert set(fields["policy"]["enum"]) == set(POLICIES)
    bare = read_pool_spec({"spec": {"types": [{"name": "a", "quota": 1}]}})
    assert fields["policy"]["default"] == bare.policy
    assert fields["coolDownSeconds"]["default"] == bare.cool_down_seconds
    assert fields["coolDownSeconds"]["maximum"] == COOL_DOWN_SECONDS_MAX
    assert (queue["weight"]["default"], queue["weight"]["maximum"]) == (PoolQueue("q").weight, WEIGHT_MAX)
    status = parts["status"]["properties"]
    camel = {field.encode_name for field in msgspec.structs.fields(PoolStatus)}
    assert set(status) == camel
    shares = {field.encode_name for field in msgspec.structs.fields(Share)}
    assert set(status["shares"]["items"]["properties"]) == shares
    assert status["shares"]["maxItems"] == JOBS_MAX


def test_a_pool_that_became_invalid_leaves_every_share_as_it_was() -> None:
    world = World(pool(a=4))
    world.add(job("one"))
    world.settle()
    before = world.kept()
    after = refuse_pool(before, ["queues guarantee 5"], START, 2)
    assert after.shares == before.shares
    assert after.conditions[0].reason == "InvalidSpec"
    assert after.conditions[0].message == "queues guarantee 5"


def test_progress_is_no_input_of_a_plan_and_a_jobs_size_is() -> None:
    one = job("one")
    same = msgspec.structs.replace(one, step=77, acknowledged={"a": 1})
    spec = pool()
    assert inputs_digest(spec, [one], []) == inputs_digest(spec, [same], [])
    for change in ({"workers_max": 2}, {"priority": 1}, {"active": False}, {"weight": 2}):
        other = msgspec.structs.replace(one, **change)
        assert inputs_digest(spec, [one], []) != inputs_digest(spec, [other], [])
