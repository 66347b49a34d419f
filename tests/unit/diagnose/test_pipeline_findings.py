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


@pytest.mark.parametrize(
    ("given", "ests", "severity", "said"),
    [
        (lambda: [small], 4, Severity.COSTS, "is one unit"),
        (lambda: [small, small, small], 1, Severity.COSTS, "one logical worker"),
        (lambda: [small, lambda: nn.Linear(4, 400), small], 4, Severity.NOTE, "unit 1 has 7.81 KiB"),
        (tied, 4, Severity.COSTS, "unit 0 and unit 2 share parameters"),
        (lambda: [nn.Linear(4, 4), small, small], 4, Severity.NOTE, "given as modules"),
    ],
)
def test_what_makes_stages_large_or_idle_is_told(
    given: Callable[[], list], ests: int, severity: Severity, said: str
) -> None:
    found = list(findings(Units.build(given(), release=False), ests))
    assert (severity, True) in [(one.severity, said in one.what) for one in found], found
    assert all(one.todo for one in found)


def test_of_units_as_they_should_be_nothing_is_said() -> None:
    assert list(findings(Units.build([small, nn.ReLU, small, small], release=False), 4)) == []
    assert CODES[KIND] == "ELA537"
