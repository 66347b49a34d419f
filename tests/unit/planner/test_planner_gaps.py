"""The gaps of the planner over more instances than test_pipeline_planner.py has."""

from __future__ import annotations

import pytest

from slow import further
from unit.planner.test_pipeline_planner import require_near_by_search, require_small_gaps

#: `benchmarks/planner.py` has as many.
pytestmark = further


def test_gap_to_the_best_over_a_thousand_instances() -> None:
    require_small_gaps(1_000)


def test_the_search_alone_over_three_hundred_instances(monkeypatch: pytest.MonkeyPatch) -> None:
    require_near_by_search(300, monkeypatch)
