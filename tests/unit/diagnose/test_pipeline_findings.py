"""What doctor says of a pipeline's units."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from torch import nn

from elastane.diagnose.findings import CODES, Severity
from elastane.diagnose.pipeline_findings import KIND, findings
from elastane.pipeline.units import Units


def small() -> nn.Module:
    return nn.Linear(4, 4)


def tied() -> list[nn.Module]:
    first, last = nn.Linear(4, 4), nn.Linear(4, 4)
    last.weight = first.weight
    return [first, nn.Linear(4, 4), last]


def tied_twice(*pairs: tuple[int, int]) -> list[nn.Module]:
    layers = [nn.Linear(4, 4) for _ in range(4)]
    for first, last in pairs:
        layers[last].weight = layers[first].weight
    return [*layers]


@pytest.mark.parametrize(
    ("given", "ests", "severity", "said"),
    [
        (lambda: [small], 4, Severity.COSTS, "is one unit"),
        (lambda: [small, small, small], 1, Severity.COSTS, "one logical worker"),
        (lambda: [small, lambda: nn.Linear(4, 400), small], 4, Severity.NOTE, "unit 1 has 7.81 KiB"),
        (tied, 4, Severity.COSTS, "between them: unit 0 and unit 2; the model"),
        (
            lambda: tied_twice((0, 2), (1, 3)),
            4,
            Severity.COSTS,
            "unit 0 and unit 2, unit 1 and unit 3; the model",
        ),
        (lambda: [nn.Linear(4, 4), small, small], 4, Severity.NOTE, "given as modules"),
    ],
)
def test_what_makes_stages_large_or_idle_is_told(
    given: Callable[[], list], ests: int, severity: Severity, said: str
) -> None:
    found = list(findings(Units.build(given(), release=False), ests))
    assert (severity, True) in [(one.severity, said in one.what) for one in found], found
    assert all(one.todo for one in found)


def test_ties_that_leave_a_place_to_cut_are_no_finding() -> None:
    """Two groups, of which none goes from the first unit to the last, nor do they meet."""
    found = findings(Units.build(tied_twice((0, 1), (2, 3)), release=False), 4)
    assert not any("cannot be divided" in one.what for one in found)


def test_of_units_as_they_should_be_nothing_is_said() -> None:
    assert list(findings(Units.build([small, nn.ReLU, small, small], release=False), 4)) == []
    assert CODES[KIND] == "ELA537"
