"""Curves of logged values: in their frame, on a logarithmic axis, smoothed, with values to point at."""

from __future__ import annotations

import math

import pytest

from elastane_master.dashboard.curve_drawing import (
    CURVE_BOTTOM,
    CURVE_LEFT,
    CURVE_RIGHT,
    CURVE_TOP,
    CurveLine,
    Scale,
    draw_curve,
    draw_sparkline,
    smoothed,
    value_ticks,
)
from elastane_master.jobs.curves import Bucket


def bucket(start: int, mean: float, low: float | None = None, high: float | None = None) -> Bucket:
    least, most = mean if low is None else low, mean if high is None else high
    return Bucket(start, start + 1, 1, mean, least, most, mean)


LINEAR = Scale()


def line(*points: Bucket, scale: Scale = LINEAR) -> CurveLine:
    (found,) = draw_curve("loss", {"": points}, scale).lines
    return found


def places(points: str) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in (pair.split(",") for pair in points.split())]


def test_curves_stand_in_their_frame_and_pass_over_what_is_no_number() -> None:
    inf, nan = float("inf"), float("nan")
    drawn = line(bucket(0, 4.0, 3.0, 9.0), bucket(10, nan), bucket(20, 1e308, -1e308, 1e308), bucket(30, inf))
    first, second = places(drawn.points)
    assert first[0] == CURVE_LEFT and second[0] == CURVE_RIGHT
    assert all(CURVE_TOP <= y <= CURVE_BOTTOM for _, y in (first, second))
    assert len(drawn.band.split()) == 4 and drawn.last == "inf" and drawn.values == "0 4;20 1e+308"
    assert line(bucket(3, 2.0)).dot is not None
    nothing = draw_curve("none", {"": [bucket(0, nan)]})
    assert nothing.labels == () and nothing.lines == (CurveLine("", "nan", "", "", "", None, ""),)
    flat = line(bucket(0, 2.0), bucket(1, 2.0))
    assert [y for _, y in places(flat.points)] == [83.0, 83.0]
    least = line(bucket(0, 0.0), bucket(1, 5e-324))
    assert len(least.points.split()) == 2, "their difference has no half"


def test_a_logarithmic_axis_has_powers_of_ten_and_no_zero() -> None:
    points = [bucket(0, 100.0), bucket(1, 1.0), bucket(2, 0.0), bucket(3, 0.01)]
    picture = draw_curve("loss", {"": points}, Scale(log=True))
    heights = [y for _, y in places(picture.lines[0].points)]
    assert heights == [CURVE_TOP, (CURVE_TOP + CURVE_BOTTOM) / 2, CURVE_BOTTOM]
    assert [label.text for label in picture.labels][:5] == ["0.01", "0.1", "1", "10", "100"]
    assert picture.left_out == "1 points of 0 or less are not on a logarithmic axis"
    assert draw_curve("loss", {"": [bucket(0, -1.0)]}, Scale(log=True)).labels == ()


def test_a_smoothed_curve_keeps_the_raw_one_behind_it() -> None:
    assert [value for _, value in smoothed([(0, 3.0), (7, 3.0)], 0.9)] == pytest.approx([3.0, 3.0])
    assert [value for _, value in smoothed([(0, 0.0), (1, 1.0)], 0.5)] == pytest.approx([0.0, 2 / 3])
    drawn = line(bucket(0, 0.0), bucket(1, 1.0), scale=Scale(weight=0.6))
    assert drawn.raw and drawn.raw != drawn.points and drawn.values == "0 0 0;1 0.625 1"
    assert Scale.of("log", "0.9") == Scale(True, 0.9) and Scale.of("x", "0.5") == Scale()


def test_two_jobs_share_their_axes() -> None:
    picture = draw_curve(
        "loss", {"a": [bucket(0, 4.0), bucket(10, 2.0)], "b": [bucket(5, 3.0), bucket(20, 0.0)]}
    )
    one, other = picture.lines
    assert (one.label, other.label) == ("a", "b") and not one.band
    assert places(one.points)[0] == (CURVE_LEFT, CURVE_TOP)
    assert places(other.points)[1] == (CURVE_RIGHT, CURVE_BOTTOM)


@pytest.mark.parametrize(
    ("low", "high"), [(0.0, 1.0), (-3.2, 7.9), (0.99, 1.01), (1e-9, 5e8), (-1e308, 1e308), (4, 4)]
)
def test_values_have_round_ticks(low: float, high: float) -> None:
    found = value_ticks(low, high)
    assert found == sorted(found) and len(found) <= 6 and all(math.isfinite(one) for one in found)
    assert all(low <= one <= high or math.isclose(one, high) for one in found)
    if low < high:
        assert len(found) >= 2


def test_a_sparkline_fills_its_box() -> None:
    assert (
        draw_sparkline([bucket(0, 4.0), bucket(10, 0.0), bucket(20, 2.0)], 100, 22)
        == "0.0,1.0 50.0,21.0 100.0,11.0"
    )
    assert draw_sparkline([bucket(0, 4.0)], 100, 22) == ""
