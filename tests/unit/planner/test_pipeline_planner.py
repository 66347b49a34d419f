"""make_plan: gaps to the oracle, the same answer everywhere, bad input, memory, the plan that runs."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from pipeline_instances import Instance, random_instance, random_profile, servers
from plan_oracle import best_plan

from elastane_planner import planner
from elastane_planner.cluster import Cluster, Device
from elastane_planner.costs import Costs
from elastane_planner.errors import Disconnected, DoesNotFit, InvalidRequest, TooFewStages
from elastane_planner.memory import MemoryNeeds
from elastane_planner.plan import Plan, Stage
from elastane_planner.planner import Answer, make_plan
from elastane_planner.profile import Profile, UnitProfile
from elastane_planner.simulate import step_seconds
from slow import slow


def units(*times: float, **figures: int) -> Profile:
    return Profile(tuple(UnitProfile(f"u{i}", time, 2 * time, **figures) for i, time in enumerate(times)))


def uniform(count: int, bandwidth: float = 1e9, **figures: int) -> Cluster:
    return Cluster.uniform([Device(f"d{i}", **figures) for i in range(count)], bandwidth)


def gaps(seed: int, instances: int, devices: tuple[int, int]) -> list[tuple[float, Answer]]:
    rng, found = random.Random(seed), []
    for _ in range(instances):
        instance = random_instance(rng, devices)
        answer = make_plan(*instance)
        best, _ = best_plan(Costs(*instance))
        found.append((answer.step_seconds / best - 1, answer))
    return found


def test_gap_to_the_best_of_all_plans_and_orders() -> None:
    require_small_gaps(40)


def require_small_gaps(instances: int) -> None:
    """Also called by test_planner_gaps.py, with more instances."""
    found = [gap for gap, _ in gaps(1, instances, (3, 4))]
    assert min(found) > -1e-9
    assert max(found) <= 0.01
    assert sum(found) / instances <= 0.001


def test_the_search_alone_comes_near_it(monkeypatch: pytest.MonkeyPatch) -> None:
    require_near_by_search(25, monkeypatch)


def require_near_by_search(instances: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without looking at all plans at the end. Each stage is no worse than the one before."""
    monkeypatch.setattr(planner, "EXHAUSTED_MAX", 0)
    found = gaps(2, instances, (3, 4))
    for _, answer in found:
        steps = [gain.step_seconds for gain in answer.gains]
        assert steps == sorted(steps, reverse=True)
        assert answer.gains[-1].search == "pairs of moves"
    assert sum(gap for gap, _ in found) / instances <= 0.001
    assert max(gap for gap, _ in found) <= 0.05


@slow
def test_gap_with_five_devices() -> None:
    found = [gap for gap, _ in gaps(3, 20, (5, 5))]
    assert sum(found) / len(found) <= 0.001 and max(found) <= 0.01


def test_local_search_and_swaps_gain_where_least_load_is_not_least_time() -> None:
    rng, gained = random.Random(4), set()
    for _ in range(12):
        answer = make_plan(*random_instance(rng, (6, 7), (9, 12)), simulations_max=300)
        for before, after in zip(answer.gains, answer.gains[1:], strict=False):
            if after.step_seconds < before.step_seconds:
                gained.add(after.search)
        assert answer.gains[-1].simulations <= 300
    assert gained >= {"local search", "device swaps"}


def permuted(instance: Instance, order: list[int]) -> Instance:
    devices, bandwidth = instance.cluster.devices, instance.cluster.bandwidth
    matrix = tuple(tuple(bandwidth[u][v] for v in order) for u in order)
    return instance._replace(cluster=Cluster(tuple(devices[i] for i in order), matrix))


def test_the_plan_is_the_same_for_any_order_of_devices() -> None:
    rng = random.Random(5)
    for _ in range(15):
        instance = random_instance(rng, (3, 6), (4, 8))
        texts = set()
        for _ in range(3):
            order = list(range(len(instance.cluster.devices)))
            rng.shuffle(order)
            given = permuted(instance, order)
            answer = make_plan(*given, shadows=1, simulations_max=200)
            texts.add(
                (answer.plan.text([device.name for device in given.cluster.devices]), answer.step_seconds)
            )
        assert len(texts) == 1


PRINTS_PLANS = """
import random
from pipeline_instances import random_instance
from elastane_planner.planner import make_plan
rng = random.Random(6)
for _ in range(4):
    print(make_plan(*random_instance(rng, (4, 6)), simulations_max=150))
"""


def test_the_plan_is_the_same_in_every_process() -> None:
    path = os.pathsep.join(str(Path(name).resolve()) for name in sys.path if name)
    said = {
        subprocess.run(
            [sys.executable, "-c", PRINTS_PLANS],
            env={"PYTHONPATH": path, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(said) == 1 and said != {b""}


def test_plain_data_parallel_is_a_plan_like_any_other() -> None:
    answer = make_plan(units(1, 1, 1, 1, parameter_bytes=1, boundary_bytes=10**9), uniform(4), 8)
    assert answer.plan.text() == "units 0-3 on 0, 1, 2, 3"
    assert answer.step_seconds == pytest.approx(24)


def test_heavy_parameters_make_a_pipeline() -> None:
    answer = make_plan(units(1, 1, 1, 1, parameter_bytes=10**12), uniform(4), 8)
    assert [stage.replicas for stage in answer.plan.stages] == [1, 1, 1, 1]
    assert answer.step_seconds == pytest.approx(3 * (8 + 3))


@pytest.mark.parametrize("micro_batches", [1, 2, 3, 5, 7])
def test_few_or_odd_micro_batches(micro_batches: int) -> None:
    """M < S, M = 1, r that does not divide M: still the best of all plans."""
    instance = Instance(random_profile(random.Random(7), 5), uniform(4, 50.0), micro_batches)
    answer = make_plan(*instance)
    assert answer.step_seconds == pytest.approx(best_plan(Costs(*instance))[0])
    assert all(stage.replicas <= micro_batches for stage in answer.plan.stages)
    asked = make_plan(*instance, stages=(4, 4))
    assert len(asked.plan.stages) == 4


def test_one_unit_and_one_device() -> None:
    assert make_plan(units(1), uniform(3), 6).plan.text() == "units 0 on 0, 1, 2"
    assert make_plan(units(1, 2), uniform(1), 6).plan.text() == "units 0-1 on 0"


def test_ties_are_never_cut() -> None:
    tied = Profile(
        tuple(UnitProfile(f"u{i}", 1.0, 2.0, parameter_bytes=10**12, tie=i in (1, 3)) for i in range(6))
    )
    answer = make_plan(tied, uniform(4), 8)
    assert {stage.first_unit for stage in answer.plan.stages} <= {0, 1, 4, 5}
    assert len(answer.plan.stages) > 1


def test_units_without_times() -> None:
    answer = make_plan(units(0, 0, 0, 0), uniform(2), 4, stages=(2, 2))
    assert answer.plan.text() == "units 0-1 on 0 | 2-3 on 1"
    assert answer.step_seconds == 0.0
    assert "no time of a unit is known" in answer.notes[0]


def test_links_that_are_missing_are_not_used() -> None:
    line = tuple(tuple(100.0 if abs(u - v) == 1 else 0.0 for v in range(4)) for u in range(4))
    cluster = Cluster(tuple(Device(f"d{i}") for i in range(4)), line)
    answer = make_plan(units(1, 1, 1, 1, parameter_bytes=10, boundary_bytes=1), cluster, 4, stages=(3, None))
    assert answer.step_seconds < 100
    assert all(abs(frame.source - frame.target) == 1 for frame in answer.timeline.transfers)


def test_slow_devices_get_less_or_nothing() -> None:
    cluster = Cluster.uniform([Device("fast", 100.0), Device("slow", 0.01)], 1.0)
    assert make_plan(units(1, 1), cluster, 4).plan.text(["fast", "slow"]) == "units 0-1 on fast"


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"micro_batches": 0}, InvalidRequest, "micro_batches is 0"),
        ({"stages": (0, 2)}, InvalidRequest, "least number of stages is 0"),
        ({"stages": (2, 1)}, InvalidRequest, "most stages is 1"),
        ({"stages": (4, None)}, TooFewStages, "make 3 at most"),
        ({"stages": (3, None), "barred": {0}}, TooFewStages, "make 2 at most"),
        ({"shadows": -1}, InvalidRequest, "shadows is -1"),
        ({"horizon_steps": 0}, InvalidRequest, "horizon_steps is 0"),
        ({"barred": {0, 1, 2}}, InvalidRequest, "every device is barred"),
    ],
)
def test_requests_that_cannot_be_met(
    arguments: dict[str, object], error: type[Exception], message: str
) -> None:
    given: dict[str, object] = {"micro_batches": 4, **arguments}
    with pytest.raises(error, match=message):
        make_plan(units(1, 1, 1, 1), uniform(3), **given)  # type: ignore[arg-type]


def test_disconnected_devices_are_named() -> None:
    matrix = tuple(tuple(1.0 if u // 2 == v // 2 else 0.0 for v in range(4)) for u in range(4))
    with pytest.raises(Disconnected) as error:
        make_plan(units(1, 1), Cluster(tuple(Device(f"d{i}") for i in range(4)), matrix), 4)
    assert error.value.facts["groups"] == "d0, d1 | d2, d3"
    with pytest.raises(Disconnected):
        make_plan(units(1, 1), uniform(2, 0.0), 4)


def fitting(answer: Answer, cluster: Cluster) -> bool:
    limits = [device.memory_bytes or 0 for device in cluster.devices]
    return all(need.total <= limits[device] for device, need in answer.memory.items())


def test_a_model_larger_than_a_device_is_divided() -> None:
    cluster = uniform(4, memory_bytes=800)
    profile = units(1, 1, 1, 1, parameter_bytes=100, optimizer_bytes=100, activation_bytes=10)
    answer = make_plan(profile, cluster, 4)
    assert fitting(answer, cluster)
    # Four micro-batches keep four gradients: a unit needs 100 + 100 + 400 where one replica runs all, and a
    # piece of 100 to add them in.
    assert len(answer.plan.stages) > 1
    assert answer.step_seconds > make_plan(profile, uniform(4), 4).step_seconds


@pytest.mark.parametrize("shadows", [0, 1])
def test_equal_devices_are_named_in_order(shadows: int) -> None:
    profile = units(3, 1, 2, 4, 1, 3, parameter_bytes=10**6, boundary_bytes=1)
    answer = make_plan(profile, uniform(5), 8, stages=(4, None), shadows=shadows)
    assert list(answer.plan.devices) == sorted(answer.plan.devices)
    assert answer.step_seconds == answer.timeline.step_seconds


def test_memory_makes_a_stage_recompute() -> None:
    cluster = uniform(2, memory_bytes=150)
    profile = units(1, 1, activation_bytes=100, boundary_bytes=1)
    answer = make_plan(profile, cluster, 8, stages=(2, 2))
    assert [stage.memory for stage in answer.plan.stages] == ["checkpoint", "plain"]
    assert fitting(answer, cluster)


def test_what_does_not_fit_is_said_with_the_least_number_of_devices() -> None:
    profile = units(1, 1, 1, 1, parameter_bytes=100)
    with pytest.raises(DoesNotFit) as error:
        make_plan(profile, uniform(2, memory_bytes=510), 4)
    assert int(error.value.facts["bytes"]) > 510
    least = int(error.value.facts["devices"])
    assert least > 2
    assert make_plan(profile, uniform(least, memory_bytes=510), 4).plan
    with pytest.raises(DoesNotFit) as error:
        make_plan(profile, uniform(4, memory_bytes=50), 4)
    assert error.value.facts["devices"] == "none"


def test_memory_is_kept_to_in_random_instances() -> None:
    rng, planned = random.Random(8), 0
    for _ in range(25):
        instance = random_instance(rng, (3, 4), (4, 6), (2, 6))
        most = sum(unit.parameter_bytes for unit in instance.profile.units)
        devices = tuple(
            msgspec.structs.replace(d, memory_bytes=200 + most * 3) for d in instance.cluster.devices
        )
        limited = instance._replace(cluster=Cluster(devices, instance.cluster.bandwidth))
        costs = Costs(*limited)
        try:
            answer = make_plan(*limited)
        except DoesNotFit:
            with pytest.raises(InvalidRequest, match="no plan fits"):
                best_plan(costs, None, MemoryNeeds(costs))
            continue
        planned += 1
        assert fitting(answer, limited.cluster)
        assert answer.step_seconds == pytest.approx(best_plan(costs, None, MemoryNeeds(costs))[0])
    assert planned >= 10


def test_shadows_go_to_stages_without_a_copy() -> None:
    profile = units(1, 1, 1, 1, parameter_bytes=10**6)
    answer = make_plan(profile, uniform(3), 3, stages=(2, None), shadows=1)
    for index, stage in enumerate(answer.plan.stages):
        held = {*stage.devices, *answer.plan.shadows_of(index)}
        assert len(held) == max(2, stage.replicas)
    alone = make_plan(profile, uniform(1), 3, shadows=1)
    assert alone.plan.shadows == ()
    assert any("no device is left to shadow stage 0" in note for note in alone.notes)


def test_barred_devices_hold_nothing() -> None:
    answer = make_plan(units(1, 1, 1, 1), uniform(3), 6, barred={0}, shadows=1)
    assert set(answer.memory) == {1, 2}


def cut_at(unit: int) -> Plan:
    return Plan((Stage(0, unit, (0,)), Stage(unit, 3, (1,))))


def test_a_small_gain_does_not_move_weights() -> None:
    def planned(middle: float, bandwidth: float = 1e9, **arguments: object) -> Answer:
        profile = units(1.0, middle, 1.0, parameter_bytes=10**6)
        return make_plan(profile, uniform(2, bandwidth), 8, stages=(2, 2), **arguments)  # type: ignore[arg-type]

    assert planned(0.02).plan == planned(0.05).plan == cut_at(2)
    kept = planned(0.02, keep=cut_at(1))
    assert kept.plan == cut_at(1)
    assert any("1.5% less over 1000 steps is not above 2%" in note for note in kept.notes)
    moved = planned(0.05, keep=cut_at(1))
    assert moved.plan == cut_at(2)
    assert any("3.7% less over 1000 steps" in note for note in moved.notes)
    # A step saves 1 s. To move a unit takes 10 s.
    assert planned(0.05, 1e5, keep=cut_at(1), horizon_steps=5).plan == cut_at(1)
    assert planned(0.05, 1e5, keep=cut_at(1), horizon_steps=500).plan == cut_at(2)
    assert any("is the best" in note for note in planned(0.02, keep=cut_at(2)).notes)


def test_what_moves_decides_between_plans_that_are_equally_fast() -> None:
    profile = units(1, 1, parameter_bytes=10**9)
    mirrored = Plan((Stage(0, 1, (1,)), Stage(1, 2, (0,))))
    answer = make_plan(profile, uniform(2), 4, stages=(2, 2), held={0: {1}, 1: {0}})
    assert answer.plan == mirrored


def test_a_plan_that_cannot_go_on_is_replaced() -> None:
    gone = Plan((Stage(0, 1, (0,)), Stage(1, 2, (5,))))
    answer = make_plan(units(1, 1), uniform(2), 4, keep=gone)
    answer.plan.check(2, 2)
    assert any("no longer fits" in note for note in answer.notes)


def test_the_budget_of_time_ends_the_search() -> None:
    now = iter(range(10**9))
    instance = Instance(random_profile(random.Random(9), 16), servers(2, 4, 100.0, 20.0), 8)
    short = make_plan(*instance, seconds=lambda: float(next(now)), budget_seconds=200.0)
    assert any("the budget ended the search" in note for note in short.notes)
    assert next(now) < 2_000
    long = make_plan(*instance)
    assert long.step_seconds <= short.step_seconds


@pytest.mark.parametrize("simulations_max", [0, 1, 5])
def test_hardly_any_simulations(simulations_max: int) -> None:
    instance = Instance(random_profile(random.Random(9), 8), uniform(4), 8)
    answer = make_plan(*instance, simulations_max=simulations_max)
    assert answer.step_seconds == pytest.approx(step_seconds(Costs(*instance), answer.plan))


@slow
def test_a_hundred_units_on_sixty_four_devices() -> None:
    instance = Instance(random_profile(random.Random(10), 100), servers(8, 8, 100.0, 20.0), 64)
    answer = make_plan(*instance, simulations_max=150)
    assert sum("coarsened" in note for note in answer.notes) >= 2
    assert answer.gains[1].step_seconds < answer.gains[0].step_seconds
