"""The state of the view (page, tab, selection) and its changes by keys. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

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


@dataclass(frozen=True, slots=True)
class Row:
    """A selectable row. id: stays the same as the list changes. opens: the job or worker that enter opens."""

    id: str
    opens: str = ""


@dataclass(frozen=True, slots=True)
class View:
    """State of the view. selected: a row's id; empty: the first row, or the last where `follows_end`.

    cursor: number of the row that was selected, in case it disappears.
    """

    page: Page = "jobs"
    job: str = ""
    tab: Tab = "workers"
    worker: str = ""
    selected: str = ""
    cursor: int = 0
    help: bool = False
    #: Started for one named job: there is no list to go back to.
    pinned: bool = False
    #: Show every routine event instead of folding consecutive ones.
    unfolded: bool = False
    #: Filter of events, on every job's page.
    wanted: EventFilter = EVERYTHING

    def position(self, rows: Sequence[Row]) -> int:
        """Return the number of the selected row; its last position if it is gone."""
        ids = [row.id for row in rows]
        if self.selected in ids:
            return ids.index(self.selected)
        if not self.selected:
            return max(len(rows) - 1, 0) if self.follows_end else 0
        return min(self.cursor, max(len(rows) - 1, 0))

    @property
    def follows_end(self) -> bool:
        """True on pages whose newest row is last: without a selection they show the end."""
        return self.page == "worker" or (self.page == "job" and self.tab == "events")


def press(view: View, key: str, rows: Sequence[Row]) -> View | None:
    """Return the view after a key; None: leave. rows: the current rows of the page."""
    if view.help:
        return None if key == "q" else replace(view, help=False)
    if key == "?":
        return replace(view, help=True)
    if key == "q":
        return None
    if key in ("escape", "backspace", "left"):
        return _back(view)
    if view.page == "job" and (key in TAB_KEYS or key in ("tab", "back_tab")):
        return replace(view, tab=_tab(view.tab, key), selected="", cursor=0)
    if key == "a" and view.page == "job" and view.tab == "events":
        return replace(view, unfolded=not view.unfolded, selected="", cursor=0)
    if key in ("enter", "right"):
        return _open(view, rows)
    return _move(view, key, rows)


def _tab(tab: Tab, key: str) -> Tab:
    if key in TAB_KEYS:
        return TAB_KEYS[key]
    return TABS[(TABS.index(tab) + (1 if key == "tab" else -1)) % len(TABS)]


def _back(view: View) -> View:
    if view.page == "worker":
        return replace(view, page="job", worker="", selected=view.worker, cursor=0)
    if view.page == "job" and not view.pinned:
        return View(selected=view.job, wanted=view.wanted)
    return view


def _open(view: View, rows: Sequence[Row]) -> View:
    row = rows[view.position(rows)] if rows else None
    if row is None or not row.opens or view.page == "worker":
        return view
    if view.page == "jobs":
        return View(page="job", job=row.opens, wanted=view.wanted)
    return replace(view, page="worker", worker=row.opens, selected="", cursor=0)


def _move(view: View, key: str, rows: Sequence[Row]) -> View:
    at = view.position(rows)
    steps = {"up": -1, "down": 1, "page_up": -PAGE_ROWS, "page_down": PAGE_ROWS}
    if key in steps:
        at += steps[key]
    elif key in ("home", "end"):
        at = 0 if key == "home" else len(rows) - 1
    else:
        return view
    at = min(max(at, 0), max(len(rows) - 1, 0))
    at_end = view.follows_end and at == len(rows) - 1
    return replace(view, selected=rows[at].id if rows and not at_end else "", cursor=at)
