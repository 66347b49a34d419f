"""The state of the screen (page, selection, filter, question) and what keys, mouse and answers change. Pure.

`press` takes the state and one input, and returns the new state with an effect for the edge to carry out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal, NamedTuple

from elastane_cli.screen.actions import Action, Question, answer, asked_words, typed
from elastane_cli.screen.columns import Order
from elastane_cli.screen.keys import Mouse
from elastane_proto.event_filter import EVERYTHING, EventFilter

Page = Literal["jobs", "job", "worker"]
Tab = Literal["workers", "ests", "tasks", "events", "curves"]

TABS: Final[tuple[Tab, ...]] = ("workers", "ests", "tasks", "events", "curves")
#: The key of each tab: its first letter, or "v" for events, as "e" is taken by ESTs; or its number.
TAB_KEYS: Final[dict[str, Tab]] = {
    "w": "workers", "e": "ests", "t": "tasks", "v": "events", "c": "curves",
    "1": "workers", "2": "ests", "3": "tasks", "4": "events", "5": "curves",
}  # fmt: skip
PAGE_ROWS: Final = 10
WHEEL_ROWS: Final = 3
_VI: Final = {"j": "down", "k": "up", "h": "left", "l": "right", "g": "home", "G": "end"}


class Leave:
    """Effect: the command ends."""


@dataclass(frozen=True, slots=True)
class Notice:
    """The master's answer to an action, or that it was asked. Shown until the next key. fault: it refused."""

    text: str
    fault: bool = False


Input = str | Mouse | Notice
Effect = Leave | Action


@dataclass(frozen=True, slots=True)
class Row:
    """A selectable row. id: stays the same as the list changes. opens: the job or worker that enter opens."""

    id: str
    opens: str = ""


@dataclass(frozen=True, slots=True)
class Area:
    """Part of a screen's line, in [start, end) of its columns, that a click chooses by name."""

    start: int
    end: int
    name: str


@dataclass(frozen=True, slots=True)
class Layout:
    """Positions of the drawn rows, headers and tabs on the screen, to resolve keys and clicks.

    first: number of the row at the top of the window; room: rows that fit into it. top: its line on the
    screen; columns: its width. marks: a row is selected, else keys move the window. header, tabs_line: lines
    of the screen; -1: there is none. headers, tabs: what stands in them.
    """

    rows: Sequence[Row] = ()
    first: int = 0
    room: int = 0
    top: int = 0
    columns: int = 0
    marks: bool = True
    header: int = -1
    headers: tuple[Area, ...] = ()
    tabs_line: int = -1
    tabs: tuple[Area, ...] = ()

    @property
    def sortable(self) -> tuple[str, ...]:
        """Ids of the columns that are shown."""
        return tuple(area.name for area in self.headers)


@dataclass(frozen=True, slots=True)
class View:
    """State of the view. selected: a row's id; empty: the first row, or the last where `follows_end`.

    cursor: number of the row that was selected, in case it disappears. first: number of the row at the top of
    the window.
    """

    page: Page = "jobs"
    job: str = ""
    tab: Tab = "workers"
    worker: str = ""
    selected: str = ""
    cursor: int = 0
    first: int = 0
    help: bool = False
    #: Started for one named job: there is no list to go back to.
    pinned: bool = False
    #: Show every routine event instead of folding consecutive ones.
    unfolded: bool = False
    #: Filter of events, on every job's page.
    wanted: EventFilter = EVERYTHING
    #: Only rows with this text are shown.
    filter: str = ""
    #: How tables are sorted that are not in their own order, by name of the table.
    orders: Mapping[str, Order] = field(default_factory=dict)
    question: Question | None = None
    notice: Notice | None = None

    def position(self, rows: Sequence[Row]) -> int:
        """Return the number of the selected row; its last position if it is gone."""
        ids = [row.id for row in rows]
        if self.selected in ids:
            return ids.index(self.selected)
        if not self.selected:
            return max(len(rows) - 1, 0) if self.follows_end else 0
        return min(self.cursor, max(len(rows) - 1, 0))

    def worker_of(self, rows: Sequence[Row]) -> str:
        """Return the worker of the page or of its selected row; empty: none."""
        opens = rows[self.position(rows)].opens if rows else ""
        return "" if self.page == "jobs" else self.worker or opens

    @property
    def table(self) -> str:
        """Name of the table on the page: its tab, or the page."""
        return self.tab if self.page == "job" else self.page

    @property
    def order(self) -> Order | None:
        """How the page's table is sorted; None: in its own order."""
        return self.orders.get(self.table)

    @property
    def follows_end(self) -> bool:
        """True on pages whose newest row is last: without a selection they show the end."""
        return self.page == "worker" or (self.page == "job" and self.tab == "events" and self.order is None)


class Pressed(NamedTuple):
    """The state after an input, and what the edge has to do, if anything."""

    view: View
    effect: Effect | None = None


def press(view: View, given: Input, layout: Layout) -> Pressed:
    """Return the state and the effect after a key, the mouse, or an answer. layout: what is drawn now."""
    if isinstance(given, Notice):
        return Pressed(replace(view, notice=given))
    view = replace(view, notice=None, first=layout.first)
    if view.question is not None:
        return _answered(view, view.question, given)
    if view.help:
        return Pressed(view, Leave()) if given == "q" else Pressed(replace(view, help=False))
    if isinstance(given, Mouse):
        return Pressed(_point(view, given, layout))
    key = _VI.get(given, given)
    if key == "q":
        return Pressed(view, Leave())
    if key in _ASKS:
        return Pressed(replace(view, question=_question(view, key, layout.rows)))
    return Pressed(_looked(view, key, layout))


def _looked(view: View, key: str, layout: Layout) -> View:
    """Return the state after a key that changes only what is shown."""
    if key == "?":
        return replace(view, help=True)
    if key == "escape" and view.filter:
        return replace(view, filter="")
    if key in ("escape", "backspace", "left"):
        return _back(view)
    if view.page == "job" and (key in TAB_KEYS or key in ("tab", "back_tab")):
        return _turned(view, _tab(view.tab, key))
    if key == "a" and view.page == "job" and view.tab == "events":
        return replace(view, unfolded=not view.unfolded, selected="", cursor=0)
    if key in ("o", "r"):
        return _sorted(view, key, layout.sortable)
    if key in ("enter", "right"):
        return _open(view, layout.rows)
    return _move(view, key, layout)


# ---------------------------------------------------------------- pages


def _tab(tab: Tab, key: str) -> Tab:
    if key in TAB_KEYS:
        return TAB_KEYS[key]
    return TABS[(TABS.index(tab) + (1 if key == "tab" else -1)) % len(TABS)]


def _turned(view: View, tab: Tab) -> View:
    return replace(view, tab=tab, selected="", cursor=0, first=0)


def _back(view: View) -> View:
    if view.page == "worker":
        return replace(view, page="job", worker="", selected=view.worker, cursor=0, first=0, filter="")
    if view.page == "job" and not view.pinned:
        return View(selected=view.job, wanted=view.wanted, orders=view.orders)
    return view


def _open(view: View, rows: Sequence[Row]) -> View:
    row = rows[view.position(rows)] if rows else None
    if row is None or not row.opens or view.page == "worker":
        return view
    if view.page == "jobs":
        return View(page="job", job=row.opens, wanted=view.wanted, orders=view.orders)
    return replace(view, page="worker", worker=row.opens, selected="", cursor=0, first=0, filter="")


def _sorted(view: View, key: str, columns: Sequence[str]) -> View:
    """Sort by the next column ("o"; after the last one in the table's own order), or in reverse ("r")."""
    if not columns:
        return view
    order = view.order
    if key == "r":
        return _in_order(
            view, Order(columns[0], True) if order is None else replace(order, reverse=not order.reverse)
        )
    at = columns.index(order.column) + 1 if order is not None and order.column in columns else 0
    if order is not None and at == len(columns):
        return _in_order(view, None)
    return _in_order(view, Order(columns[at]))


def _in_order(view: View, order: Order | None) -> View:
    others = {name: one for name, one in view.orders.items() if name != view.table}
    return replace(view, orders=others if order is None else {**others, view.table: order})


# ---------------------------------------------------------------- selection


def _move(view: View, key: str, layout: Layout) -> View:
    at = view.position(layout.rows)
    steps = {"up": -1, "down": 1, "page_up": -PAGE_ROWS, "page_down": PAGE_ROWS}
    if key in steps:
        at += steps[key]
    elif key in ("home", "end"):
        at = 0 if key == "home" else len(layout.rows) - 1
    else:
        return view
    return _select(view, at, layout)


def _select(view: View, at: int, layout: Layout) -> View:
    """Select a row by its number; past an end, the row there. Where none is marked, the window's first."""
    count = len(layout.rows)
    at = min(max(at, 0), max(count - (1 if layout.marks else layout.room), 0))
    at_end = view.follows_end and at == count - 1
    return replace(view, selected=layout.rows[at].id if count and not at_end else "", cursor=at)


def _point(view: View, mouse: Mouse, layout: Layout) -> View:
    """Return the state after a turn of the wheel or a click."""
    if mouse.act != "click":
        return _scrolled(view, WHEEL_ROWS if mouse.act == "wheel_down" else -WHEEL_ROWS, layout)
    if mouse.line == layout.tabs_line and (tab := _hit(layout.tabs, mouse.column)):
        return _turned(view, next(one for one in TABS if one == tab))
    if mouse.line == layout.header and (column := _hit(layout.headers, mouse.column)):
        again = view.order is not None and view.order.column == column
        return _sorted(view, "r", layout.sortable) if again else _in_order(view, Order(column))
    number = layout.first + mouse.line - layout.top
    in_window = layout.top <= mouse.line < layout.top + layout.room and mouse.column < layout.columns
    if not in_window or number >= len(layout.rows) or not layout.marks:
        return view
    row = layout.rows[number]
    if view.selected == row.id:
        return _open(view, layout.rows)
    return replace(view, selected=row.id, cursor=number)


def _hit(areas: Sequence[Area], column: int) -> str:
    return next((area.name for area in areas if area.start <= column < area.end), "")


def _scrolled(view: View, rows: int, layout: Layout) -> View:
    """Move the window; the selection stays where it is while it is in it."""
    if not layout.marks:
        return _select(view, view.position(layout.rows) + rows, layout)
    first = min(max(layout.first + rows, 0), max(len(layout.rows) - layout.room, 0))
    at = min(max(view.position(layout.rows), first), first + max(layout.room - 1, 0))
    return replace(_select(view, at, layout), first=first)


# ---------------------------------------------------------------- questions

_ASKS: Final[Mapping[str, Literal["filter", "drain", "scale", "checkpoint"]]] = {
    "/": "filter", "d": "drain", "s": "scale", "p": "checkpoint"
}  # fmt: skip


def _question(view: View, key: str, rows: Sequence[Row]) -> Question | None:
    """Return the question that a key raises about what is selected; None: it has nothing to be about."""
    about = _ASKS[key]
    job = (rows[view.position(rows)].opens if rows else "") if view.page == "jobs" else view.job
    worker = view.worker_of(rows)
    if about == "filter":
        return Question("filter", text=view.filter)
    if not job or (about == "drain" and not worker):
        return None
    return Question(about, job, worker if about == "drain" else "")


def _answered(view: View, question: Question, given: str | Mouse) -> Pressed:
    if isinstance(given, Mouse):
        return Pressed(view)  # a hand at the mouse neither confirms nor gives up
    if question.about == "filter":
        if given in ("enter", "escape"):
            return Pressed(replace(view, question=None, filter=question.text if given == "enter" else ""))
        question = typed(question, given)
        return Pressed(replace(view, question=question, filter=question.text))
    left, action = answer(question, given)
    notice = Notice(asked_words(action)) if action is not None else None
    return Pressed(replace(view, question=left, notice=notice), action)
