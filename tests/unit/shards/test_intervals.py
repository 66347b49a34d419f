"""IntervalSet against a set of integers."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastane_shards import intervals as module
from elastane_shards.errors import InvalidRequest, InvariantViolated
from elastane_shards.intervals import IntervalSet

RANGES = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 9)), max_size=60)


@pytest.fixture(autouse=True, params=[2, 512], ids=["tiny blocks", "real blocks"])
def block_boundaries(request: pytest.FixtureRequest) -> None:
    """Both with splits at every few runs and with none; set for the module, whatever hypothesis repeats."""
    before = module._BLOCK_BOUNDARIES
    module._BLOCK_BOUNDARIES = request.param
    request.addfinalizer(lambda: setattr(module, "_BLOCK_BOUNDARIES", before))


@given(RANGES)
def test_equals_a_set_after_every_add(ranges: list[tuple[int, int]]) -> None:
    real, model = IntervalSet(), set[int]()
    for start, length in ranges:
        new = set(range(start, start + length)) - model
        assert real.add(start, start + length) == len(new)
        model |= new
        real.validate()
        assert (real.count, len(real)) == (len(model), len(model))
        assert list(real) == sorted(model)
        assert [x for x in range(72) if x in real] == sorted(model)


@given(RANGES, RANGES)
def test_equals_a_set_after_every_removal(
    ranges: list[tuple[int, int]], removed: list[tuple[int, int]]
) -> None:
    real = IntervalSet((start, start + length) for start, length in ranges)
    model = set(real)
    for start, length in removed:
        gone = set(range(start, start + length)) & model
        assert real.remove(start, start + length) == len(gone)
        model -= gone
        real.validate()
        assert list(real) == sorted(model) and real.count == len(model)
        if model:
            assert real.first() == min(model)


def test_nothing_is_removed_by_a_range_that_is_none() -> None:
    real = IntervalSet([(3, 9)])
    for start, end in ((-1, 4), (5, 4)):
        with pytest.raises(InvalidRequest):
            real.remove(start, end)
    assert list(real.intervals()) == [(3, 9)]
    with pytest.raises(InvalidRequest):
        IntervalSet().first()


@given(RANGES, st.integers(0, 70), st.integers(0, 70))
def test_queries_equal_those_of_a_set(ranges: list[tuple[int, int]], start: int, end: int) -> None:
    real = IntervalSet((first, first + length) for first, length in ranges)
    model = {x for first, length in ranges for x in range(first, first + length)}
    assert [x for a, b in real.intervals(start) for x in range(a, b)] == sorted(
        x for x in model if x >= start
    )
    holes = [x for a, b in real.missing(start, end) for x in range(a, b)]
    assert holes == [x for x in range(start, end) if x not in model]
    assert real.first_missing(start) == next(x for x in range(start, 200) if x not in model)
    assert real.covers(start, end) == all(x in model for x in range(start, end))


@given(RANGES)
def test_gaps_give_the_set_back(ranges: list[tuple[int, int]]) -> None:
    real = IntervalSet((first, first + length) for first, length in ranges)
    again = IntervalSet.from_gaps(real.to_gaps())
    assert again == real
    assert again.runs == len(list(real.intervals()))


def test_runs_are_merged_in_any_order() -> None:
    order = list(range(5000))
    random.Random(1).shuffle(order)
    real = IntervalSet()
    for x in order:
        assert real.add(x, x + 1) == 1
        assert real.add(x, x + 1) == 0
    real.validate()
    assert list(real.intervals()) == [(0, 5000)]


def test_a_run_over_many_blocks_swallows_them() -> None:
    real = IntervalSet((x, x + 1) for x in range(0, 8000, 2))
    assert real.runs == 4000
    assert real.add(3, 7990) == 3994
    real.validate()
    assert list(real.intervals())[:3] == [(0, 1), (2, 7991), (7992, 7993)]


@pytest.mark.parametrize(("start", "end"), [(-1, 3), (5, 4)])
def test_a_malformed_range_is_refused(start: int, end: int) -> None:
    real = IntervalSet([(1, 2)])
    with pytest.raises(InvalidRequest):
        real.add(start, end)
    assert list(real) == [1]


@pytest.mark.parametrize("gaps", [[3], [-1, 2], [0, 0], [1, 2, 0, 3]])
def test_gaps_of_no_set_are_refused(gaps: list[int]) -> None:
    with pytest.raises(InvariantViolated):
        IntervalSet.from_gaps(gaps)
