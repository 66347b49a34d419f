"""The moves of local search, by hand; the judge and its budget."""

from __future__ import annotations

import pytest

from elastane_planner.cluster import Cluster, Device
from elastane_planner.costs import Costs
from elastane_planner.memory import MemoryNeeds
from elastane_planner.plan import Plan, Stage
from elastane_planner.profile import Profile, UnitProfile
from elastane_planner.search import LOOKS, Bounds, Judge, climbed, neighbours, swaps


def costs_of(units: int, devices: int, micro_batches: int, bandwidth: float = 1e9) -> Costs:
    profile = Profile(tuple(UnitProfile(f"u{i}", 1.0, 2.0) for i in range(units)))
    cluster = Cluster.uniform([Device(f"d{i}") for i in range(devices)], bandwidth)
    return Costs(profile, cluster, micro_batches)


def plan_of(text: str, units: int) -> Plan:
    """`0:a,b 2:c`: stages that begin at units 0 and 2, on devices 0, 1 and 2."""
    stages = [part.split(":") for part in text.split()]
    ends = [int(begin) for begin, _ in stages[1:]] + [units]
    return Plan(
        tuple(
            Stage(int(begin), end, tuple("abcdef".index(name) for name in names.split(",")))
            for (begin, names), end in zip(stages, ends, strict=True)
        )
    )


def text_of(plan: Plan) -> str:
    return " ".join(
        f"{stage.first_unit}:{','.join('abcdef'[device] for device in stage.devices)}"
        for stage in plan.stages
    )


def moves(
    text: str, *, units: int, devices: int, micro_batches: int = 8, stages: tuple[int, int] = (1, 9)
) -> set[str]:
    costs = costs_of(units, devices, micro_batches)
    bounds = Bounds(*stages, costs.profile.cuts, tuple(range(devices)))
    found = list(neighbours(plan_of(text, units), bounds, costs))
    for plan in found:
        plan.check(units, devices, costs.profile.cuts)
    return {text_of(plan) for plan in found}


def test_boundaries_move_by_one_and_two_and_never_past_another() -> None:
    found = moves("0:a 3:b 5:c", units=6, devices=3, stages=(3, 3))
    assert found == {"0:a 2:b 5:c", "0:a 4:b 5:c", "0:a 1:b 5:c", "0:a 3:b 4:c"}


def test_replicas_move_alone_and_with_a_boundary() -> None:
    found = moves("0:a,b 1:c", units=3, devices=3, stages=(2, 2))
    assert found == {
        "0:a,b 2:c",  # the boundary
        "0:a 1:b,c",  # a replica
        "0:a 1:c",  # one stands by
        "0:a 2:b,c",  # both
    }


def test_devices_that_stand_by_are_taken() -> None:
    assert moves("0:a 1:b", units=2, devices=3, stages=(2, 2)) == {"0:a,c 1:b", "0:a 1:b,c"}


def test_stages_are_merged_and_split() -> None:
    assert moves("0:a 1:b", units=2, devices=2, stages=(1, 2)) == {"0:a,b"}
    assert moves("0:a,b,c", units=3, devices=3, stages=(1, 2)) == {
        "0:a,b", "0:a 1:b,c", "0:a 2:b,c", "0:a,b 1:c", "0:a,b 2:c",
    }  # fmt: skip
    assert moves("0:a", units=2, devices=2, stages=(1, 2)) == {"0:a,b", "0:a 1:b"}


def test_bounds_are_kept() -> None:
    assert moves("0:a 1:b", units=2, devices=2, stages=(2, 2)) == set()
    # Two micro-batches keep at most two replicas busy.
    found = moves("0:a,b 2:c", units=4, devices=4, micro_batches=2, stages=(2, 2))
    assert "0:a,b 2:c,d" in found and not any(text.startswith("0:a,b,d") for text in found)


def test_swaps_leave_out_devices_that_are_alike() -> None:
    plan, bounds = plan_of("0:a,b 2:c", 3), Bounds(1, 3, (1, 2), (0, 1, 2, 3))
    found = {text_of(other) for other in swaps(plan, bounds, (0, 1, 2, 3))}
    assert found == {"0:b,a 2:c", "0:c,b 2:a", "0:a,c 2:b", "0:d,b 2:c", "0:a,d 2:c", "0:a,b 2:d"}
    assert not list(swaps(plan, bounds, (0, 0, 0, 0)))
    # a and b alike: either of them for c, either for d.
    assert {text_of(other) for other in swaps(plan, bounds, (0, 0, 2, 3))} == {
        "0:c,b 2:a",
        "0:d,b 2:c",
        "0:a,b 2:d",
    }


def test_a_climb_ends_where_nothing_gains() -> None:
    costs = costs_of(6, 2, 12)
    judge, bounds = Judge(costs, MemoryNeeds(costs)), Bounds(2, 2, costs.profile.cuts, (0, 1))
    start = judge.judge(plan_of("0:a 1:b", 6))
    assert start is not None
    best = climbed(judge, start, lambda plan: neighbours(plan, bounds, costs))
    assert text_of(best.plan) == "0:a 3:b"
    assert best.step_seconds == pytest.approx(9 * 13)


def test_a_plan_is_simulated_once_and_only_if_it_may_be_better() -> None:
    costs = costs_of(4, 2, 4)
    judge = Judge(costs, MemoryNeeds(costs))
    plan = plan_of("0:a 2:b", 4)
    first = judge.judge(plan)
    assert first is not None and first.step_seconds == pytest.approx(30)
    assert judge.judge(plan) == first and judge.simulations == 1
    assert judge.judge(plan, below=30.0) is None
    assert judge.judge(plan_of("0:a 1:b", 4), below=20.0) is None
    assert judge.simulations == 1


def test_the_budget_counts_simulations_and_bounds() -> None:
    costs = costs_of(30, 2, 1)
    judge = Judge(costs, MemoryNeeds(costs), simulations_max=1)
    assert judge.judge(plan_of("0:a", 30)) is not None
    assert judge.judge(plan_of("0:b", 30)) is None and judge.spent
    judge = Judge(costs, MemoryNeeds(costs), simulations_max=2)
    assert judge.judge(plan_of("0:a", 30)) is not None
    looked = 1
    for cut in range(1, 30):
        judge.judge(plan_of(f"0:a {cut}:b", 30), below=0.0)
        looked += 1
        if judge.ended():
            break
    assert looked <= 2 * LOOKS
    judge.allow(1.0)
    assert not judge.spent


def test_a_first_plan_is_judged_whatever_the_budget() -> None:
    costs = costs_of(2, 1, 1)
    judge = Judge(costs, MemoryNeeds(costs), seconds=lambda: 100.0, seconds_max=1.0)
    assert judge.judge(plan_of("0:a", 2)) is not None
    assert judge.judge(Plan((Stage(0, 2, (0,), "checkpoint"),))) is None
