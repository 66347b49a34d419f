"""Draws a simulated or measured step: a row for each device with its blocks, frames and sums.

The SVG has only rectangles and text, so it needs no plotting library. The colours are those of Okabe and
Ito, which most colour-blind people can distinguish.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from math import inf

from elastane_planner.amounts import seconds_text
from elastane_planner.plan import Plan
from elastane_planner.simulate import Timeline

_WIDTH, _LEFT, _RIGHT, _TOP, _ROW, _FRAMES, _GAP = 960, 150, 20, 56, 26, 5, 9
_FORWARD, _BACKWARD, _SUM, _FRAME = "#56b4e9", "#e69f00", "#009e73", "#999999"
_LETTER = 6.0
BLOCKS_MAX = 20_000
"""Blocks and frames that are drawn; of longer steps the rest is left out, and the picture says so."""


def draw(names: Sequence[str], plan: Plan, timeline: Timeline, title: str = "") -> str:
    """Return the SVG. names: of the cluster's devices. An endless step is drawn without blocks."""
    shown = [(index, device) for index, stage in enumerate(plan.stages) for device in stage.devices]
    top = {device: _TOP + place * (_ROW + _FRAMES + _GAP) for place, (_, device) in enumerate(shown)}
    bottom = _TOP + len(shown) * (_ROW + _FRAMES + _GAP)
    height = bottom + 56
    whole = timeline.step_seconds
    head = title or f"Step of {seconds_text(whole)}, bubble {max(0.0, timeline.bubble):.1%}"
    total = _LEFT + _WIDTH + _RIGHT
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {total} {height}" '
        'font-family="sans-serif" font-size="11">',
        f'<rect width="{total}" height="{height}" fill="white"/>',
        f'<text x="{_LEFT}" y="24" font-size="14">{escape(head)}</text>',
    ]
    for index, device in shown:
        y = top[device]
        parts += [
            f'<text x="{_LEFT - 8}" y="{y + 12}" text-anchor="end">{escape(_cut(names[device]))}</text>',
            f'<text x="{_LEFT - 8}" y="{y + 24}" text-anchor="end" fill="#666" font-size="9">'
            f"stage {index}</text>",
            f'<rect x="{_LEFT}" y="{y}" width="{_WIDTH}" height="{_ROW}" fill="#f4f4f4"/>',
        ]
    drawn = _drawn(plan, timeline, names, top) if 0 < whole < inf else []
    parts += drawn[:BLOCKS_MAX]
    parts += _foot(bottom, whole, len(drawn))
    return "\n".join([*parts, "</svg>"]) + "\n"


def _drawn(plan: Plan, timeline: Timeline, names: Sequence[str], top: dict[int, int]) -> list[str]:
    """Return the elements of blocks, frames and sums."""
    scale = _WIDTH / timeline.step_seconds
    parts = []
    for span in timeline.spans:
        block = span.block
        told = f"{'forward' if block.kind == 'F' else 'backward'} of micro-batch {block.micro_batch}, stage"
        hint = f"{told} {block.stage}: {seconds_text(span.end_seconds - span.start_seconds)}"
        colour = _FORWARD if block.kind == "F" else _BACKWARD
        x, width = _LEFT + span.start_seconds * scale, (span.end_seconds - span.start_seconds) * scale
        label = str(block.micro_batch)
        parts.append(
            _box(
                x,
                top[span.device],
                width,
                _ROW,
                colour,
                hint,
                label if width > _LETTER * (len(label) + 1) else "",
            )
        )
    for frame in timeline.transfers:
        hint = (
            f"{frame.block} from {names[frame.source]} to {names[frame.target]}: "
            f"{seconds_text(frame.end_seconds - frame.start_seconds)}"
        )
        x, width = _LEFT + frame.start_seconds * scale, (frame.end_seconds - frame.start_seconds) * scale
        parts.append(_box(x, top[frame.source] + _ROW + 1, width, _FRAMES, _FRAME, hint))
    for each in timeline.sums:
        if each.end_seconds > each.start_seconds:
            hint = f"sums of stage {each.stage}: {seconds_text(each.end_seconds - each.start_seconds)}"
            x, width = _LEFT + each.start_seconds * scale, (each.end_seconds - each.start_seconds) * scale
            parts += [
                _box(x, top[device], width, _ROW, _SUM, hint, "sum" if width > 4 * _LETTER else "")
                for device in plan.stages[each.stage].devices
            ]
    return parts


def _box(x: float, y: float, width: float, height: float, colour: str, hint: str, label: str = "") -> str:
    text = (
        f'<text x="{x + width / 2:.2f}" y="{y + height / 2 + 4:.1f}" text-anchor="middle" '
        f'pointer-events="none">{label}</text>'
        if label
        else ""
    )
    return (
        f'<rect x="{x:.2f}" y="{y}" width="{max(width, 0.2):.2f}" height="{height}" fill="{colour}" '
        f'stroke="white" stroke-width="0.4"><title>{escape(hint)}</title></rect>{text}'
    )


def _foot(bottom: int, whole: float, elements: int) -> list[str]:
    """Return the axis and the legend."""
    right = _LEFT + _WIDTH
    parts = [
        f'<path d="M{_LEFT} {bottom}H{right}" stroke="#444"/>',
        f'<text x="{_LEFT}" y="{bottom + 14}">0</text>',
        f'<text x="{right}" y="{bottom + 14}" text-anchor="end">{seconds_text(whole)}</text>',
    ]
    x = _LEFT
    for colour, word in (
        (_FORWARD, "forward"),
        (_BACKWARD, "backward"),
        (_SUM, "sums"),
        (_FRAME, "frames sent"),
    ):
        parts += [
            f'<rect x="{x}" y="{bottom + 28}" width="12" height="12" fill="{colour}"/>',
            f'<text x="{x + 17}" y="{bottom + 38}">{word}</text>',
        ]
        x += 100
    if elements > BLOCKS_MAX:
        parts.append(
            f'<text x="{right}" y="{bottom + 38}" text-anchor="end">the first {BLOCKS_MAX} of {elements} '
            "blocks and frames</text>"
        )
    return parts


def _cut(name: str) -> str:
    return name if len(name) <= 24 else name[:23] + "…"
