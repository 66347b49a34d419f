"""Tests that `make test` leaves to `make test-slow`.

`make test` shows every promise at least once, with real processes. Slow are further cases of what a case of
`make test` shows already: pairs out of the rest of a matrix, the same fault at other places, one seed more,
and what takes minutes and guards no promise of its own. `.ci/run` and `make test-all` run both. `-m slow`
looks for them only in files that have the word `slow` (conftest).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

import pytest
from _pytest.mark.structures import ParameterSet

T = TypeVar("T")

#: Of a whole test, or of one case: `pytest.param(value, marks=slow)`.
slow = pytest.mark.slow


def slow_except(values: Iterable[T], *quick: T) -> list[T | ParameterSet]:
    """The values of a `parametrize`, slow but for `quick`; ValueError for one that is not there."""
    cases = list(values)
    missing = [value for value in quick if value not in cases]
    if missing:
        raise ValueError(f"not among the cases: {missing}")
    return [value if value in quick else pytest.param(value, marks=slow) for value in cases]
