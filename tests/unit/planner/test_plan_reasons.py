"""What bounds a step, in words; seconds, bytes and names as people read them."""

from __future__ import annotations

from math import inf

import pytest

from elastane_planner.amounts import bytes_text, seconds_text
from elastane_planner.cluster import Cluster, Device
from elastane_planner.costs import Costs
from elastane_planner.plan import Plan, Stage
from elastane_planner.profile import Profile, UnitProfile
from elastane_planner.reasons import Slowest, names_of, slowest


def _slowest(
    plan: Plan,
    *,
    times: tuple[float, ...] = (1.0, 1.0, 1.0),
    parameters: int = 0,
    boundary: int = 0,
    bandwidth: float = 1024.0,
    speed: float = 1.0,
    step_seconds: float = 100.0,
) -> Slowest:
    units = tuple(
        UnitProfile(f"u{i}", time, time, parameter_bytes=parameters, boundary_bytes=boundary)
        for i, time in enumerate(times)
    )
    devices = [Device("d0", speed=speed), *(Device(f"d{i}") for i in range(1, 4))]
    return slowest(Costs(Profile(units), Cluster.uniform(devices, bandwidth), 8), plan, step_seconds)


CUT = Plan((Stage(0, 2, (0,)), Stage(2, 3, (1,))))


def test_a_stage_with_most_to_compute() -> None:
    found = _slowest(CUT)
    assert (found.kind, found.stage, found.seconds) == ("blocks", 0, 32.0)
    told = "stage 0: 8 micro-batches of 4 s, 32% of the step; unit 0 (u0) alone is 50% of it"
    assert found.reason == told


def test_a_unit_that_dominates_is_named() -> None:
    assert "unit 1 (u1) alone is 83% of it" in _slowest(CUT, times=(1.0, 5.0, 1.0)).reason
    assert (
        "; unit 2 (u2) is all it has, so it cannot be divided" in _slowest(CUT, times=(1.0, 1.0, 9.0)).reason
    )


def test_replicas_memory_and_slow_devices_are_said() -> None:
    found = _slowest(Plan((Stage(0, 3, (0, 1), "checkpoint"),)), speed=0.5)
    assert found.seconds == 4 * (6 + 12)
    for words in ("on each of 2 replicas", "50% of the fastest", "recomputation", "4 micro-batches"):
        assert words in found.reason


def test_a_link_and_sums() -> None:
    found = _slowest(CUT, boundary=1024 * 10)
    assert (found.kind, found.stage, found.seconds) == ("link", 1, 80.0)
    assert "stages 0 and 1: 8 frames of 10 KiB each way take 80 s" in found.reason
    found = _slowest(Plan((Stage(0, 3, (0, 1)),), shadows=((2,),)), parameters=1024 * 10)
    assert (found.kind, found.stage) == ("sums", 0)
    assert "30 KiB over 2 replicas and to 1 shadow" in found.reason


def test_a_missing_link() -> None:
    found = _slowest(CUT, boundary=1, bandwidth=0.0, step_seconds=inf)
    assert (
        found.seconds == inf and "no link leads there" in found.reason and "of the step" not in found.reason
    )


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 ms"),
        (2.5e-5, "25 µs"),
        (0.0123, "12.3 ms"),
        (1.234, "1.23 s"),
        (250.4, "250 s"),
        (inf, "never"),
    ],
)
def test_seconds(seconds: float, text: str) -> None:
    assert seconds_text(seconds) == text


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 bytes"),
        (1, "1 byte"),
        (1023, "1023 bytes"),
        (1536, "1.5 KiB"),
        (1023 * 1024, "0.999 MiB"),
        (5 * 2**30, "5 GiB"),
        (3 * 2**40, "3 TiB"),
    ],
)
def test_bytes(size: int, text: str) -> None:
    assert bytes_text(size) == text


def test_names_of_devices() -> None:
    names = ["gpu0", "gpu1", "gpu2", "gpu3", "b", "c9", "c10", "c11"]
    assert names_of(names, [0, 1, 2, 3]) == "gpu0..gpu3"
    assert names_of(names, [0, 2, 3, 4]) == "gpu0, gpu2, gpu3, b"
    assert names_of(names, [5, 6, 7, 0]) == "c9..c11, gpu0"
    assert names_of(["d08", "d09", "d10"], [0, 1, 2]) == "d08..d10"
