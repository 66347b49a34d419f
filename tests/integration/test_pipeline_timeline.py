"""Steps of real pipelines, whose units sleep, take as long as the planner says."""

from __future__ import annotations

import pytest
from pipeline_timeline import CASES, equal, real

from slow import slow

UNIT_SECONDS = 0.1
CHOSEN = (equal(3), *(case for case in CASES if "replicas" in case.title))


@slow
def test_a_step_lasts_as_long_as_simulated() -> None:
    """`python benchmarks/pipeline_timeline.py` has the figures, on an idle machine."""
    found = real(CHOSEN, UNIT_SECONDS, 2)
    for case in CHOSEN:
        simulated, measured = case.simulated(case.sleeping(UNIT_SECONDS)), found[case.title]
        least = min(measured.step_seconds)
        assert 0.99 * simulated.step_seconds < least
        assert min(measured.bubbles) >= simulated.bubble - 0.02
        # Of the time that units really slept: it bears a busy machine, and no order but the planner's.
        one_after_the_other = 1 - 1 / case.workers
        assert min(measured.bubbles) < (simulated.bubble + 2 * one_after_the_other) / 3
    assert equal(3).simulated(equal(3).sleeping(1.0)).bubble == pytest.approx(2 / (2 + 8))
