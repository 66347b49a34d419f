"""A report as one HTML file: no script, nothing fetched from anywhere, light and dark. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from elastane_cli.explain import ranks_text
from elastane_cli.report import texts
from elastane_cli.report.facts import Facts
from elastane_cli.report.texts import Table
from elastane_proto.short_names import short_names

_WIDTH = 900
_ROW, _LEFT, _CURVE = 26, 150, 180
_HUES = 8
_NAME_CHARACTERS = 20
_STYLE = """
:root { color-scheme: light dark;
  --line: #8884; --ink: #1c1c1c; --paper: #fff; --strong: #0a63c9; --bad: #b3261e; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e6e6; --paper: #161616; --strong: #7db4ff; --bad: #ff8a80; }
}
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 2rem auto;
  max-width: 960px; padding: 0 1rem; }
h1, h2, h3 { line-height: 1.2; overflow-wrap: anywhere; } h2 { margin-top: 2.2rem; }
.wide { overflow-x: auto; } table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; vertical-align: top; padding: .3rem .8rem .3rem 0;
  border-bottom: 1px solid var(--line); overflow-wrap: anywhere; }
th[scope=row] { font-weight: 500; white-space: nowrap; }
svg { width: 100%; height: auto; } svg text { font: 12px system-ui, sans-serif; fill: currentColor; }
.axis { stroke: currentColor; stroke-opacity: .4; }
.curve { stroke: var(--strong); fill: none; stroke-width: 1.5; }
.band { fill: var(--strong); fill-opacity: .15; } .mark { stroke: var(--bad); stroke-dasharray: 3 3; }
""" + "\n".join(f".h{n} {{ fill: hsl({(n * 360 // _HUES + 205) % 360} 55% 48%); }}" for n in range(_HUES))


def as_html(facts: Facts, made: float) -> str:
    """Render a report. made: its time, seconds since the Unix epoch."""
    parts = [_table(texts.summary(facts), head=False)]
    if (cost := texts.cost(facts)).rows:
        parts += ["<h2>Cost</h2>", _table(cost, head=False)]
    parts += ["<h2>The ring over time</h2>", _timeline(facts) if facts.rings else "<p>There was none.</p>"]
    parts += ["<h2>Incidents and what each cost</h2>"]
    parts += [_table(texts.incidents(facts)) if facts.incidents else "<p>None.</p>"]
    throughput = facts.steps.throughput()
    if len(throughput) > 1:
        parts += ["<h2>Samples a second</h2>", _curve(throughput, "seconds since the first commit")]
    if facts.series:
        parts.append("<h2>Logged values</h2>")
    for series in facts.series:
        points = [(float(point.step), point.mean) for point in series.points]
        band = [(float(point.step), point.min, point.max) for point in series.points]
        steps = sum(point.steps for point in series.points)
        parts += [f"<h3>{escape(series.name)}</h3>", _curve(points, f"step; each of {steps} once", band)]
    if facts.checkpoints:
        parts += ["<h2>Checkpoints</h2>", _table(texts.checkpoints(facts))]
    parts += ["<h2>Rings</h2>", _table(texts.rings(facts))] if facts.rings else []
    parts += ["<h2>Settings</h2>", _table(texts.pairs(facts.settings), head=False)]
    if facts.environment:
        parts += ["<h2>Environment</h2>", _table(texts.pairs(dict(facts.environment)), head=False)]
    kept = "" if facts.complete else "; earlier events are not kept any more"
    name = escape(facts.name)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Job {name}</title><style>{_STYLE}</style></head><body><h1>Job {name}</h1>\n"
        + "\n".join(parts)
        + f"<p><small>Made by elastane report on {texts.moment(made)} from {facts.events} events{kept}."
        "</small></p></body></html>\n"
    )


def _table(table: Table, *, head: bool = True) -> str:
    columns = "".join(f'<th scope="col">{escape(name)}</th>' for name in table.columns)
    rows = []
    for first, *rest in table.rows:
        cell = f"<td>{escape(first)}</td>" if head else f'<th scope="row">{escape(first)}</th>'
        rows.append(f"<tr>{cell}{''.join(f'<td>{escape(text)}</td>' for text in rest)}</tr>")
    top = f"<thead><tr>{columns}</tr></thead>" if head else ""
    return f'<div class="wide"><table>{top}<tbody>{"".join(rows)}</tbody></table></div>'


def _timeline(facts: Facts) -> str:
    """Draw the ESTs hosted by each worker over time; dashed lines mark unplanned incidents."""
    start, end = facts.rings[0].began, max(ring.ended for ring in facts.rings)
    scale = (_WIDTH - _LEFT) / max(end - start, 1e-9)
    workers = facts.workers
    names = short_names(workers, _NAME_CHARACTERS)
    height = _ROW * len(workers) + 24
    shapes = []
    for row, worker in enumerate(workers):
        y = row * _ROW
        shapes.append(
            f'<text x="0" y="{y + 17}">{escape(names[worker])}<title>{escape(worker)}</title></text>'
        )
        for ring in facts.rings:
            if worker not in ring.members:
                continue
            first, last = ring.members[worker]
            x, width = _LEFT + (ring.began - start) * scale, max((ring.ended - ring.began) * scale, 1.0)
            ranks = ranks_text(first, last)
            caption = (
                f"{worker}: {ranks}, generation {ring.generation}, {texts.duration(ring.ended - ring.began)}"
            )
            place = f'x="{x:.1f}" y="{y + 3}" width="{width:.1f}" height="{_ROW - 6}"'
            title = f"<title>{escape(caption)}</title>"
            shapes.append(f'<rect class="h{first % _HUES}" {place}>{title}</rect>')
            if width > 60:
                label = ranks.removeprefix("ESTs ").removeprefix("EST ")
                shapes.append(f'<text x="{x + 4:.1f}" y="{y + 17}" style="fill:#fff">{label}</text>')
    for one in facts.incidents:
        if start <= one.time <= end and not one.planned:
            x = _LEFT + (one.time - start) * scale
            shapes.append(
                f'<line class="mark" x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{height - 24}">'
                f"<title>{escape(one.reason)}</title></line>"
            )
    shapes.append(f'<text x="{_LEFT}" y="{height - 6}">{texts.moment(start)}</text>')
    shapes.append(
        f'<text x="{_WIDTH}" y="{height - 6}" text-anchor="end">{texts.duration(end - start)}</text>'
    )
    return _svg(height, shapes, "Workers over time, with the logical workers each hosted")


def _curve(
    points: Sequence[tuple[float, float]], below: str, band: Sequence[tuple[float, float, float]] = ()
) -> str:
    """Draw a curve. below: label of the x axis. band: (x, low, high)."""
    finite = [(x, y) for x, y in points if math.isfinite(y)]
    if not finite:
        return "<p>No finite value.</p>"
    left, right = finite[0][0], finite[-1][0]
    edges = [edge for _, low, high in band for edge in (low, high) if math.isfinite(edge)]
    low, high = min([y for _, y in finite] + edges), max([y for _, y in finite] + edges)

    def place(x: float, y: float) -> str:
        across = (x - left) / (right - left) if right > left else 0.5
        # Halved first: the difference of two large numbers may overflow.
        up = (y / 2 - low / 2) / (high / 2 - low / 2) if high > low else 0.5
        return f"{_LEFT + across * (_WIDTH - _LEFT - 4):.1f},{6 + (1 - up) * (_CURVE - 34):.1f}"

    shapes = []
    inside = [(x, a, b) for x, a, b in band if math.isfinite(a) and math.isfinite(b)]
    if len(inside) > 1:
        around = [place(x, b) for x, _, b in inside] + [place(x, a) for x, a, _ in reversed(inside)]
        shapes.append(f'<polygon class="band" points="{" ".join(around)}"/>')
    if len(finite) > 1:
        shapes.append(f'<polyline class="curve" points="{" ".join(place(x, y) for x, y in finite)}"/>')
    else:
        x, y = place(*finite[0]).split(",")
        shapes.append(f'<circle class="band" cx="{x}" cy="{y}" r="4"/>')
    bottom = _CURVE - 26
    shapes.append(f'<line class="axis" x1="{_LEFT}" x2="{_WIDTH}" y1="{bottom}" y2="{bottom}"/>')
    label = 'text-anchor="end"'
    shapes.append(f'<text x="{_LEFT - 8}" y="14" {label}>{high:.4g}</text>')
    shapes.append(f'<text x="{_LEFT - 8}" y="{bottom}" {label}>{low:.4g}</text>')
    shapes.append(f'<text x="{_LEFT}" y="{_CURVE - 8}">{left:g}</text>')
    shapes.append(f'<text x="{_WIDTH}" y="{_CURVE - 8}" {label}>{right:g} ({escape(below)})</text>')
    return _svg(_CURVE, shapes, below)


def _svg(height: int, shapes: Sequence[str], label: str) -> str:
    frame = f'viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{escape(label)}"'
    return f"<svg {frame}>{''.join(shapes)}</svg>"
