"""Steps of real pipelines, whose units sleep, take as long as the planner says."""

from __future__ import annotations

import pytest
from pipeline_timeline import CASES, equal, real

from slow import slow

UNIT_SECONDS = 0.1
LONGER_MAX = 1.7
"""On a very busy machine, with blocks as long as these; one block at a time would be 2.4 times as long."""
CHOSEN = (equal(3), *(case for case in CASES if "replicas" in case.title))


@slow
def test_a_step_lasts_as_long_as_simulated() -> None:
    """`python benchmarks/pipeline_timeline.py` has the figures, on an idle machine."""
    found = real(CHOSEN, UNIT_SECONDS, 2)
    for case in CHOSEN:
        simulated, measured = case.simulated(UNIT_SECONDS), found[case.title]
        least = min(measured.step_seconds)
        assert 0.99 * simulated.step_seconds < least < LONGER_MAX * simulated.step_seconds
        assert min(measured.bubbles) >= simulated.bubble - 0.02
    assert equal(3).simulated(UNIT_SECONDS).bubble == pytest.approx(2 / (2 + 8))
