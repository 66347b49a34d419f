"""What stages need, which memory is chosen for them, and what is said when nothing fits."""

from __future__ import annotations

import itertools
import random

import pytest

from elastane_planner.cluster import Cluster, Device
from elastane_planner.costs import Costs
from elastane_planner.memory import MemoryNeeds, Misfit, Need, counted_in_flight
from elastane_planner.plan import Plan, Stage
from elastane_planner.profile import Profile, UnitProfile
from elastane_planner.schedule import blocks, gpipe, in_flight, one_f_one_b

M = 4


def _units(*parameters: int, activation: int = 100, boundary: int = 10) -> Profile:
    return Profile(
        tuple(
            UnitProfile(
                f"u{index}",
                forward_seconds=1.0,
                backward_seconds=2.0,
                parameter_bytes=size,
                optimizer_bytes=2 * size,
                boundary_bytes=boundary,
                activation_bytes=activation,
            )
            for index, size in enumerate(parameters)
        )
    )


def _needs(profile: Profile, devices: list[Device], micro_batches: int = M) -> MemoryNeeds:
    return MemoryNeeds(Costs(profile, Cluster.uniform(devices, 1e9), micro_batches))


def _devices(count: int, memory_bytes: int | None = None, **more: object) -> list[Device]:
    return [Device(f"d{index}", memory_bytes=memory_bytes, **more) for index in range(count)]  # type: ignore[arg-type]


def test_parts_of_each_replica() -> None:
    needs = _needs(_units(8, 8, 16), _devices(4))
    plan = Plan((Stage(0, 2, (0, 1)), Stage(2, 3, (2,), "checkpoint")), shadows=((3,), ()))
    flying = in_flight((2, 1), M)
    assert needs.by_device(plan) == {
        # Two local gradients; a piece, half of the parameters, to add in, and two of the others' two. Outputs
        # until they are taken, and the gradient of one; three inputs ahead, and the gradient of one.
        0: Need(16, 32, gradients=2 * 16 + 5 * 8, stash=flying[0] * 200, working=(flying[0] + 1) * 10),
        1: Need(16, 32, gradients=2 * 16 + 5 * 8, stash=flying[0] * 200, working=(flying[0] + 1) * 10),
        2: Need(16, 32, gradients=4 * 16 + 16, stash=1 * 10 + 100, working=4 * 10),
        3: Need(16, 32, gradients=16),
    }


def test_a_shadow_adds_to_the_stage_its_device_runs() -> None:
    needs = _needs(_units(8, 16), _devices(2))
    alone = needs.by_device(Plan((Stage(0, 1, (0,)), Stage(1, 2, (1,)))))
    both = needs.by_device(Plan((Stage(0, 1, (0,)), Stage(1, 2, (1,))), shadows=((1,), (0,))))
    assert both[0].total - alone[0].total == 4 * 16
    assert both[1].total - alone[1].total == 4 * 8


def test_swapped_activations_are_in_the_host_but_for_two() -> None:
    needs = _needs(_units(8, 8), _devices(1), micro_batches=9)
    assert needs.replica(1, 2, 9, 5, "swap") == Need(8, 16, 80, 2 * 100, 5 * 100, working=40)
    assert needs.replica(1, 2, 9, 1, "swap").stash == 100


def test_a_stage_keeps_its_input_at_least() -> None:
    units = (
        UnitProfile("a", boundary_bytes=70),
        UnitProfile("b", activation_bytes=20),
        UnitProfile("c", activation_bytes=100),
    )
    needs = _needs(Profile(units), _devices(1))
    assert needs.replica(1, 3, 4, 2).stash == 2 * (70 + 100)
    assert needs.replica(0, 3, 4, 2).stash == 2 * 120
    assert needs.replica(2, 3, 4, 2).stash == 2 * 100


def test_what_units_take_while_they_run_is_beside_the_stash_that_is_there_then() -> None:
    def needed(*units: tuple[int, int]) -> int:
        made = (UnitProfile("u", activation_bytes=kept, workspace_bytes=taken) for kept, taken in units)
        return _needs(Profile(tuple(made)), _devices(1)).replica(0, len(units), 4, 2).working

    assert needed((10, 30)) == 30
    assert needed((10, 30), (10, 5)) == 20  # the first runs when the second's stash is not there, or gone
    assert needed((10, 30), (10, 25)) == 25
    assert needed((10, 30), (40, 0)) == 0


def test_buffers_are_kept_twice_and_by_micro_batch() -> None:
    needs = _needs(Profile((UnitProfile("a", buffer_bytes=10),)), _devices(1))
    assert needs.replica(0, 1, 3, 1).weights == 50 and needs.shadow(0, 1).weights == 20


def test_pieces_from_other_replicas_are_bounded() -> None:
    needs = _needs(_units(100 << 20), _devices(4))
    assert needs.replica(0, 1, 1, 1, replicas=4).gradients == (100 + 1 + 2 * 3) << 20


@pytest.mark.parametrize("replicas", [(1,), (1, 1, 1), (2, 1), (1, 3), (2, 2, 1)])
@pytest.mark.parametrize("micro_batches", [1, 3, 8])
def test_micro_batches_in_flight_are_counted_in_the_order(
    replicas: tuple[int, ...], micro_batches: int
) -> None:
    devices = iter(range(sum(replicas)))
    stages = [
        Stage(index, index + 1, tuple(itertools.islice(devices, r))) for index, r in enumerate(replicas)
    ]
    plan = Plan(tuple(stages))
    listed = blocks(plan, micro_batches)
    assert counted_in_flight(plan, listed) == in_flight(replicas, micro_batches)
    waits = [-(-micro_batches // r) for r in replicas]
    assert counted_in_flight(plan, gpipe(plan, micro_batches)) == tuple(waits)
    if set(replicas) == {1}:
        counted = counted_in_flight(plan, one_f_one_b(plan, micro_batches))
        assert counted == tuple(min(micro_batches, len(stages) - s) for s in range(len(stages)))


def test_without_limits_every_plan_fits() -> None:
    plan = Plan((Stage(0, 2, (0,)),))
    assert _needs(_units(8, 8), _devices(1)).fit(plan) is plan


@pytest.mark.parametrize(
    ("host_bandwidth", "chosen"),
    [
        (0.0, "checkpoint"),  # no swap at all
        (10.0, "checkpoint"),  # 100 bytes take longer than the forward that recomputation costs
        (1000.0, "swap"),  # copies hide behind the computation
    ],
)
def test_the_cheapest_memory_that_fits(host_bandwidth: float, chosen: str) -> None:
    devices = _devices(2, memory_bytes=600, host_bandwidth=host_bandwidth)
    needs = _needs(_units(8, 8), devices)
    found = needs.fit(Plan((Stage(0, 1, (0,)), Stage(1, 2, (1,)))))
    assert isinstance(found, Plan)
    assert [stage.memory for stage in found.stages] == ["plain", "plain"]
    devices = _devices(2, memory_bytes=320, host_bandwidth=host_bandwidth)
    found = _needs(_units(8, 8), devices).fit(Plan((Stage(0, 1, (0,)), Stage(1, 2, (1,)))))
    assert isinstance(found, Plan)
    assert [stage.memory for stage in found.stages] == [chosen, "plain"]


def test_host_memory_is_bounded() -> None:
    roomy, tight = (
        _needs(
            _units(8, 8),
            _devices(2, memory_bytes=320, host_bandwidth=1e9, host_memory_bytes=host),
        ).fit(Plan((Stage(0, 1, (0,)), Stage(1, 2, (1,)))))
        for host in (400, 399)
    )
    assert isinstance(roomy, Plan) and roomy.stages[0].memory == "swap"
    assert isinstance(tight, Plan) and tight.stages[0].memory == "checkpoint"


def test_what_does_not_fit_is_named_with_the_devices_that_would_do() -> None:
    profile = _units(100, 100, 100, 100)
    needs = _needs(profile, _devices(2, memory_bytes=1500))
    misfit = needs.fit(Plan((Stage(0, 2, (0,)), Stage(2, 4, (1,)))))
    assert isinstance(misfit, Misfit)
    # checkpoint: 200 weights, 400 optimizer, 4 x 200 gradients, a piece of 200, nothing received, 200 of one
    # forward; four outputs until they are taken, the gradient of one.
    assert (misfit.stage, misfit.bytes, misfit.memory_bytes) == (0, 1850, 1500)
    error = needs.does_not_fit(misfit)
    assert error.code == "does_not_fit"
    assert error.facts == {
        "stage": "0",
        "bytes": "1850",
        "memory_bytes": "1500",
        "device": "d0",
        "devices": "4",
    }
    assert "units u0 to u1" in str(error) and "4 devices" in error.hint


def test_a_unit_that_no_device_holds_is_named() -> None:
    needs = _needs(_units(10, 1000, 10), _devices(3, memory_bytes=3200))
    misfit = needs.fit(Plan((Stage(0, 1, (0,)), Stage(1, 2, (1,)), Stage(2, 3, (2,)))))
    assert isinstance(misfit, Misfit)
    error = needs.does_not_fit(misfit)
    assert error.facts["devices"] == "none" and error.facts["unit"] == "u1"
    # weights, optimizer, one micro-batch's gradients, a piece, those of three others; the stash of one, and
    # frames of two outputs and two inputs.
    assert error.facts["unit_bytes"] == str(4 * 1000 + (1 + 2 * 3) * 250 + 100 + 4 * 10)


def _fits_on(needs: MemoryNeeds, units: int, count: int, replicas_max: int) -> bool:
    for stages in range(1, min(units, count) + 1):
        for cuts in itertools.combinations(range(1, units), stages - 1):
            bounds = (0, *cuts, units)
            for replicas in itertools.product(range(1, replicas_max + 1), repeat=stages):
                if sum(replicas) != count:
                    continue
                devices = iter(range(count))
                plan = Plan(
                    tuple(
                        Stage(a, b, tuple(itertools.islice(devices, r)))
                        for a, b, r in zip(bounds, bounds[1:], replicas, strict=False)
                    )
                )
                if isinstance(needs.fit(plan), Plan):
                    return True
    return False


@pytest.mark.parametrize("micro_batches", [1, 2, 3, 7])
@pytest.mark.parametrize("seed", range(6))
def test_the_least_number_of_devices_is_that_of_all_plans(seed: int, micro_batches: int) -> None:
    drawn = random.Random(seed)
    profile = Profile(
        tuple(
            UnitProfile(
                f"u{index}",
                parameter_bytes=drawn.randrange(1, 50),
                optimizer_bytes=drawn.randrange(100),
                boundary_bytes=drawn.randrange(50),
                activation_bytes=drawn.randrange(1, 200 if micro_batches < 7 else 300),
            )
            for index in range(drawn.randrange(2, 5 if micro_batches < 7 else 4))
        )
    )
    limit = drawn.randrange(200, 900)
    needs = _needs(profile, _devices(28, memory_bytes=limit), micro_batches)
    found = needs.least_devices(Device("one", memory_bytes=limit))
    units = len(profile.units)
    by_all = next(
        (n for n in range(1, units * micro_batches + 1) if _fits_on(needs, units, n, micro_batches)), None
    )
    assert found == by_all


@pytest.mark.parametrize(("limit", "least"), [(2900, 3), (2899, 4)])
def test_devices_behind_a_stage_keep_micro_batches_in_flight(limit: int, least: int) -> None:
    units = tuple(
        UnitProfile(f"u{index}", parameter_bytes=100, boundary_bytes=100, activation_bytes=size)
        for index, size in enumerate((1, 100, 100))
    )
    needs = _needs(Profile(units), _devices(4, memory_bytes=limit), 12)
    # The middle stage: 100 weights, 12 gradients, a piece, and with one stage behind it five micro-batches,
    # with their outputs, three inputs ahead, and two gradients.
    assert in_flight((1, 1, 1), 12)[1] == 5
    assert needs.least_devices(Device("one", memory_bytes=limit)) == least
    assert [_fits_on(needs, 3, count, 4) for count in (3, 4)] == [least == 3, True]


def test_models_of_many_units_get_a_number_that_would_do() -> None:
    needs = _needs(_units(*[100] * 100), _devices(1, memory_bytes=1100))
    # Groups of four units do not fit such a device; one unit a stage does, with one replica.
    assert needs.least_devices(Device("one", memory_bytes=1100)) == 100
