"""The rows of a page: which match the filter, and in which order they are. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import groupby

from rich.text import Text

from elastane_cli.screen.columns import Order
from elastane_cli.screen.view import Row, View

Cells = Mapping[str, Text | str]


@dataclass(frozen=True, slots=True)
class Entry:
    """A row of a page.

    content: its whole line, or its cells by column; called when it is drawn. detail: its full text, at the
    foot. values: what it is sorted by, by column. group: of rows that stay together, under those that are
    heads.
    """

    row: Row
    content: Callable[[], Text | Cells]
    detail: str = ""
    words: str = ""
    values: Mapping[str, float | str] = field(default_factory=dict)
    group: str = ""
    head: bool = False


@dataclass(frozen=True, slots=True)
class Body:
    """The rows of a page, and how they are shown.

    table: name of their table; empty: lines. longest: see `fit`. empty: shown if there are no rows. marks:
    the selected row is highlighted, else the selection moves the window.
    """

    entries: list[Entry]
    table: str = ""
    longest: Mapping[str, int] = field(default_factory=dict)
    empty: str = ""
    marks: bool = True


def arranged(body: Body, view: View) -> Body:
    """Return the body with the rows that match the view's filter, in its order."""
    entries = body.entries
    if view.filter:
        entries = list(_matching(entries, view.filter.casefold()))
    if view.order is not None and body.table:
        entries = list(_sorted(entries, view.order))
    empty = f"nothing with {view.filter!r}: escape shows all" if view.filter and body.entries else body.empty
    return replace(body, entries=entries, empty=empty)


def _matching(entries: list[Entry], text: str) -> Iterator[Entry]:
    """Yield the rows with the text, and the heads above them."""
    for _, group in groupby(entries, lambda entry: entry.group):
        of_group = list(group)
        found = [entry for entry in of_group if text in entry.words.casefold()]
        rows = {entry.row.id for entry in found if not entry.head}
        heads = {entry.row.id for entry in found if entry.head}
        for entry in of_group:
            if entry.row.id in rows or (entry.head and (rows or entry.row.id in heads)):
                yield entry


def _sorted(entries: list[Entry], order: Order) -> Iterator[Entry]:
    for _, group in groupby(entries, lambda entry: entry.group):
        of_group = list(group)
        yield from (entry for entry in of_group if entry.head)
        rows = [entry for entry in of_group if not entry.head]
        # Those without a value of this column, such as lines that only count others, stay below.
        valued = [entry for entry in rows if order.column in entry.values]
        yield from sorted(valued, key=lambda entry: entry.values[order.column], reverse=order.reverse)
        yield from (entry for entry in rows if order.column not in entry.values)
