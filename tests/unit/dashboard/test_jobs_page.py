"""The list of jobs: what is searched, in which order, page by page; and the pages of a job's many workers."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest

from elastane_master.dashboard.job_list import ORDERS, ROWS_SHOWN, STATES, JobRow, select
from elastane_master.dashboard.page_query import JobQuery, JobsQuery
from elastane_master.dashboard.pages import Listed, Visitor, asked_parts, jobs_part


def row(name: str, phase: str = "running", *, step: int = 0, **more: Any) -> JobRow:
    rate, eta = more.pop("rate", None), more.pop("eta", None)
    view = SimpleNamespace(
        name=name,
        phase=phase,
        reason="x",
        step=step,
        steps_per_epoch=10,
        epochs=1,
        tasks=None,
        workers=(),
        settings=SimpleNamespace(ests=4),
        created_at=more.pop("created", 0.0),
        cost=SimpleNamespace(spent_micros=more.pop("micros", 0), currency="USD"),
    )
    return JobRow(view, rate, eta, **more)  # type: ignore[arg-type]


ROWS = [
    row("b", step=2, rate=5.0, eta=9.0, created=1.0, spark="0,1 2,3", logged="loss 0.5"),
    row("a", "waiting", created=3.0),
    row("c", "succeeded", step=10, micros=7_000_000, created=2.0),
    row("B2", step=4, rate=9.0, eta=99.0, micros=1_000_000),
]


def names(**asked: str) -> str:
    return " ".join(one.view.name for one in select(ROWS, JobsQuery.of(asked)).rows)


def test_jobs_are_searched_and_ordered() -> None:
    assert names() == "B2 a b c" and names(search="B") == "B2 b" and names(search="x") == ""
    found = {state: names(state=state) for state in STATES}
    assert found == {"": "B2 a b c", "active": "B2 a b", "running": "B2 b", "waiting": "a", "over": "c"}
    ordered = {order: names(sort=order) for order in ORDERS}
    assert ordered == {
        "": "B2 a b c",
        "newest": "a c b B2",
        "progress": "c B2 b a",
        "speed": "B2 b a c",
        "left": "b B2 a c",
        "cost": "c B2 a b",
    }
    assert names(sort="nonsense", state="nonsense", page="nonsense") == names()


def test_many_jobs_are_shown_page_by_page() -> None:
    many = [row(f"j{number:03}") for number in range(2 * ROWS_SHOWN + 1)]
    last = select(many, JobsQuery(page="9"))
    assert (last.page, last.pages, last.count, last.of) == (3, 3, len(many), len(many))
    assert [one.view.name for one in last.rows] == [f"j{2 * ROWS_SHOWN:03}"]
    html = jobs_part(Listed(many), JobsQuery(sort="cost", page="2"))
    assert html.count('type="checkbox"') == ROWS_SHOWN and "page 2 of 3" in html
    assert 'href="?sort=cost&amp;page=3"' in html and 'href="?sort=cost&amp;page=1"' in html
    assert re.search(r'aria-sort="descending"><a class="ask" id="sort-cost" href="\?sort=cost"', html)


def test_a_row_says_what_is_known() -> None:
    html = jobs_part(Listed(ROWS), JobsQuery())
    assert 'points="0,1 2,3"' in html and "loss 0.5" in html and "7.00 USD" in html and "9.0 s" in html
    assert "None of 4 jobs is wanted." in jobs_part(Listed(ROWS), JobsQuery(search="x"))


@pytest.mark.parametrize(("page", "rows", "first"), [("", 50, "w499"), ("2", 50, "w49"), ("11", 50, "w449")])
def test_five_hundred_workers_are_shown_page_by_page(page: str, rows: int, first: str) -> None:
    workers = [
        SimpleNamespace(
            worker=f"w{number}",
            place="standby" if number == 499 else "member",
            host="h",
            pid=1,
            capacity="spot",
            start=number,
            end=number + 1,
            applied_step=3,
            reason="x",
        )
        for number in range(500)
    ]
    facts = SimpleNamespace(
        view=SimpleNamespace(name="j", workers=workers),
        heard={one.worker: 1.0 for one in workers},
        notes=(),
        curves={},
        curves_left_out=0,
        now=9.0,
    )
    visitor = Visitor("", known=False, acts=True)
    html = asked_parts(facts, visitor, JobQuery(kind="x", page=page))["workers"]  # type: ignore[arg-type]
    found = re.findall(r'title="h pid 1">(w\d+)<', html)
    assert len(found) == rows and found[0] == first and len(html) < 60_000
    assert "499 member, 1 standby" in html and "of 10" in html
