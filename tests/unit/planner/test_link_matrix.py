"""Bandwidth of links that were measured, and what is assumed of the others."""

from __future__ import annotations

import math

import pytest

from elastane_planner.cluster import Cluster, Device
from elastane_planner.links import UNKNOWN_BYTES_PER_SECOND, bandwidth_matrix


def test_a_link_that_was_not_measured_is_like_its_other_direction_or_the_median_of_its_kind() -> None:
    hosts = ("a", "a", "b", "c")
    known = {("a", "a"): 9e9, ("a", "b"): 1e9, ("b", "c"): 3e9}
    found = bandwidth_matrix(hosts, known)
    assert found[0][1] == 9e9 and found[2][2] == 9e9, "within a host"
    assert found[0][2] == found[2][0] == 1e9, "both directions"
    assert found[0][3] == 2e9, "the median of links between hosts"


def test_where_nothing_like_it_was_measured_ten_gigabit_are_assumed() -> None:
    found = bandwidth_matrix(("a", "a", "b"), {("a", "a"): 9e9})
    assert found[0][2] == UNKNOWN_BYTES_PER_SECOND and found[0][1] == 9e9
    assert set(sum(bandwidth_matrix(("a", "b"), {}), ())) == {UNKNOWN_BYTES_PER_SECOND}


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf, 1e300, 1e-9])
def test_what_cannot_be_true_counts_as_not_measured(value: float) -> None:
    found = bandwidth_matrix(("a", "b", "c"), {("a", "b"): value, ("b", "c"): 2e9})
    assert found[0][1] == 2e9
    Cluster(tuple(Device(name) for name in "abc"), found)


def test_links_that_are_nearly_alike_are_alike_in_plans() -> None:
    known = {("a", "b"): 1.00e9, ("b", "a"): 1.08e9, ("a", "c"): 2.1e9}
    found = bandwidth_matrix(("a", "b", "c"), known, exact=False)
    assert found[0][1] == found[1][0] != found[0][2]
    assert found[0][1] == pytest.approx(1e9, rel=0.13)
