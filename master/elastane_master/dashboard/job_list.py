"""Rows of the list of jobs: what is searched, in which order, which page of it. Pure but for `row_of`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from elastane_master.dashboard.page_query import JobsQuery
from elastane_master.decisions.state import OVER
from elastane_master.decisions.views import JobView, job_view
from elastane_master.jobs.job_server import JobServer

ROWS_SHOWN: Final = 50
"""Of one page."""


@dataclass(frozen=True, slots=True)
class JobRow:
    """A job of the list. samples_per_second, eta_seconds: None: not known, or the job is over.

    spark: points of the line of a logged value; empty: none is drawn. logged: its name and last value.
    """

    view: JobView
    samples_per_second: float | None = None
    eta_seconds: float | None = None
    spark: str = ""
    logged: str = ""

    @property
    def over(self) -> bool:
        return self.view.phase in OVER

    @property
    def share(self) -> float:
        """Part of the job that is done, from 0 to 1; 0: not known."""
        total = self.view.steps_per_epoch * self.view.epochs
        if self.view.tasks is not None:
            return self.view.tasks.done / self.view.tasks.total if self.view.tasks.total else 0.0
        return min(self.view.step / total, 1.0) if total else 0.0


def row_of(server: JobServer, spark: tuple[str, str] = ("", "")) -> JobRow:
    """Return the row of a job that is served. spark: points and text of its line."""
    machine, now = server.machine, server.clock()
    view = job_view(machine, now)
    if view.phase in OVER:
        return JobRow(view, spark=spark[0], logged=spark[1])
    queues = machine.queues
    found = [queue.progress(now) for queue in queues.dynamic.values()]
    if queues.lockstep is not None:
        found = [queues.lockstep.progress(now)]
    left = [one.eta_seconds for one in found if not one.complete]
    eta = None if not left or None in left else max(one for one in left if one is not None)
    rate = sum(one.samples_per_second for one in found) if found else None
    return JobRow(view, rate, eta, *spark)


_ORDERS: Final[dict[str, Callable[[JobRow], float | str]]] = {
    "": lambda row: row.view.name,
    "newest": lambda row: -row.view.created_at,
    "progress": lambda row: -row.share,
    "speed": lambda row: -(row.samples_per_second or 0.0),
    "left": lambda row: row.eta_seconds if row.eta_seconds is not None else math.inf,
    "cost": lambda row: -row.view.cost.spent_micros,
}
ORDERS: Final = tuple(_ORDERS)
"""Values of `JobsQuery.sort`; "": by name."""

STATES: Final = ("", "active", "running", "waiting", "over")
"""Values of `JobsQuery.state`; "": all; "active": not over; "waiting": neither running nor over."""


@dataclass(frozen=True, slots=True)
class Listing:
    """A page of the list. count: rows on all pages. of: jobs without the filter. page: from 1."""

    rows: tuple[JobRow, ...]
    count: int
    of: int
    page: int
    pages: int


def select(rows: Sequence[JobRow], asked: JobsQuery) -> Listing:
    """Return the page that is asked for."""
    wanted = asked.search.casefold()
    found = [
        row
        for row in rows
        if wanted in row.view.name.casefold() and _is_in(row, asked.state if asked.state in STATES else "")
    ]
    found.sort(key=lambda row: row.view.name)
    found.sort(key=_ORDERS.get(asked.sort, _ORDERS[""]))
    pages = max(math.ceil(len(found) / ROWS_SHOWN), 1)
    page = min(asked.page_number, pages)
    shown = found[(page - 1) * ROWS_SHOWN : page * ROWS_SHOWN]
    return Listing(tuple(shown), len(found), len(rows), page, pages)


def _is_in(row: JobRow, state: str) -> bool:
    running = row.view.phase == "running"
    return {
        "": True,
        "active": not row.over,
        "running": running,
        "waiting": not running and not row.over,
        "over": row.over,
    }[state]
