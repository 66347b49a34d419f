"""Profiles and clusters: JSON both ways, where a model may be cut, and figures that cannot be true."""

from __future__ import annotations

import json
import math

import pytest

from elastane_planner.cluster import Cluster, Device
from elastane_planner.errors import InvalidCluster, InvalidPlan, InvalidProfile
from elastane_planner.pipedream import coalesced
from elastane_planner.plan import Plan, Stage
from elastane_planner.profile import Profile, UnitProfile


def tied(*ties: int) -> Profile:
    return Profile(tuple(UnitProfile(f"u{i}", 1.0, tie=tie) for i, tie in enumerate(ties)))


@pytest.mark.parametrize(
    ("ties", "cuts"),
    [
        ((0,), ()),
        ((0, 0, 0), (1, 2)),
        ((1, 1), ()),
        ((1, 0, 1, 0), (3,)),
        ((0, 1, 0, 1, 0, 2, 2, 0), (1, 4, 5, 7)),
        ((1, 2, 1, 2, 0), (4,)),  # two ties that overlap
        ((1, 2, 2, 1), ()),  # one inside the other
        ((3, 3, 4, 4), (2,)),
    ],
)
def test_units_that_share_parameters_share_a_stage(ties: tuple[int, ...], cuts: tuple[int, ...]) -> None:
    assert tied(*ties).cuts == cuts


def test_a_plan_may_not_cut_a_tie() -> None:
    plan = Plan((Stage(0, 1, (0,)), Stage(1, 3, (1,))))
    plan.check(3, 2)
    with pytest.raises(InvalidPlan, match="between units that share parameters"):
        plan.check(3, 2, tied(1, 0, 1).cuts)


def test_json_both_ways() -> None:
    profile = Profile((UnitProfile("a", 0.5, 1.0, 1, 2, 3, 4, 5, 6), UnitProfile("b")))
    cluster = Cluster((Device("x", 2.0, 100, 1e9, 50), Device("y")), ((0.0, 3.0), (4.0, 0.0)))
    assert Profile.from_json(profile.to_json()) == profile
    assert b"overhead" not in profile.to_json(), "older programs read it"
    profile = Profile(profile.units, 0.25, 0.125)
    assert Profile.from_json(profile.to_json()) == profile and coalesced(profile, 1).backward_overhead_seconds
    assert Cluster.from_json(cluster.to_json()) == cluster


@pytest.mark.parametrize("value", ["-1", "1e999"])
@pytest.mark.parametrize("field", ["forward_overhead_seconds", "backward_overhead_seconds"])
def test_overheads_that_cannot_be_true(field: str, value: str) -> None:
    text = f'{{"version": 1, "units": [{{"name": "a"}}], "{field}": {value}}}'
    with pytest.raises(InvalidProfile, match=field if value == "-1" else "not a profile|inf"):
        Profile.from_json(text)


@pytest.mark.parametrize(
    "text", [b"", b"{", b"[]", b'{"version": 1}', b"\xff", b'{"version":1,"units":[{"nme":"a"}]}']
)
def test_text_that_is_no_profile_or_cluster(text: bytes) -> None:
    with pytest.raises(InvalidProfile, match="not a profile"):
        Profile.from_json(text)
    with pytest.raises(InvalidCluster, match="not a cluster"):
        Cluster.from_json(text)


def test_files_of_a_newer_version_are_refused_by_name() -> None:
    newer = json.dumps(
        {"version": 2, "units": [{"name": "a", "colour": "red"}], "devices": [], "bandwidth": []}
    )
    with pytest.raises(InvalidProfile, match="version 2"):
        Profile.from_json(newer)
    with pytest.raises(InvalidCluster, match="version 2"):
        Cluster.from_json(newer)


@pytest.mark.parametrize(
    "field", ["forward_seconds", "backward_seconds", "parameter_bytes", "boundary_bytes", "tie"]
)
@pytest.mark.parametrize("value", [-1, math.nan, math.inf])
def test_figures_of_units_that_cannot_be_true(field: str, value: float) -> None:
    with pytest.raises(InvalidProfile, match="is") as error:
        Profile((UnitProfile("a"), UnitProfile("b", **{field: value})))
    assert error.value.facts == {"unit": "b", "index": "1", "field": field}
    assert (error.value.code, bool(error.value.hint)) == ("invalid_profile", True)


def test_a_profile_without_units() -> None:
    with pytest.raises(InvalidProfile, match="not 0"):
        Profile(())


@pytest.mark.parametrize(
    "device",
    [
        Device("x", speed=0.0), Device("x", speed=-1.0), Device("x", speed=math.nan),
        Device("x", speed=math.inf), Device("x", memory_bytes=0), Device("x", memory_bytes=-5),
        Device("x", host_bandwidth=-1.0), Device("x", host_bandwidth=math.nan),
        Device("x", host_memory_bytes=-1),
    ],
)  # fmt: skip
def test_devices_that_cannot_be(device: Device) -> None:
    with pytest.raises(InvalidCluster, match=r"of x is") as error:
        Cluster((device,), ((0.0,),))
    assert error.value.facts["device"] == "x"


@pytest.mark.parametrize(
    ("bandwidth", "message"),
    [
        (((0.0,), (0.0,)), "2 rows and 2 columns"),
        (((0.0, 1.0),), "2 rows and 2 columns"),
        (((0.0, -1.0), (1.0, 0.0)), "from a to b is -1.0"),
        (((0.0, 1.0), (math.nan, 0.0)), "from b to a is nan"),
        (((0.0, math.inf), (1.0, 0.0)), "from a to b is inf"),
    ],
)
def test_matrices_that_cannot_be(bandwidth: tuple[tuple[float, ...], ...], message: str) -> None:
    with pytest.raises(InvalidCluster, match=message):
        Cluster((Device("a"), Device("b")), bandwidth)


def test_no_devices_and_equal_names() -> None:
    with pytest.raises(InvalidCluster, match="at least one"):
        Cluster((), ())
    with pytest.raises(InvalidCluster, match="two devices are named 'a'"):
        Cluster.uniform([Device("a"), Device("a")], 1.0)


def test_the_diagonal_says_nothing() -> None:
    Cluster((Device("a"), Device("b")), ((math.nan, 1.0), (1.0, -7.0)))
