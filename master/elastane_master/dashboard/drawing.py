"""Layout of timelines and steps of pipelines: shapes that templates turn into SVG. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from elastane_master.dashboard.time_axis import tick_text, ticks
from elastane_master.dashboard.timeline import Lane, Mark, Timeline
from elastane_master.dashboard.words import age, clock, ranks
from elastane_planner.amounts import seconds_text
from elastane_planner.plan import Plan
from elastane_planner.simulate import Timeline as StepTimeline
from elastane_proto.short_names import short_names

WIDTH: Final = 900
LEFT: Final = 150
ROW: Final = 26
HUES: Final = 8
BLOCKS_DRAWN: Final = 4000
"""Maximum number of blocks drawn for a step; further ones are left out."""
LANES_HEIGHT: Final = 12 * ROW
"""Of many workers together: their rows become lower."""

ROW_MIN: Final = 7
CHECKPOINTS_HEIGHT: Final = 14
SAVES_APART_MIN: Final = 14.0
"""Checkpoints that are closer are one shape."""

_LABEL_WIDTH_MIN = 42
_LABEL_HEIGHT_MIN = 14
_NAME_CHARACTERS = 20
GLYPHS: Final = {
    "join": "▲",
    "death": "✕",
    "leave": "◇",
    "drain": "▽",
    "replay": "↻",
    "checkpoint": "●",
    "master": "◆",
    "end": "■",
}


@dataclass(frozen=True, slots=True)
class Bar:
    x: float
    y: float
    width: float
    height: float
    style: str
    label: str
    title: str
    at: float = 0.0


@dataclass(frozen=True, slots=True)
class Glyph:
    x: float
    y: float
    style: str
    sign: str
    title: str
    at: float


@dataclass(frozen=True, slots=True)
class Label:
    x: float
    y: float
    text: str
    anchor: str = "start"
    title: str = ""


@dataclass(frozen=True, slots=True)
class Tick:
    """A round time on the axis."""

    x: float
    text: str
    at: float


@dataclass(frozen=True, slots=True)
class Saves:
    """Checkpoints, from the first at x to the last at x_last. label: their number; empty: it is one."""

    x: float
    x_last: float
    label: str
    title: str
    at: float


@dataclass(frozen=True, slots=True)
class TimelinePicture:
    """Shapes of a timeline. bottom: height of its axis. lines: vertical lines for events of the whole ring.

    A title begins with the time `at`, in UTC; scripts of the page put the viewer's time in its place.
    """

    height: int
    bottom: int
    began: float
    ended: float
    bars: tuple[Bar, ...]
    glyphs: tuple[Glyph, ...]
    labels: tuple[Label, ...]
    lines: tuple[Glyph, ...]
    ticks: tuple[Tick, ...]
    saves: tuple[Saves, ...]
    left_out: int
    complete: bool
    cut: bool


@dataclass(frozen=True, slots=True)
class StepPicture:
    """Shapes of a pipeline's step: a row for each worker that computes. left_out: blocks not drawn."""

    height: int
    bars: tuple[Bar, ...]
    labels: tuple[Label, ...]
    left_out: int


def draw_step(timeline: StepTimeline, plan: Plan, workers: Sequence[str]) -> StepPicture:
    """Lay out a step, measured or predicted. workers: names by device."""
    rows = [(index, device) for index, stage in enumerate(plan.stages) for device in stage.devices]
    place = {device: row * ROW + 4 for row, (_, device) in enumerate(rows)}
    names = short_names([workers[device] for _, device in rows], _NAME_CHARACTERS)
    labels = [
        Label(0, place[device] + 14, f"{index}: {names[workers[device]]}", title=workers[device])
        for index, device in rows
    ]
    height = ROW * len(rows) + 30
    whole = max(timeline.step_seconds, 1e-9)
    scale = (WIDTH - LEFT - 8) / whole
    bars = []
    for span in timeline.spans[:BLOCKS_DRAWN]:
        kind = "forward" if span.block.kind == "F" else "backward"
        x, width = LEFT + span.start_seconds * scale, (span.end_seconds - span.start_seconds) * scale
        text = str(span.block.micro_batch)
        took = seconds_text(span.end_seconds - span.start_seconds)
        title = f"{kind} of micro-batch {text} on {workers[span.device]}, stage {span.block.stage}: {took}"
        label = text if width > 8 * (len(text) + 1) else ""
        y = place[span.device]
        bars.append(Bar(round(x, 2), y, round(max(width, 0.3), 2), ROW - 6, kind, label, title))
    labels.append(Label(LEFT, height - 5, "0"))
    labels.append(Label(WIDTH - 8, height - 5, seconds_text(timeline.step_seconds), "end"))
    return StepPicture(height, tuple(bars), tuple(labels), max(0, len(timeline.spans) - BLOCKS_DRAWN))


def draw_timeline(timeline: Timeline) -> TimelinePicture:
    """Lay out a timeline: one row per worker, time from left to right."""
    span = max(timeline.ended - timeline.began, 1e-9)
    scale = (WIDTH - LEFT - 8) / span

    def across(at: float) -> float:
        return round(LEFT + (min(max(at, timeline.began), timeline.ended) - timeline.began) * scale, 1)

    row = min(ROW, max(LANES_HEIGHT // max(len(timeline.lanes), 1), ROW_MIN))
    bars: list[Bar] = []
    glyphs: list[Glyph] = []
    labels: list[Label] = []
    names = short_names([lane.worker for lane in timeline.lanes], _NAME_CHARACTERS)
    for place, lane in enumerate(timeline.lanes):
        y = place * row + ROW
        if row >= _LABEL_HEIGHT_MIN:
            labels.append(Label(0, y + row / 2 + 4, names[lane.worker], title=lane.worker))
        bars += _bars(lane, y, row, across)
        for mark in lane.marks:
            title = f"{clock(mark.at)} {mark.text}"
            glyphs.append(
                Glyph(across(mark.at), y + row / 2 + 5, mark.kind, GLYPHS[mark.kind], title, mark.at)
            )
    bottom = row * len(timeline.lanes) + ROW + CHECKPOINTS_HEIGHT
    lines = tuple(
        Glyph(across(mark.at), 15, mark.kind, GLYPHS[mark.kind], f"{clock(mark.at)} {mark.text}", mark.at)
        for mark in timeline.marks
    )
    axis = [Tick(across(at), tick_text(at, span), at) for at in ticks(timeline.began, timeline.ended)]
    return TimelinePicture(
        bottom + 22,
        bottom,
        timeline.began,
        timeline.ended,
        tuple(bars),
        tuple(glyphs),
        tuple(labels),
        lines,
        tuple(axis),
        _saves([(across(mark.at), mark) for mark in timeline.checkpoints]),
        timeline.left_out,
        timeline.complete,
        timeline.cut,
    )


def _saves(marks: Sequence[tuple[float, Mark]]) -> tuple[Saves, ...]:
    """Fold checkpoints that are too close to be told apart."""
    groups: list[list[tuple[float, Mark]]] = []
    for x, mark in marks:
        if groups and x - groups[-1][-1][0] < SAVES_APART_MIN:
            groups[-1].append((x, mark))
        else:
            groups.append([(x, mark)])
    found = []
    for group in groups:
        newest = group[-1][1]
        text = newest.text if len(group) == 1 else f"the newest of {len(group)} checkpoints: {newest.text}"
        label = str(len(group)) if len(group) > 1 else ""
        found.append(Saves(group[0][0], group[-1][0], label, f"{clock(newest.at)} {text}", newest.at))
    return tuple(found)


def _bars(lane: Lane, y: int, row: int, across: Callable[[float], float]) -> list[Bar]:
    bars = []
    top, height = y + row // 8, row - row // 4
    for stay in lane.stays:
        formed = stay.formed if stay.formed is not None else stay.ended
        where = f"{ranks(stay.first, stay.after)}, generation {stay.generation}"
        caption = f"{clock(stay.began)} {lane.worker}: {where}"
        title = f"{caption}, for {age(stay.ended - stay.began)}"
        hue = f"h{stay.first % HUES}"
        start, ready, end = across(stay.began), across(formed), across(stay.ended)
        if ready - start >= 1:
            why = f"{caption}: the ring is being formed, {age(formed - stay.began)}"
            bars.append(Bar(start, top, round(ready - start, 1), height, "forming", "", why, stay.began))
        width = round(max(end - ready, 1.0), 1)
        label = (
            ranks(stay.first, stay.after, bare=True)
            if width >= _LABEL_WIDTH_MIN and row >= _LABEL_HEIGHT_MIN
            else ""
        )
        if stay.formed is not None:
            bars.append(Bar(ready, top, width, height, hue, label, title, stay.began))
    return bars
