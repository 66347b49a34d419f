"""Steps of real pipelines, whose units sleep, take as long as the planner says."""

from __future__ import annotations

import pytest
from pipeline_timeline import CASES, equal, real

from slow import slow

UNIT_SECONDS = 0.02
CHOSEN = (equal(3), *(case for case in CASES if "replicas" in case.title))


@slow
def test_a_step_lasts_as_long_as_simulated() -> None:
    """The bounds are wide, for a busy machine; `python benchmarks/pipeline_timeline.py` has the figures."""
    found = real(CHOSEN, UNIT_SECONDS, 3)
    for case in CHOSEN:
        simulated, measured = case.simulated(UNIT_SECONDS), found[case.title]
        assert min(measured.step_seconds) == pytest.approx(simulated.step_seconds, rel=0.25)
        assert min(measured.bubbles) == pytest.approx(simulated.bubble, abs=0.12)
    assert equal(3).simulated(UNIT_SECONDS).bubble == pytest.approx(2 / (2 + 8))
