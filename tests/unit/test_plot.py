"""Curves in characters."""

from __future__ import annotations

import math

import pytest

from elastane_cli.plot import draw


def dots(lines: list[str]) -> list[tuple[int, int]]:
    """(column, row from the top) of every dot."""
    bits = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
    found = []
    for row, line in enumerate(lines[:-1]):
        for column, char in enumerate(line.partition("│")[2]):
            cell = ord(char) - 0x2800
            found += [(column * 2 + x, row * 4 + y) for x in (0, 1) for y in range(4) if cell & bits[x][y]]
    return sorted(found)


def test_a_falling_line_goes_from_the_upper_left_to_the_lower_right() -> None:
    lines = draw([(0, 10.0), (100, 0.0)], 41, 6)
    assert len(lines) == 6 and all(len(line) <= 41 for line in lines)
    found = dots(lines)
    assert found[0] == (0, 0) and found[-1] == (59, 19)
    assert {column for column, _ in found} == set(range(60))  # no gaps
    assert all(row == pytest.approx(column * 19 / 59, abs=1) for column, row in found)
    assert lines[0].strip().startswith("10│") and lines[4].strip().startswith("0│")
    assert lines[-1].strip().startswith("└0") and lines[-1].endswith("100")


def test_what_is_no_number_is_left_out() -> None:
    assert draw([(0, 1.0), (1, math.nan), (2, math.inf), (3, 2.0)], 40, 5) == draw(
        [(0, 1.0), (3, 2.0)], 40, 5
    )
    assert draw([(0, math.nan)], 40, 5) == []


@pytest.mark.parametrize("points", [[(5, 3.0)], [(0, 1.0), (9, 1.0)], [(0, -1e308), (1, 1e308)]])
def test_a_single_point_a_flat_line_and_the_largest_numbers(points: list[tuple[float, float]]) -> None:
    assert dots(draw(points, 40, 5))


@pytest.mark.parametrize(("columns", "rows"), [(10, 10), (40, 2), (0, 0)])
def test_where_there_is_no_room_nothing_is_drawn(columns: int, rows: int) -> None:
    assert draw([(0, 1.0), (1, 2.0)], columns, rows) == []
