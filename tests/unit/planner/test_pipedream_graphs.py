"""PipeDream's graphs become chains of units, and long chains short ones."""

from __future__ import annotations

import random

import pytest

from elastane_planner.errors import InvalidProfile
from elastane_planner.pipedream import coalesced, looks_like_graph, read_graph
from elastane_planner.profile import Profile, UnitProfile


def _node(number: int, name: str, forward: float, backward: float, activation: str, parameter: str) -> str:
    return (
        f"node{number} -- {name} -- forward_compute_time={forward}, backward_compute_time={backward}, "
        f"activation_size={activation}, parameter_size={parameter}\n"
    )


RESIDUAL = (
    _node(3, "Conv2d(4, 4, kernel_size=(3, 3))", 2.0, 4.0, "50.0", "10.000")
    + _node(1, "Input0", 900.0, 0.0, "7.0", "0.0")
    + _node(2, "LSTM(4, 4)", 1.0, 1.0, "[20.0; 5.0]", "40.0")
    + _node(4, "Add", 0.0, 0.5, "50.0", "0.0")
    + _node(10, "Linear(4, 2)", 1.0, 2.0, "4.0", "8.0")
    + "\tnode1 -- node2\n\tnode2 -- node3\n\tnode3 -- node4\n\tnode2 -- node4\n\tnode4 -- node10\n"
)


def test_a_graph_becomes_a_chain_and_cuts_carry_all_that_is_used_later() -> None:
    units = read_graph(RESIDUAL).units
    assert [unit.name for unit in units] == ["LSTM node2", "Conv2d node3", "Add node4", "Linear node10"]
    assert [unit.boundary_bytes for unit in units] == [25, 75, 50, 4]  # node2 is used by node4, too
    assert units[0] == UnitProfile("LSTM node2", 0.001, 0.001, 40, 80, 25, 0)
    assert [unit.activation_bytes for unit in units] == [0, 25, 50, 50]  # outputs, where they are used first
    assert sum(unit.forward_seconds for unit in units) == pytest.approx(0.004)  # without loading


def test_the_order_of_lines_does_not_matter() -> None:
    lines = RESIDUAL.splitlines()
    random.Random(1).shuffle(lines)
    assert read_graph("\n".join(lines)) == read_graph(RESIDUAL)


def test_the_optimizer_is_told() -> None:
    assert [unit.optimizer_bytes for unit in read_graph(RESIDUAL, optimizer_factor=0.5).units] == [
        20,
        5,
        0,
        4,
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "1 to 100000 units"),
        ("node1 -- ReLU -- forward_compute_time=1.0", "line 1"),
        (RESIDUAL + RESIDUAL.splitlines()[0], "line 11"),
        (RESIDUAL + "\tnode10 -- node99\n", "node99"),
        (RESIDUAL + "\tnode10 -- node2\n", "circle"),
        (RESIDUAL.replace("backward_compute_time=4.0", "backward_compute_time=nan"), "backward_seconds"),
        (RESIDUAL.replace("forward_compute_time=2.0", "forward_compute_time=-2.0"), "forward_seconds"),
        (RESIDUAL.replace("parameter_size=10.000", "parameter_size=many"), "line 1"),
        (RESIDUAL.replace("parameter_size=10.000", "parameter_size=inf"), "line 1"),
    ],
)
def test_a_bad_graph_is_refused_with_its_place(text: str, said: str) -> None:
    with pytest.raises(InvalidProfile, match=said):
        read_graph(text)


def test_graphs_are_told_from_json() -> None:
    assert looks_like_graph(RESIDUAL) and looks_like_graph("\n\tnode1 -- node2\n")
    assert not looks_like_graph('{"version": 1}') and not looks_like_graph("")


def _chain(*boundaries: int, tie: int = 0) -> Profile:
    return Profile(
        tuple(
            UnitProfile(f"u{i}", 1.0, 2.0, 10, 20, size, 100, 3, tie if i in (1, 3) else 0)
            for i, size in enumerate(boundaries)
        )
    )


def test_coalescing_keeps_the_sums_and_the_last_boundary() -> None:
    profile = _chain(10, 900, 10, 900, 10, 900, 10, 5)
    merged = coalesced(profile, 4)
    assert len(merged.units) == 4
    assert [unit.boundary_bytes for unit in merged.units] == [10, 10, 10, 5]  # the dear cuts went
    for field in (
        "forward_seconds",
        "backward_seconds",
        "parameter_bytes",
        "optimizer_bytes",
        "activation_bytes",
        "buffer_bytes",
    ):
        assert sum(getattr(u, field) for u in merged.units) == sum(getattr(u, field) for u in profile.units)
    assert [unit.name for unit in merged.units] == ["u0 .. u2", "u3 .. u4", "u5 .. u6", "u7"]


def test_few_units_stay_as_they_are() -> None:
    profile = _chain(10, 20, 30)
    assert coalesced(profile, 3) == profile and coalesced(profile, 99) == profile


def test_ties_are_never_cut() -> None:
    merged = coalesced(_chain(1, 1, 1, 1, 1, tie=7), 5)
    assert [unit.name for unit in merged.units] == ["u0", "u1 .. u3", "u4"]


def test_one_unit_is_the_least() -> None:
    assert len(coalesced(_chain(1, 2, 3), 1).units) == 1
    with pytest.raises(InvalidProfile):
        coalesced(_chain(1, 2, 3), 0)
