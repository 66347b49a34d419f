"""Tests that `make test` leaves to `make test-slow` and to `make test-further`.

`make test` shows every promise at least once, with real processes. Slow are further cases of what a case of
`make test` shows already: pairs out of the rest of a matrix, the same fault at other places, one seed more,
and what takes minutes and guards no promise of its own. `.ci/run` runs both.

Further is what shows nothing that another test of those two does not: what stands beside the mark says which
one. `.ci/run` leaves them out, for its time; `make test-further` runs them, and `make test-all` all three.
A test that docs/promises.md names is never further (tests/unit/test_service_promises.py).

Of a test with both marks the second one counts. `-m "slow and not further"` and `-m further` look for them
only in files that have the word (conftest).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

import pytest
from _pytest.mark.structures import ParameterSet

T = TypeVar("T")

#: Of a whole test, or of one case: `pytest.param(value, marks=slow)`.
slow = pytest.mark.slow
further = pytest.mark.further


def slow_except(values: Iterable[T], *quick: T, further: Iterable[T] = ()) -> list[T | ParameterSet]:
    """The values of a `parametrize`, slow but for `quick` and `further`.

    Raises ValueError for one that is not there.
    """
    cases, beyond = list(values), list(further)
    missing = [value for value in (*quick, *beyond) if value not in cases]
    if missing:
        raise ValueError(f"not among the cases: {missing}")
    rare = [pytest.mark.further if value in beyond else slow for value in cases]
    return [
        value if value in quick else pytest.param(value, marks=mark)
        for value, mark in zip(cases, rare, strict=True)
    ]
