"""Device order, dynamic programme, oracle: against brute force."""

from __future__ import annotations

import random

import pytest
from pipeline_instances import random_instance, random_plan, random_profile, servers
from plan_oracle import best_order, best_plan

from elastane_planner.cluster import Cluster, Device
from elastane_planner.costs import Costs
from elastane_planner.device_order import device_order, groups
from elastane_planner.enumeration import plans
from elastane_planner.errors import InvalidRequest
from elastane_planner.partition import Grain, grains, operations, partitions
from elastane_planner.schedule import gpipe, one_f_one_b
from elastane_planner.simulate import step_seconds, timeline


def whole(costs: Costs) -> Grain:
    (look,) = grains(costs, len(costs.cluster.devices), 99)
    return look


def test_least_load_is_that_of_brute_force_for_each_number_of_stages() -> None:
    rng = random.Random(1)
    for _ in range(120):
        instance = random_instance(rng, (1, 5), (1, 7), (1, 16))
        costs, order = Costs(*instance), list(range(len(instance.cluster.devices)))
        rng.shuffle(order)
        least: dict[int, float] = {}
        for plan in plans(costs, order):
            stages = len(plan.stages)
            least[stages] = min(least.get(stages, costs.load(plan)), costs.load(plan))
        found = partitions(costs, order, len(order), whole(costs))
        assert {stages: load for stages, (load, _) in found.items()} == least
        assert all(costs.load(plan) == load and len(plan.stages) == s for s, (load, plan) in found.items())


def test_room_is_kept_to() -> None:
    """No stage of the programme has more than two units where more do not fit; brute force agrees on W."""
    rng = random.Random(2)
    for _ in range(40):
        instance = random_instance(rng, (3, 5), (4, 7))
        costs, order = Costs(*instance), range(len(instance.cluster.devices))
        found = partitions(costs, order, len(order), whole(costs), lambda first, end, _: end - first <= 2)
        small = [p for p in plans(costs, order) if all(s.end_unit - s.first_unit <= 2 for s in p.stages)]
        assert set(found) == {len(plan.stages) for plan in small}
        for stages, (load, _) in found.items():
            assert load == min(costs.load(plan) for plan in small if len(plan.stages) == stages)


def test_large_models_are_coarsened_within_the_bound() -> None:
    costs = Costs(random_profile(random.Random(3), 100), servers(8, 8, 100.0, 20.0), 64)
    looks = grains(costs, 64, 64)
    assert [look.replicas for look in looks] == [(1, 2, 4, 8, 16, 32, 64), (1, 2), (1,)]
    assert [len(look.cuts) for look in looks][-1] == 99
    assert all(
        operations([look], 64, 64) <= 1_000_000 and set(look.cuts) <= set(costs.profile.cuts)
        for look in looks
    )


def test_tightly_connected_devices_stay_together() -> None:
    interleaved = servers(3, 2, 100.0, 1.0, interleaved=True)
    order = device_order(interleaved, range(6))
    assert [{order[i] % 3, order[i + 1] % 3} for i in (0, 2, 4)] == [{order[i] % 3} for i in (0, 2, 4)]


def test_the_order_follows_the_ranks_where_all_links_are_equal() -> None:
    cluster = Cluster.uniform([Device(f"d{i}") for i in range(5)], 7.0)
    assert device_order(cluster, (3, 1, 4, 0, 2)) == (3, 1, 4, 0, 2)
    assert device_order(cluster, (2,)) == (2,)


def test_the_slower_direction_counts_and_missing_links_part() -> None:
    ways = {
        frozenset({u, v}): (9.0, 9.0) if u + v in (2, 4) else (9.0, 0.1) for u in range(4) for v in range(u)
    }
    matrix = tuple(
        tuple(0.0 if u == v else ways[frozenset({u, v})][u < v] for v in range(4)) for u in range(4)
    )
    cluster = Cluster(tuple(Device(f"d{i}") for i in range(4)), matrix)
    order = device_order(cluster, range(4))
    assert {frozenset(order[:2]), frozenset(order[2:])} == {frozenset({0, 2}), frozenset({1, 3})}
    apart = Cluster(cluster.devices, tuple(tuple(float(u % 2 == v % 2) for v in range(4)) for u in range(4)))
    assert device_order(apart, range(4)) == (0, 2, 1, 3)
    assert groups(apart) == [[0, 2], [1, 3]]
    assert groups(cluster) == [[0, 1, 2, 3]]


def test_one_way_links_do_not_connect() -> None:
    assert groups(Cluster((Device("a"), Device("b")), ((0.0, 1.0), (0.0, 0.0)))) == [[0], [1]]


def test_the_best_order_of_blocks_is_no_worse_than_any_known_one() -> None:
    rng, searched = random.Random(4), 0
    while searched < 25:
        instance = random_instance(rng, (2, 4), (3, 5), (2, 3))
        plan, costs = random_plan(rng, instance), Costs(*instance)
        try:
            best, order = best_order(costs, plan, 5_000)
        except InvalidRequest:
            continue
        searched += 1
        shown = timeline(instance.profile, instance.cluster, plan, instance.micro_batches, order)
        assert shown.step_seconds == pytest.approx(best)
        others = [
            timeline(
                instance.profile,
                instance.cluster,
                plan,
                instance.micro_batches,
                make(plan, instance.micro_batches),
            )
            for make in (gpipe, one_f_one_b)
        ]
        assert best <= min(step_seconds(costs, plan), *(other.step_seconds for other in others)) * (1 + 1e-12)


def test_the_oracle_finds_the_best_of_all_plans_and_orders() -> None:
    rng = random.Random(5)
    instance = random_instance(rng, (3, 3), (4, 4), (4, 4))
    costs = Costs(*instance)
    best, plan = best_plan(costs)
    assert best == step_seconds(costs, plan)
    assert all(best <= step_seconds(costs, random_plan(rng, instance)) for _ in range(2_000))
    alone, _ = best_plan(costs, [(0, 1, 2)])
    assert alone == min(step_seconds(costs, plan) for plan in plans(costs, (0, 1, 2))) >= best
