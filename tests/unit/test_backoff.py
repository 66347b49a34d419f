"""Waiting must not draw from the generators whose numbers the training uses."""

from __future__ import annotations

import random

from elastane.backoff import SECONDS_MAX, backoff_seconds


def test_backoff_leaves_the_scripts_generator_alone() -> None:
    before = random.getstate()
    waits = [backoff_seconds(attempt) for attempt in range(1, 30)]
    assert random.getstate() == before
    assert all(0 < wait <= SECONDS_MAX for wait in waits)
    assert waits[10] > waits[0]
