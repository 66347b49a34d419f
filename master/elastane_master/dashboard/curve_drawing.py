"""Layout of logged values over steps: linear or logarithmic, raw or smoothed, of one job or of two. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from elastane_master.dashboard.drawing import Label
from elastane_master.dashboard.words import number
from elastane_master.jobs.curves import Bucket

CURVE_WIDTH: Final = 520
CURVE_HEIGHT: Final = 180
CURVE_LEFT: Final = 62
CURVE_RIGHT: Final = CURVE_WIDTH - 8
CURVE_BOTTOM: Final = CURVE_HEIGHT - 24
CURVE_TOP: Final = 10
POINTS_DRAWN: Final = 256
"""Of one line: more could not be told apart."""

SMOOTHINGS: Final = ("0.6", "0.9", "0.97")
"""Weights of the mean so far that a page offers."""

_TICKS_MAX: Final = 5


@dataclass(frozen=True, slots=True)
class Scale:
    """How curves are drawn. log: the values' axis is logarithmic. weight: of the mean so far; 0: raw."""

    log: bool = False
    weight: float = 0.0

    @classmethod
    def of(cls, scale: str, smooth: str) -> Scale:
        """Read a page's query; what is not offered counts as not given."""
        return cls(scale == "log", float(smooth) if smooth in SMOOTHINGS else 0.0)


@dataclass(frozen=True, slots=True)
class CurveLine:
    """A line. points, raw, band: in SVG's syntax; points: as smoothed, raw: before that, empty without.

    values: "STEP VALUE RAW" of each point, separated by semicolons, for what points at it.
    """

    label: str
    last: str
    points: str
    raw: str
    band: str
    dot: tuple[float, float] | None
    values: str


@dataclass(frozen=True, slots=True)
class CurvePicture:
    """Shapes of a curve. grid: heights of horizontal lines. left_out: values that are not drawn, in words."""

    name: str
    lines: tuple[CurveLine, ...]
    labels: tuple[Label, ...]
    grid: tuple[float, ...]
    left_out: str


LINEAR: Final = Scale()


def draw_curve(name: str, series: Mapping[str, Sequence[Bucket]], scale: Scale = LINEAR) -> CurvePicture:
    """Lay out the lines of one name on common axes. series: by the label of each.

    A line alone has a band from the least to the greatest value of each bucket.
    """
    kept = {
        label: [one for one in buckets if _drawable(one.mean, scale)] for label, buckets in series.items()
    }
    steps = [one.start for buckets in kept.values() for one in buckets]
    values = [one.mean for buckets in kept.values() for one in buckets]
    bands: dict[str, list[Bucket]] = {}
    if len(series) == 1:
        bands = {
            label: [one for one in buckets if _drawable(one.low, scale) and _drawable(one.high, scale)]
            for label, buckets in kept.items()
        }
        values += [edge for buckets in bands.values() for one in buckets for edge in (one.low, one.high)]
    dropped = sum(
        math.isfinite(one.mean) and not _drawable(one.mean, scale)
        for buckets in series.values()
        for one in buckets
    )
    left_out = f"{dropped} points of 0 or less are not on a logarithmic axis" if dropped else ""
    if not values:
        lines = tuple(
            CurveLine(label, _last(buckets), "", "", "", None, "") for label, buckets in series.items()
        )
        return CurvePicture(name, lines, (), (), left_out)
    frame = _Frame(min(steps), max(steps), min(values), max(values), scale.log)
    drawn = []
    for label, buckets in kept.items():
        raw = [(one.start, one.mean) for one in buckets]
        smooth = smoothed(raw, scale.weight) if scale.weight else raw
        band = bands.get(label, [])
        edges = [(one.start, one.high) for one in band] + [(one.start, one.low) for one in reversed(band)]
        drawn.append(
            CurveLine(
                label,
                _last(series[label]),
                frame.path(smooth) if len(smooth) > 1 else "",
                frame.path(raw) if scale.weight and len(raw) > 1 else "",
                frame.path(edges) if len(band) > 1 else "",
                frame.place(*raw[0]) if len(raw) == 1 else None,
                ";".join(
                    f"{step} {number(value)}" + (f" {number(before)}" if scale.weight else "")
                    for (step, value), (_, before) in zip(smooth, raw, strict=True)
                ),
            )
        )
    marks = value_ticks(frame.low, frame.high, log=scale.log)
    labels = [Label(CURVE_LEFT - 6, frame.up(mark) + 4, number(mark), "end") for mark in marks]
    labels += [
        Label(CURVE_LEFT, CURVE_HEIGHT - 7, f"step {frame.left}"),
        Label(CURVE_RIGHT, CURVE_HEIGHT - 7, f"step {frame.right}", "end"),
    ]
    return CurvePicture(name, tuple(drawn), tuple(labels), tuple(frame.up(mark) for mark in marks), left_out)


def draw_sparkline(buckets: Sequence[Bucket], width: int, height: int) -> str:
    """Return the points of a line without axes, in SVG's syntax; empty with fewer than two finite values."""
    points = [(one.start, one.mean) for one in buckets if math.isfinite(one.mean)]
    if len(points) < 2:
        return ""
    values = [value for _, value in points]
    frame = _Frame(points[0][0], points[-1][0], min(values), max(values), False)
    across, down = width / (CURVE_RIGHT - CURVE_LEFT), (height - 2) / (CURVE_BOTTOM - CURVE_TOP)
    places = (frame.place(*point) for point in points)
    return " ".join(f"{(x - CURVE_LEFT) * across:.1f},{1 + (y - CURVE_TOP) * down:.1f}" for x, y in places)


def smoothed(points: Sequence[tuple[int, float]], weight: float) -> list[tuple[int, float]]:
    """Return the exponential moving mean at each point, corrected for its start (as Adam does).

    weight: of the mean so far, in [0, 1).
    """
    mean, share, found = 0.0, 0.0, []
    for step, value in points:
        mean = weight * mean + (1 - weight) * value
        share = weight * share + (1 - weight)
        found.append((step, mean / share))
    return found


def value_ticks(low: float, high: float, *, log: bool = False) -> list[float]:
    """Return round values within [low, high], a few; both ends where nothing round lies between them."""
    if log:
        powers = range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1)
        every = max(1, math.ceil(len(powers) / _TICKS_MAX))
        marks = [10.0**power for power in powers[::every]]
        return marks if len(marks) > 1 else [low, high]
    span = high / 2 - low / 2  # halved: the difference of two large numbers may overflow
    if not 1e-300 < span < 1e300:
        return sorted({low, high})
    digit = 10.0 ** math.floor(math.log10(2 * span / (_TICKS_MAX - 1)))
    step = next(digit * times for times in (1, 2, 5, 10) if 2 * span / (digit * times) <= _TICKS_MAX - 1)
    marks = [count * step for count in range(math.ceil(low / step), math.floor(high / step) + 1)]
    return marks if len(marks) > 1 else [low, high]


@dataclass(frozen=True, slots=True)
class _Frame:
    """Where steps and values are in the picture. left, right: steps; low, high: values."""

    left: int
    right: int
    low: float
    high: float
    log: bool

    def place(self, step: int, value: float) -> tuple[float, float]:
        across = (step - self.left) / (self.right - self.left) if self.right > self.left else 0.5
        return round(CURVE_LEFT + across * (CURVE_RIGHT - CURVE_LEFT), 1), self.up(value)

    def up(self, value: float) -> float:
        low, high = self.low, self.high
        if self.log:
            value, low, high = math.log10(value), math.log10(low), math.log10(high)
        span = high / 2 - low / 2  # may be 0 for two adjacent denormal numbers
        share = (value / 2 - low / 2) / span if span > 0 else 0.5
        return round(CURVE_TOP + (1 - share) * (CURVE_BOTTOM - CURVE_TOP), 1)

    def path(self, points: Sequence[tuple[int, float]]) -> str:
        return " ".join(f"{x},{y}" for x, y in (self.place(*point) for point in points))


def _drawable(value: float, scale: Scale) -> bool:
    return math.isfinite(value) and (value > 0 or not scale.log)


def _last(buckets: Sequence[Bucket]) -> str:
    return number(buckets[-1].last) if buckets else "none"
