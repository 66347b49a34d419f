"""The columns of each table of `elastane top`, and which of them a width has room for. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from rich.text import Text

from elastane_cli.views.text import one_line


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table. width: in characters; longer texts are cut.

    right: aligned to the right. fits: narrower if its texts are. grows: of the last column: has what room is
    left; `width` is the least.
    """

    id: str
    title: str
    width: int
    right: bool = False
    fits: bool = False
    grows: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """Columns from left to right. worth: their ids, the most worth first: narrow screens lose the last."""

    columns: tuple[Column, ...]
    worth: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Placed:
    """A column that is shown, in [start, end) of the screen's columns."""

    column: Column
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Order:
    """How a table is sorted: by a column's id; reverse: the greatest first."""

    column: str
    reverse: bool = False


def _table(worth: str, *columns: Column) -> Table:
    return Table(columns, tuple(worth.split()))


TABLES: Final[Mapping[str, Table]] = {
    "jobs": _table(
        "job phase progress workers ests reason",
        Column("job", "JOB", 24, fits=True),
        Column("phase", "PHASE", 11),
        Column("progress", "PROGRESS", 18, right=True),
        Column("workers", "WORKERS", 8, right=True),
        Column("ests", "ESTS", 5, right=True),
        Column("reason", "REASON", 10, grows=True),
    ),
    "workers": _table(
        "worker state ests applied heard reason step data_wait reduce_wait",
        Column("worker", "WORKER", 24, fits=True),
        Column("state", "STATE", 10),
        Column("ests", "ESTS", 9),
        Column("applied", "APPLIED", 8, right=True),
        Column("heard", "HEARD", 7, right=True),
        Column("step", "STEP", 7, right=True),
        Column("data_wait", "DATA WAIT", 10, right=True),
        Column("reduce_wait", "REDUCE WAIT", 12, right=True),
        Column("reason", "REASON", 13, grows=True),
    ),
    "ests": _table(
        "est worker state doing for",
        Column("est", "EST", 5, right=True),
        Column("worker", "WORKER", 28, fits=True),
        Column("doing", "DOES STEP", 10, right=True),
        Column("for", "FOR", 7, right=True),
        Column("state", "STATE", 10),
    ),
    "tasks": _table(
        "dataset task worker held positions left attempt",
        Column("dataset", "DATASET", 16),
        Column("task", "TASK", 9, right=True),
        Column("attempt", "ATT", 4, right=True),
        Column("positions", "POSITIONS", 19),
        Column("held", "HELD", 7, right=True),
        Column("left", "LEFT", 7, right=True),
        Column("worker", "BY", 8, grows=True),
    ),
    "events": _table(
        "kind time worker reason at number",
        Column("number", "EVENT", 6, right=True),
        Column("time", "TIME", 23, fits=True),
        Column("kind", "KIND", 22),
        Column("at", "AT", 10, fits=True),
        Column("worker", "WORKER", 16, fits=True),
        Column("reason", "REASON", 16, grows=True),
    ),
}


def fit(table: Table, columns: int, longest: Mapping[str, int]) -> tuple[Placed, ...]:
    """Place the columns that fit into a width; those of least worth are left out first, down to one.

    longest: the longest text of columns that fit their texts, in characters, by id.
    """
    kept = list(table.columns)
    for least in reversed(table.worth[1:]):
        if _place(kept, longest)[-1].end <= columns:
            break
        kept = [column for column in kept if column.id != least]
    *others, last = _place(kept, longest)
    end = columns if last.column.grows else min(last.end, columns)
    return (*others, Placed(last.column, last.start, end))


def _place(columns: Sequence[Column], longest: Mapping[str, int]) -> list[Placed]:
    placed: list[Placed] = []
    for column in columns:
        width = column.width
        if column.fits:
            width = min(width, max(longest.get(column.id, width), len(column.title) + 1))
        start = 0
        if placed:
            # Numbers end where the next text begins: one more space keeps them apart.
            start = placed[-1].end + (2 if placed[-1].column.right and not column.right else 1)
        placed.append(Placed(column, start, start + width))
    return placed


def header(placed: Sequence[Placed], order: Order | None) -> Text:
    """Return the line of titles; the column by which rows are sorted has an arrow."""
    arrow = "" if order is None else "▼" if order.reverse else "▲"
    titles = {
        one.column.id: one.column.title
        + (arrow if order is not None and order.column == one.column.id else "")
        for one in placed
    }
    line = cells_line(placed, titles)
    line.stylize("bold")
    return line


def cells_line(placed: Sequence[Placed], cells: Mapping[str, Text | str]) -> Text:
    """Return a row's line: each cell in its column, cut to its width. The last one is padded no further."""
    line = Text()
    for one in placed:
        cell = cells.get(one.column.id, "")
        text = one_line(cell if isinstance(cell, Text) else Text(cell))
        line.pad_right(one.start - line.cell_len)
        width = one.end - one.start
        text.truncate(width, overflow="ellipsis")
        if one.column.right:
            text.pad_left(width - text.cell_len)
        line.append_text(text)
    return line
