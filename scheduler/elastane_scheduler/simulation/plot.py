"""Drawing of a run: completion times of all policies, and the devices of each job over time. Pure.

The SVG is written by hand: the charts need lines, rectangles and text, and nothing else of a plotting
library.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from elastane_scheduler.pool import Counts

_WIDTH, _HEIGHT, _LEFT, _GAP = 760, 260, 56, 48
#: Colours that are told apart by most people (Okabe and Ito).
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000", "#f0e442")
_JOBS_DRAWN = 400
Held = tuple[float, str, Counts]


def draw(times: Mapping[str, Sequence[float]], held: Sequence[Held], shown: str) -> str:
    """Return an SVG: a curve of completion times for each policy, and devices by job of the policy `shown`.

    times: completion seconds by policy. held: (time, job, devices) at each change.
    """
    height = 2 * _HEIGHT + 3 * _GAP
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH + _LEFT + 20} {height}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{_WIDTH + _LEFT + 20}" height="{height}" fill="white"/>',
        *_curves(times, _GAP),
        *_areas(held, shown, 2 * _GAP + _HEIGHT),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _frame(top: int, title: str, right: str, high: str) -> list[str]:
    bottom = top + _HEIGHT
    return [
        f'<text x="{_LEFT}" y="{top - 10}" font-size="14">{escape(title)}</text>',
        f'<path d="M{_LEFT} {top}V{bottom}H{_LEFT + _WIDTH}" fill="none" stroke="#444"/>',
        f'<text x="{_LEFT - 6}" y="{top + 10}" text-anchor="end">{high}</text>',
        f'<text x="{_LEFT - 6}" y="{bottom}" text-anchor="end">0</text>',
        f'<text x="{_LEFT + _WIDTH}" y="{bottom + 16}" text-anchor="end">{right}</text>',
    ]


def _curves(times: Mapping[str, Sequence[float]], top: int) -> list[str]:
    longest = max((max(values) for values in times.values() if values), default=1.0) or 1.0
    parts = _frame(top, "Jobs that are over, by completion time", f"{longest:.0f} s", "100 %")
    for number, (policy, values) in enumerate(times.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        points = [f"{_LEFT},{top + _HEIGHT}"]
        for place, value in enumerate(sorted(values), start=1):
            x = _LEFT + _WIDTH * value / longest
            before, now = ((place - 1) / len(values), place / len(values))
            points += [
                f"{x:.1f},{top + _HEIGHT * (1 - before):.1f}",
                f"{x:.1f},{top + _HEIGHT * (1 - now):.1f}",
            ]
        parts.append(
            f'<polyline points="{" ".join(points)}" fill="none" stroke="{colour}" stroke-width="1.6"/>'
        )
        y = top + _HEIGHT - 14 * (len(times) - number)
        anchor = f'x="{_LEFT + _WIDTH - 8}" y="{y}" text-anchor="end"'
        parts.append(f'<text {anchor} fill="{colour}">{escape(policy)}</text>')
    return parts


def _areas(held: Sequence[Held], shown: str, top: int) -> list[str]:
    end = max((time for time, _, _ in held), default=1.0) or 1.0
    spans = _spans(held)
    most = _most(spans)
    parts = _frame(top, f"Devices by job, {shown}", f"{end:.0f} s", str(most))
    colours: dict[str, str] = {}
    free: list[tuple[int, float]] = []  # (rows from the bottom, busy until)
    for start, stop, job, devices in spans:
        if stop <= start or (len(colours) >= _JOBS_DRAWN and job not in colours):
            continue
        colours.setdefault(job, _COLOURS[len(colours) % len(_COLOURS)])
        for row, height in _rows(free, devices, start, stop):
            x, width = _LEFT + _WIDTH * start / end, max(0.3, _WIDTH * (stop - start) / end)
            y, tall = top + _HEIGHT * (1 - (row + height) / most), _HEIGHT * height / most
            parts.append(
                f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{tall:.1f}" '
                f'fill="{colours[job]}" stroke="white" stroke-width="0.3"><title>{escape(job)}: {devices} '
                "devices</title></rect>"
            )
    return parts


def _spans(held: Sequence[Held]) -> list[tuple[float, float, str, int]]:
    """(start, stop, job, devices), by start."""
    open_spans: dict[str, tuple[float, int]] = {}
    spans = []
    for time, job, counts in sorted(held, key=lambda item: item[0]):
        if job in open_spans:
            start, devices = open_spans.pop(job)
            spans.append((start, time, job, devices))
        if any(counts):
            open_spans[job] = (time, sum(counts))
    return sorted(spans)


def _most(spans: Sequence[tuple[float, float, str, int]]) -> int:
    changes = sorted(
        [(start, devices) for start, _, _, devices in spans]
        + [(stop, -devices) for _, stop, _, devices in spans]
    )
    most = now = 0
    for _, change in changes:
        now += change
        most = max(most, now)
    return max(1, most)


def _rows(free: list[tuple[int, float]], devices: int, start: float, stop: float) -> list[tuple[int, int]]:
    """Take rows that are idle at `start`, from the bottom; returns runs of them as (first row, height)."""
    taken = [place for place, (_, until) in enumerate(free) if until <= start][:devices]
    while len(taken) < devices:
        free.append((len(free), 0.0))
        taken.append(len(free) - 1)
    for place in taken:
        free[place] = (place, stop)
    runs: list[tuple[int, int]] = []
    for place in taken:
        if runs and runs[-1][0] + runs[-1][1] == place:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((place, 1))
    return runs
