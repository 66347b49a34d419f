"""Round ticks on a time axis, and the links to its parts."""

from __future__ import annotations

import pytest

from elastane_master.dashboard.page_query import JobQuery
from elastane_master.dashboard.time_axis import TICKS_MAX, Window, tick_text, ticks, window, zooms

DAY = 86_400.0


@pytest.mark.parametrize("span", [0.0, 0.3, 1.0, 7.0, 59.0, 61.0, 1000.0, 3600.0, 5 * DAY, 90 * DAY, 9e9])
def test_ticks_are_round_few_and_inside(span: float) -> None:
    began = 1_795_829_901.7
    found = ticks(began, began + span)
    assert len(found) <= TICKS_MAX and found == sorted(set(found))
    assert all(began <= at <= began + span for at in found)
    if span >= 7:
        assert len(found) >= 3
        assert all(round(at, 3) == round(at) for at in found[: span < 9e9])


def test_ticks_are_labelled_as_far_as_they_differ() -> None:
    at = 1_795_829_880.0
    assert ticks(at - 1, at + 61) == [at + 15 * number for number in range(5)]
    assert [tick_text(at, span) for span in (59.0, 700.0, DAY)] == ["01:38:00", "01:38", "11-28 01:38"]


def test_which_part_is_asked_for() -> None:
    assert window(0.0, 100.0, "", "", "") is None
    assert window(0.0, 100.0, "10", "", "") == Window(90.0, 100.0, follows=True)
    assert window(0.0, 100.0, "100", "", "") is None, "that is all of it"
    assert window(0.0, 100.0, "", "60", "40") == Window(40.0, 60.0, follows=False)
    assert window(0.0, 100.0, "", "-5", "40") == Window(0.0, 40.0, follows=False)
    assert window(0.0, 100.0, "", "50", "50.1") == Window(49.55, 50.55, follows=False)
    assert window(0.0, 100.0, "", "500", "600") == Window(99.5, 100.5, follows=False), "not before, not after"
    for nonsense in ("nan", "inf", "x", "1e99", "-3"):
        assert window(0.0, 100.0, nonsense, nonsense, "") is None


def test_links_lead_in_out_and_aside() -> None:
    def links(part: Window | None, began: float = 0.0, ended: float = 1000.0) -> dict[str, str]:
        return {one.key: JobQuery(kind="x").query(**one.changes) for one in zooms(began, ended, part)}

    assert links(None) == {
        "all": "?kind=x",
        "last-60": "?kind=x&span=60",
        "last-600": "?kind=x&span=600",
        "in": "?kind=x&span=500",
    }
    found = links(Window(400.0, 600.0, follows=False))
    assert found["in"] == "?kind=x&began=450.0&until=550.0"
    assert found["out"] == "?kind=x&began=300.0&until=700.0"
    assert found["earlier"] == "?kind=x&began=300.0&until=500.0"
    assert found["later"] == "?kind=x&began=500.0&until=700.0"
    newest = links(Window(940.0, 1000.0, follows=True))
    assert newest["in"] == "?kind=x&span=30" and newest["out"] == "?kind=x&span=120" and "later" not in newest
    assert newest["earlier"] == "?kind=x&began=910.0&until=970.0"
    assert [one.key for one in zooms(0.0, 1000.0, Window(940.0, 1000.0, follows=True)) if one.on] == [
        "last-60"
    ]
    assert list(links(None, ended=1.5)) == ["all"]
