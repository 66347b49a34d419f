"""What a viewer asks of a page, as written in its URL: filters, order, a part of the timeline. Pure.

A form sends it (GET), links lead to it, and the page's live updates follow it. All works without scripts;
with them the page is not loaded again, but its updates are followed with another query. Only
`JobQuery.filter` refuses anything: any other value that does not exist counts as not given.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, TypeVar
from urllib.parse import urlencode

from elastane_master.decisions.events import Rejection
from elastane_proto.event_filter import EventFilter, parse_since

TEXT_MAX = 200
"""Characters of a value that are read."""


@dataclass(frozen=True, slots=True)
class PageQuery:
    """Base: every field is a text; empty: not given."""

    NAMES: ClassVar[Mapping[str, str]] = {}
    """Names in the URL of fields that are named otherwise."""

    @classmethod
    def of(cls: type[Query], query: Mapping[str, str]) -> Query:
        """Read a URL's query; values longer than the forms allow are cut."""
        given = {one.name: query.get(cls.NAMES.get(one.name, one.name), "") for one in fields(cls)}
        return cls(**{name: value.strip()[:TEXT_MAX] for name, value in given.items()})

    def given(self) -> dict[str, str]:
        """Return what is given, by its name in the URL."""
        values = {self.NAMES.get(one.name, one.name): getattr(self, one.name) for one in fields(self)}
        return {name: value for name, value in values.items() if value}

    def query(self, **changes: Any) -> str:
        """Return the URL's query for this with some fields changed; empty if nothing is given."""
        changed = replace(self, **{name: str(value) for name, value in changes.items()}) if changes else self
        given = changed.given()
        return f"?{urlencode(given)}" if given else ""

    def link(self, **changes: Any) -> str:
        """Return the target of a link to this with some fields changed; never empty."""
        return self.query(**changes) or "?"

    def besides(self, *names: str) -> dict[str, str]:
        """Return what is given besides these: a form with the others has it as hidden fields."""
        return {name: value for name, value in self.given().items() if name not in names}


Query = TypeVar("Query", bound=PageQuery)


@dataclass(frozen=True, slots=True)
class JobQuery(PageQuery):
    """What is asked of a job's page.

    kind, worker, since, search: which events; kinds and workers are separated by commas. routine: "each" to
    show routine events one by one. span, began, until: part of the timeline (`time_axis.window`). scale,
    smooth: how curves are drawn (`curve_drawing.Scale`). page: of the workers, from 1.
    """

    kind: str = ""
    worker: str = ""
    since: str = ""
    search: str = ""
    routine: str = ""
    span: str = ""
    began: str = ""
    until: str = ""
    scale: str = ""
    smooth: str = ""
    page: str = ""

    @property
    def each_event(self) -> bool:
        """True if routine events are not folded."""
        return self.routine == "each"

    def filter(self, now: float) -> EventFilter:
        """Return the filter for events. now: seconds since the Unix epoch. Raises Rejection if invalid."""
        try:
            first, since = parse_since(self.since, now) if self.since else (0, 0.0)
        except ValueError as error:
            raise Rejection("invalid_argument", str(error), field="since") from None
        return EventFilter(_names(self.kind), _names(self.worker), first, since, self.search)


@dataclass(frozen=True, slots=True)
class JobsQuery(PageQuery):
    """What is asked of the list of jobs.

    search: part of a name. state: one of `job_list.STATES`. sort: one of `job_list.ORDERS`. page: from 1.
    """

    search: str = ""
    state: str = ""
    sort: str = ""
    page: str = ""

    @property
    def page_number(self) -> int:
        return page_number(self.page)


def page_number(text: str) -> int:
    """Read the number of a page, from 1; what is none counts as 1."""
    return max(int(text), 1) if text.isascii() and text.isdigit() and len(text) < 7 else 1


def _names(text: str) -> tuple[str, ...]:
    return tuple(name for name in re.split(r"[,\s]+", text) if name)
