"""Plans of other systems, on cases whose answer can be worked out by hand."""

from __future__ import annotations

import time
from math import inf

import pytest

from elastane_planner.baselines import Baseline, baselines
from elastane_planner.cluster import Cluster, Device
from elastane_planner.profile import Profile, UnitProfile


def _profile(count: int, parameter_bytes: int = 0, boundary_bytes: int = 0, **more: int) -> Profile:
    return Profile(
        tuple(
            UnitProfile(
                f"u{index}",
                1.0,
                2.0,
                parameter_bytes=parameter_bytes,
                boundary_bytes=boundary_bytes,
                **more,  # type: ignore[arg-type]
            )
            for index in range(count)
        )
    )


def _all(profile: Profile, count: int, micro_batches: int, bandwidth: float = 1e3) -> dict[str, Baseline]:
    cluster = Cluster.uniform([Device(f"d{index}") for index in range(count)], bandwidth)
    return {found.name: found for found in baselines(profile, cluster, micro_batches, range(count))}


def test_equal_units_without_traffic() -> None:
    found = _all(_profile(4), 4, 8)
    assert list(found) == ["data parallel", "GPipe", "1F1B", "PipeDream", "HetPipe"]
    assert found["data parallel"].step_seconds == 2 * 12.0  # two micro-batches each
    # (M + S - 1) x (f + b); the share in which devices wait is (S - 1) / (S - 1 + M).
    for name in ("GPipe", "1F1B"):
        assert found[name].step_seconds == pytest.approx((8 + 3) * 3.0)
        assert found[name].bubble == pytest.approx(3 / 11)
    assert found["HetPipe"].step_seconds == 24.0 and len(found["HetPipe"].plan.stages) == 1
    assert [stage.replicas for stage in found["PipeDream"].plan.stages] == [4]


def test_gpipe_balances_units_that_differ() -> None:
    units = tuple(UnitProfile(f"u{i}", float(t), float(t)) for i, t in enumerate((5, 1, 1, 1, 2)))
    cluster = Cluster.uniform([Device("a"), Device("b")], 1.0)
    found = {b.name: b for b in baselines(Profile(units), cluster, 2, (1, 0))}
    assert [(s.first_unit, s.end_unit, s.devices) for s in found["GPipe"].plan.stages] == [
        (0, 1, (1,)),
        (1, 5, (0,)),
    ]


def test_pipedream_cuts_where_sums_are_dear() -> None:
    """Sums of weights over a slow link: stages in place of replicas."""
    profile = _profile(4, parameter_bytes=100_000, boundary_bytes=1)
    found = _all(profile, 4, 8)
    assert [stage.replicas for stage in found["PipeDream"].plan.stages] == [1, 1, 1, 1]
    assert found["data parallel"].step_seconds > 10 * found["PipeDream"].step_seconds


def test_hetpipe_keeps_a_micro_batch_in_its_virtual_worker() -> None:
    profile = _profile(2, parameter_bytes=20_000, boundary_bytes=1)
    plan = _all(profile, 4, 8)["HetPipe"].plan
    assert [stage.devices for stage in plan.stages] == [(0, 2), (1, 3)]
    for micro_batch in range(8):
        first, second = (stage.replica_of(micro_batch) for stage in plan.stages)
        assert second == first + 1


def test_fewer_units_than_devices() -> None:
    found = _all(_profile(2), 5, 3)
    assert len(found["GPipe"].plan.stages) == 2
    assert found["HetPipe"].plan.stages[0].replicas == 5


def test_what_cannot_run_says_why() -> None:
    profile = _profile(4, parameter_bytes=100, boundary_bytes=1)
    devices = [Device(f"d{index}", memory_bytes=700) for index in range(4)]
    cluster = Cluster(tuple(devices), ((0.0,) * 4,) * 4)
    found = {b.name: b for b in baselines(profile, cluster, 4, range(4))}
    assert found["data parallel"].step_seconds == inf
    assert "d0 has 700 bytes" in found["data parallel"].problem
    assert found["GPipe"].problem == "a link that it needs is missing"


def test_ties_are_kept_together() -> None:
    units = tuple(UnitProfile(f"u{i}", 1.0, 1.0, tie=1 if i in (0, 2) else 0) for i in range(4))
    cluster = Cluster.uniform([Device(f"d{i}") for i in range(4)], 1.0)
    for found in baselines(Profile(units), cluster, 4, range(4)):
        found.plan.check(4, 4, Profile(units).cuts)


def test_many_units_and_devices_are_quick() -> None:
    profile = _profile(100, parameter_bytes=10, boundary_bytes=10)
    began = time.process_time()
    found = _all(profile, 32, 32)
    assert all(baseline.step_seconds < inf for baseline in found.values())
    assert time.process_time() - began < 20.0
