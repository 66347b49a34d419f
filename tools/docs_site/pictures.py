"""Draws the pictures of docs/explanation as SVG; a test checks that the committed files are up to date.

There are two kinds: sequence diagrams of messages between master and workers, and bars that show which worker
hosts which logical workers over time. Colours follow the reader's preference for dark or light.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Final, NamedTuple

from docs_site.paths import DOCS
from elastane_planner import gantt
from elastane_planner.cluster import Cluster, Device
from elastane_planner.plan import Plan, Stage
from elastane_planner.profile import Profile, UnitProfile
from elastane_planner.simulate import timeline

_STYLE: Final = """\
<style>
  text { font: 13px system-ui, sans-serif; fill: #222 } .small { font-size: 12px } .head { font-weight: 600 }
  line, path { stroke: #555; fill: none } .life { stroke: #999; stroke-dasharray: 3 4 } .dead { stroke: #c33 }
  rect { fill: #f4f4f4; stroke: #888 } .note { fill: #fff6d8; stroke: #c9a400 }
  .e0 { fill: #8ecae6 } .e1 { fill: #ffd166 } .e2 { fill: #95d5b2 } .e3 { fill: #e5a4cb }
  @media (prefers-color-scheme: dark) {
    text { fill: #ddd } line, path { stroke: #aaa } rect { fill: #2a2a2a } .note { fill: #4a4020 }
    .e0 { fill: #1d5a78 } .e1 { fill: #7a5c00 } .e2 { fill: #2d6a4f } .e3 { fill: #7b2d5e }
  }
</style>
"""
_LANE, _ROW, _LEFT, _TOP = 230, 34, 90, 30


class Message(NamedTuple):
    """An arrow between two lanes, or a note if both are the same. source, target: lane numbers."""

    source: int
    target: int
    text: str


class Phase(NamedTuple):
    """A period of time. title: the event that began it. hosts: for each worker, its logical workers."""

    title: str
    hosts: tuple[tuple[int, ...], ...]


def sequence(lanes: Sequence[str], messages: Sequence[Message], title: str, dead: int = -1) -> str:
    """Draw a sequence diagram as SVG, time downwards. dead: number of a lane that ends at its last note."""
    width, height = 2 * _LEFT + _LANE * (len(lanes) - 1), _TOP + _ROW * (len(messages) + 2)
    end = max((row for row, m in enumerate(messages) if dead in m[:2]), default=0)
    parts = []
    for number, name in enumerate(lanes):
        x = _LEFT + _LANE * number
        bottom = _TOP + _ROW * (end + 1.6) if number == dead else height - 10
        parts.append(f'<rect x="{x - 60}" y="6" width="120" height="24" rx="4"/>')
        parts.append(_text(x, 23, name, "head", "middle"))
        parts.append(f'<line class="life" x1="{x}" y1="30" x2="{x}" y2="{bottom:g}"/>')
    for row, (source, target, text) in enumerate(messages):
        y = _TOP + _ROW * (row + 1)
        x, to = _LEFT + _LANE * source, _LEFT + _LANE * target
        if source == target:
            size = 7 * len(text) + 16
            left = min(max(x - size / 2, 4), width - size - 4)
            parts.append(f'<rect class="note" x="{left:g}" y="{y - 15}" width="{size}" height="22" rx="4"/>')
            parts.append(_text(left + size / 2, y, text, "small", "middle"))
            continue
        parts.append(f'<line x1="{x}" y1="{y}" x2="{to}" y2="{y}"/>')
        tip = 7 if to > x else -7
        parts.append(f'<path d="M {to - tip} {y - 4} L {to} {y} L {to - tip} {y + 4}"/>')
        parts.append(_text((x + to) / 2, y - 5, text, "small", "middle"))
    return _svg(width, height, title, parts)


def hosting(phases: Sequence[Phase], title: str) -> str:
    """Draw as SVG which logical workers each worker runs: a row per worker, time to the right."""
    workers = max(len(phase.hosts) for phase in phases)
    width, height = 110 + 200 * len(phases), 50 + 44 * workers
    parts = [_text(8, 62 + 44 * n, f"worker {n}", "head") for n in range(workers)]
    for column, phase in enumerate(phases):
        left = 100 + 200 * column
        parts.append(_text(left, 24, phase.title, "small"))
        for n, ests in enumerate(phase.hosts):
            if not ests:
                continue
            size = 184 / len(ests)
            for place, est in enumerate(ests):
                x = left + size * place
                parts.append(
                    f'<rect class="e{est}" x="{x:g}" y="{40 + 44 * n}" width="{size:g}" height="34"/>'
                )
                parts.append(_text(x + size / 2, 62 + 44 * n, f"EST {est}", "small", "middle"))
    return _svg(width, height, title, parts)


def all_pictures() -> dict[Path, str]:
    """Return every picture by its file."""
    m, a, b = 0, 1, 2
    step = [
        Message(a, a, "forward, backward of its ESTs"),
        Message(b, b, "forward, backward of its ESTs"),
        Message(a, m, "StepReport: contexts after the step"),
        Message(b, m, "StepReport"),
        Message(a, b, "sums, bucket by bucket"),
        Message(m, m, "all N contexts stored"),
        Message(m, a, "Prepared"),
        Message(m, b, "Prepared"),
        Message(a, a, "optimizer.step(): applied"),
        Message(b, b, "optimizer.step(): applied"),
        Message(m, m, "all have applied: committed"),
    ]
    death = [
        Message(b, b, "killed in step 27"),
        Message(m, m, "stream broke: generation 4"),
        Message(m, a, "Prepare(4)"),
        Message(a, a, "leaves the sum, drops the step"),
        Message(a, m, "Ready(4), applied 27 steps"),
        Message(m, a, "Go(4), contexts of B's ESTs"),
        Message(a, a, "step 27 again, from its contexts"),
        Message(a, m, "StepReport(4, 27)"),
    ]
    folder = DOCS / "pictures"
    return {
        folder / "hosting.svg": hosting(
            [
                Phase("starts with two", ((0, 1), (2, 3))),
                Phase("two more join", ((0,), (1,), (2,), (3,))),
                Phase("worker 1 is killed, 3 drains", ((0, 1), (), (2, 3))),
                Phase("worker 1 comes back", ((0, 1), (2,), (3,))),
            ],
            "Four logical workers on two, four, two and three processes",
        ),
        folder / "step.svg": sequence(
            ["master", "worker A", "worker B"], step, "What passes between master and workers in one step"
        ),
        folder / "pipeline.svg": _pipeline(4, 8),
        folder / "death.svg": sequence(
            ["master", "worker A", "worker B"], death, "What passes when a worker is killed", dead=b
        ),
    }


def _pipeline(stages: int, micro_batches: int) -> str:
    """Draw the step of equal stages, by the planner's simulator."""
    units = tuple(UnitProfile(f"unit {n}", 0.01, 0.02, boundary_bytes=1) for n in range(stages))
    cluster = Cluster.uniform([Device(f"worker {n}") for n in range(stages)], 1e6)
    plan = Plan(tuple(Stage(n, n + 1, (n,)) for n in range(stages)))
    step = timeline(Profile(units), cluster, plan, micro_batches)
    title = f"{stages} equal stages, {micro_batches} micro-batches: devices wait for {step.bubble:.0%} of it"
    return gantt.draw([device.name for device in cluster.devices], plan, step, title)


def _text(x: float, y: float, text: str, kind: str, anchor: str = "start") -> str:
    return f'<text class="{kind}" x="{x:g}" y="{y:g}" text-anchor="{anchor}">{escape(text)}</text>'


def _svg(width: float, height: float, title: str, parts: Sequence[str]) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" '
        f'role="img" aria-label="{escape(title)}">\n<title>{escape(title)}</title>\n'
    )
    return head + _STYLE + "\n".join(parts) + "\n</svg>\n"
