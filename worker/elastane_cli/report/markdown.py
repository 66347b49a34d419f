"""A report as Markdown. Pure."""

from __future__ import annotations

from elastane_cli.plot import draw
from elastane_cli.report import texts
from elastane_cli.report.facts import Facts
from elastane_cli.report.texts import Table
from elastane_cli.views.curves import curve_lines
from elastane_cli.views.text import harmless

_COLUMNS, _ROWS = 90, 12


def as_markdown(facts: Facts, made: float) -> str:
    """Render a report. made: its time, seconds since the Unix epoch."""
    parts = [f"# Job {_cell(facts.name)}", _table(texts.summary(facts))]
    if (cost := texts.cost(facts)).rows:
        parts += ["## Cost", _table(cost)]
    parts += ["## Incidents and what each cost"]
    parts += [_table(texts.incidents(facts)) if facts.incidents else "None."]
    parts += ["## The ring over time", _table(texts.rings(facts)) if facts.rings else "There was none."]
    if throughput := draw(facts.steps.throughput(), _COLUMNS, _ROWS):
        parts += ["## Samples a second, by seconds since the first commit", _code(throughput)]
    if facts.series:
        parts.append("## Logged values, by step")
        parts += [_code(curve_lines(series, _COLUMNS, _ROWS)) for series in facts.series if series.points]
    if facts.checkpoints:
        parts += ["## Checkpoints", _table(texts.checkpoints(facts))]
    parts += ["## Settings", _table(texts.pairs(facts.settings))]
    if facts.environment:
        parts += ["## Environment", _table(texts.pairs(dict(facts.environment)))]
    kept = "" if facts.complete else "; earlier events are not kept any more"
    parts.append(f"Made by `elastane report` on {texts.moment(made)} from {facts.events} events{kept}.")
    return "\n\n".join(parts) + "\n"


def _table(table: Table) -> str:
    lines = [table.columns, ["---"] * len(table.columns), *table.rows]
    return "\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines)


def _cell(text: str) -> str:
    """Escape text for a table cell: it may come from scripts and users, and must not act as Markdown."""
    text = harmless(" ".join(text.split())).replace("\\", "\\\\").replace("|", "\\|")
    for char in "`*_<>[]":
        text = text.replace(char, f"\\{char}")
    return text


def _code(lines: list[str]) -> str:
    return "\n".join(["```", *(line.replace("```", "'''") for line in lines), "```"])
