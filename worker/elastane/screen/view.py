"""Which page is shown and what is selected on it, and what a key makes of that. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from elastane_proto.event_filter import EVERYTHING, EventFilter

Page = Literal["jobs", "job", "worker"]
Tab = Literal["workers", "ests", "tasks", "events", "curves"]

TABS: Final[tuple[Tab, ...]] = ("workers", "ests", "tasks", "events", "curves")
#: The key of each tab: its first letter, but for events, of which w(h)at happened comes to mind.
TAB_KEYS: Final[dict[str, Tab]] = {
    "w": "workers", "e": "ests", "t": "tasks", "v": "events", "c": "curves",
    "1": "workers", "2": "ests", "3": "tasks", "4": "events", "5": "curves",
}  # fmt: skip
PAGE_ROWS: Final = 10


@dataclass(frozen=True, slots=True)
class Row:
    """A row that can be selected. id: tells it from others as the list changes. opens: a job or worker."""

    id: str
    opens: str = ""


@dataclass(frozen=True, slots=True)
class View:
    """What is shown. selected: a row's id; empty: the first, of events the last. cursor: where it was."""

    page: Page = "jobs"
    job: str = ""
    tab: Tab = "workers"
    worker: str = ""
    selected: str = ""
    cursor: int = 0
    help: bool = False
    #: Began with one job: there is no list to go back to.
    pinned: bool = False
    #: Each routine event is shown, also of many that follow each other.
    unfolded: bool = False
    #: Which events are shown, on every job's page.
    wanted: EventFilter = EVERYTHING

    def position(self, rows: Sequence[Row]) -> int:
        """Number of the selected row; where it was, if it is gone."""
        ids = [row.id for row in rows]
        if self.selected in ids:
            return ids.index(self.selected)
        if not self.selected:
            return max(len(rows) - 1, 0) if self.follows_end else 0
        return min(self.cursor, max(len(rows) - 1, 0))

    @property
    def follows_end(self) -> bool:
        """Newest last: without a selection the end is shown."""
        return self.page == "worker" or (self.page == "job" and self.tab == "events")


def press(view: View, key: str, rows: Sequence[Row]) -> View | None:
    """The view after a key; None: leave. rows: of the page as it is."""
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
