"""Waiting must not draw from the generators whose numbers the training uses."""

from __future__ import annotations

import random

from elastane_common.backoff import SECONDS_MAX, backoff_seconds


def test_backoff_leaves_the_scripts_generator_alone() -> None:
    before = random.getstate()
    waits = [backoff_seconds(away) for away in range(30)]
    assert random.getstate() == before
    assert all(0 < wait <= SECONDS_MAX for wait in waits)


def test_whoever_comes_back_is_found_soon_after() -> None:
    """Within a tenth of the absence, however long that was, and the first attempts follow at once."""
    for absence in (0.5, 2.0, 10.0, 60.0):
        away, attempts = 0.0, 0
        while away < absence:
            away += backoff_seconds(away)
            attempts += 1
        assert away <= absence * 1.1 + 0.05
        assert attempts < 100, "a master that is away for long is not asked again and again"
    assert backoff_seconds(0.0) <= 0.05
    assert SECONDS_MAX / 2 <= backoff_seconds(600.0) <= SECONDS_MAX
