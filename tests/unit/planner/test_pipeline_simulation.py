"""The simulated step: by hand, against a second implementation, and its bounds."""

from __future__ import annotations

import random
from math import inf

import pytest
from pipeline_instances import random_instance, random_plan
from plan_oracle import least_step_seconds

from elastane_planner.cluster import Cluster, Device
from elastane_planner.costs import Costs
from elastane_planner.errors import InvalidPlan, InvalidRequest
from elastane_planner.plan import Plan, Stage
from elastane_planner.planner import make_plan
from elastane_planner.profile import Profile, UnitProfile
from elastane_planner.schedule import blocks, gpipe, one_f_one_b
from elastane_planner.simulate import Timeline, least_seconds, step_seconds, timeline


def model(*units: tuple[float, float], boundary: int = 0, parameters: int = 0) -> Profile:
    return Profile(
        tuple(
            UnitProfile(f"u{i}", forward, backward, parameter_bytes=parameters, boundary_bytes=boundary)
            for i, (forward, backward) in enumerate(units)
        )
    )


def devices(*speeds: float, bandwidth: float = 1.0) -> Cluster:
    return Cluster.uniform([Device(f"d{i}", speed) for i, speed in enumerate(speeds)], bandwidth)


CHAIN = Plan((Stage(0, 1, (0,)), Stage(1, 2, (1,))))


def spans(shown: Timeline, device: int) -> list[tuple[str, float, float]]:
    return [(str(s.block), s.start_seconds, s.end_seconds) for s in shown.spans if s.device == device]


@pytest.mark.parametrize(("stages", "micro_batches"), [(1, 4), (2, 1), (2, 8), (4, 3), (4, 16)])
def test_equal_blocks_leave_the_bubble_of_the_formula(stages: int, micro_batches: int) -> None:
    plan = Plan(tuple(Stage(i, i + 1, (i,)) for i in range(stages)))
    shown = timeline(model(*[(1.0, 2.0)] * stages), devices(*[1.0] * stages), plan, micro_batches)
    assert shown.step_seconds == pytest.approx(3 * (stages - 1 + micro_batches))
    assert shown.bubble == pytest.approx((stages - 1) / (stages - 1 + micro_batches))


@pytest.mark.parametrize("memory", ["plain", "checkpoint", "swap"])
def test_every_block_takes_its_overhead_once(memory: str) -> None:
    profile = Profile(model((1, 2), (2, 3), (1, 1)).units, 0.5, 0.25)
    plan = Plan((Stage(0, 2, (0,), memory), Stage(2, 3, (1,))))
    shown = timeline(profile, devices(2, 1), plan, 2)
    again = 3 if memory == "checkpoint" else 0
    seconds = {(s.block.kind, s.block.stage): s.end_seconds - s.start_seconds for s in shown.spans}
    assert seconds == {("F", 0): 3.5 / 2, ("B", 0): (5.25 + again) / 2, ("F", 1): 1.5, ("B", 1): 1.25}
    costs = Costs(profile, devices(2, 1), 2)
    assert step_seconds(costs, plan) == shown.step_seconds >= least_seconds(costs, plan)
    assert costs.load(plan) == 2 * max(3.5 / 2 + 5.25 / 2, 2.75)


def test_a_plan_does_not_cut_where_the_overhead_costs_more_than_it_saves() -> None:
    units = model(*[(1, 2)] * 4, parameters=100).units  # too much to be added up over two replicas
    assert len(make_plan(Profile(units), devices(1, 1), 4).plan.devices) == 2
    assert len(make_plan(Profile(units, 50, 50), devices(1, 1), 4).plan.devices) == 1


def test_frames_take_their_link_one_after_the_other_and_both_ways_at_once() -> None:
    shown = timeline(model((1, 1), (1, 1), boundary=3), devices(1, 1), CHAIN, 2)
    assert spans(shown, 0) == [("0F0", 0, 1), ("0F1", 1, 2), ("0B0", 9, 10), ("0B1", 12, 13)]
    assert spans(shown, 1) == [("1F0", 4, 5), ("1B0", 5, 6), ("1F1", 7, 8), ("1B1", 8, 9)]
    frames = [(str(t.block), t.source, t.target, t.start_seconds, t.end_seconds) for t in shown.transfers]
    assert frames == [
        ("0F0", 0, 1, 1, 4),
        ("0F1", 0, 1, 4, 7),  # waits for its link
        ("1B0", 1, 0, 6, 9),  # while 0F1 is on the way in the other direction
        ("1B1", 1, 0, 9, 12),
    ]


def test_replicas_take_whole_micro_batches_at_their_own_speed() -> None:
    plan = Plan((Stage(0, 1, (0, 1)),))
    shown = timeline(model((1, 2)), devices(1, 0.5), plan, 3)
    assert [end for _, _, end in spans(shown, 0)] == [1, 3, 4, 6]
    assert [end for _, _, end in spans(shown, 1)] == [2, 6]
    assert (
        timeline(model((1, 2)), devices(0.5, 1), plan, 3).step_seconds == 12
    )  # the slow one takes two of three


def test_sums_begin_after_the_last_block_of_their_stage() -> None:
    cluster = devices(1, 1, 1, bandwidth=10)
    plan = Plan((Stage(0, 1, (0, 1)), Stage(1, 2, (2,))))
    shown = timeline(model((1, 1), (1, 1), parameters=10), cluster, plan, 5)
    done = max(s.end_seconds for s in shown.spans if s.device != 2)
    # Three micro-batches on the first replica: (3 + 1) * (2 - 1) / 2 * 10 bytes at 10 a second.
    assert shown.sums[0].end_seconds - shown.sums[0].start_seconds == pytest.approx(2.0)
    assert (shown.sums[0].start_seconds, shown.step_seconds) == (done, done + 2.0)
    assert shown.sums[1].start_seconds == shown.sums[1].end_seconds < done


def test_one_micro_batch_each_is_an_all_reduce() -> None:
    costs = Costs(model((1, 1), parameters=12), devices(1, 1, 1), 3)
    assert costs.sum_seconds(0, 1, (0, 1, 2)) == pytest.approx(2 * (3 - 1) / 3 * 12)


def test_shadows_are_sent_the_sums() -> None:
    profile, cluster = model((1, 1), (1, 1), parameters=10), devices(1, 1, bandwidth=5)
    shadowed = Plan(CHAIN.stages, ((1,), (0,)))
    plain, more = (timeline(profile, cluster, plan, 2).step_seconds for plan in (CHAIN, shadowed))
    assert more == plain + 10 / 5


def test_memory_modes_cost_time() -> None:
    profile = Profile((UnitProfile("u", 1.0, 2.0, activation_bytes=40),))
    cluster = Cluster.uniform([Device("d", host_bandwidth=10.0)], 1.0)

    def seconds(memory: str) -> float:
        return timeline(profile, cluster, Plan((Stage(0, 1, (0,), memory),)), 2).step_seconds  # type: ignore[arg-type]

    assert (seconds("plain"), seconds("checkpoint"), seconds("swap")) == (6.0, 8.0, 16.0)


def test_links_that_are_missing_or_slower_in_one_direction() -> None:
    one_way = Cluster((Device("a"), Device("b")), ((0.0, 2.0), (0.5, 0.0)))
    shown = timeline(model((1, 1), (1, 1), boundary=1), one_way, CHAIN, 1)
    assert [t.end_seconds - t.start_seconds for t in shown.transfers] == [0.5, 2.0]
    cut = Cluster((Device("a"), Device("b")), ((0.0, 2.0), (0.0, 0.0)))
    assert timeline(model((1, 1), (1, 1), boundary=1), cut, CHAIN, 1).step_seconds == inf
    assert timeline(model((1, 1), (1, 1)), cut, CHAIN, 1).step_seconds == 4  # nothing to send


def replayed(shown: Timeline, costs: Costs, plan: Plan) -> float:
    """The step by a second implementation: every device and link again and again, until nothing moves."""
    order = {device: [s.block for s in shown.spans if s.device == device] for device in plan.devices}
    ends: dict[tuple[str, int, int], float] = {}
    arrivals: dict[tuple[str, int, int], float] = {}
    last = len(plan.stages) - 1
    moved = True
    while moved:
        before = (dict(ends), dict(arrivals))
        for device, own in order.items():
            free, links = 0.0, {}
            for kind, stage, micro in own:
                head = kind == "F" and stage == 0
                turn = kind == "B" and stage == last
                known = (
                    ends.get(("F", stage, micro), inf) if turn else arrivals.get((kind, stage, micro), inf)
                )
                begin = max(free, 0.0 if head else known)
                held = plan.stages[stage]
                pair = costs.block_seconds(held.first_unit, held.end_unit, device, held.memory)
                free = ends[kind, stage, micro] = begin + pair[kind == "B"]
                target = stage + (1 if kind == "F" else -1)
                if 0 <= target <= last:
                    peer = plan.stages[target].devices[micro % plan.stages[target].replicas]
                    cut = plan.stages[max(stage, target)].first_unit
                    sent = max(free, links.get(peer, 0.0))
                    links[peer] = arrivals[kind, target, micro] = sent + costs.frame_seconds(
                        cut, device, peer
                    )
        moved = before != (ends, arrivals)
    return max(
        max(end for (_, s, _), end in ends.items() if s == stage)
        + costs.sum_seconds(held.first_unit, held.end_unit, held.devices)
        for stage, held in enumerate(plan.stages)
    )


def test_random_plans_against_a_second_implementation_and_bounds() -> None:
    rng = random.Random(20)
    for _ in range(150):
        instance = random_instance(rng, (1, 7), (1, 8), (1, 12))
        plan, costs = random_plan(rng, instance), Costs(*instance)
        for make in (blocks, gpipe, one_f_one_b):
            shown = timeline(
                instance.profile,
                instance.cluster,
                plan,
                instance.micro_batches,
                make(plan, instance.micro_batches),
            )
            assert shown.step_seconds == pytest.approx(replayed(shown, costs, plan))
            assert shown.step_seconds >= least_seconds(costs, plan) * (1 - 1e-12)
        listed = timeline(instance.profile, instance.cluster, plan, instance.micro_batches)
        assert listed.step_seconds == step_seconds(costs, plan) >= least_step_seconds(costs) * (1 - 1e-12)


def test_no_step_is_longer_than_the_bound() -> None:
    rng = random.Random(21)
    for _ in range(1500):
        instance = random_instance(rng, (1, 12), (1, 12), (1, 30))
        plan, costs = random_plan(rng, instance), Costs(*instance)
        m = min(-(-instance.micro_batches // stage.replicas) for stage in plan.stages)
        bound = (2 + (4 * len(plan.stages) - 4) / m) * costs.load(plan)
        assert step_seconds(costs, plan) <= bound * (1 + 1e-12)


def test_plans_that_are_none_of_this_model() -> None:
    profile, cluster = model((1, 1), (1, 1)), devices(1, 1)
    for plan, message in (
        (Plan(()), "at least one stage"),
        (Plan((Stage(0, 1, (0,)),)), "the model has 2"),
        (Plan((Stage(0, 2, ()),)), "no device"),
        (Plan((Stage(0, 2, (0, 0)),)), "at most one stage"),
        (Plan((Stage(0, 2, (2,)),)), "device 2 of 2"),
        (Plan((Stage(0, 1, (0,)), Stage(0, 2, (1,)))), "1 comes next"),
        (Plan((Stage(0, 2, (0,)),), ((0,),)), "its shadows"),
        (Plan((Stage(0, 2, (0,)),), ((1,), ())), "every stage or for none"),
    ):
        with pytest.raises(InvalidPlan, match=message):
            timeline(profile, cluster, plan, 1)
    with pytest.raises(InvalidRequest):
        timeline(profile, cluster, Plan((Stage(0, 2, (0,)),)), 0)
