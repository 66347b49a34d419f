"""When `make bench-check` calls a ratio worse, and what the page of figures says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from bench import of_micro, shortened
from bench_check import compare, least_worse
from bench_page import write_page
from harness import Report, Row, Series


def figures(*rows: Row, quick: bool = True) -> dict[str, Any]:
    return Report("dispatch", "Tasks.", list(rows), quick=quick).as_dict()


def row(ours: float, peer: float = 100.0, **more: Any) -> Row:
    return Row("one", Series([ours], "ms"), Series([peer], "ms"), "peer", **more)


@pytest.mark.parametrize(
    ("before", "after", "better", "regression"),
    [
        (100.0, 129.0, "lower", False),
        (100.0, 131.0, "lower", True),
        (100.0, 60.0, "lower", False),
        (130.0, 101.0, "higher", False),
        (131.0, 100.0, "higher", True),
        (100.0, 200.0, "higher", False),
    ],
)
def test_ratio_is_worse_beyond_noise(before: float, after: float, better: str, regression: bool) -> None:
    kept, now = figures(row(before, better=better)), figures(row(after, better=better))
    [found] = compare("dispatch", kept, now)
    assert found.regression is regression


def test_difference_within_slack_is_none() -> None:
    kept = figures(row(1.0, 1.0, target=1.02, slack=1.0))
    [small] = compare("d", kept, figures(row(1.9, 1.0, target=1.02, slack=1.0)))
    [large] = compare("d", kept, figures(row(2.1, 1.0, target=1.02, slack=1.0)))
    assert (small.regression, large.regression) == (False, True)


def test_case_that_is_gone_is_a_regression_within_one_form_only() -> None:
    kept = figures(row(1.0))
    [gone] = compare("d", kept, figures())
    assert gone.regression and gone.now is None
    assert compare("d", kept, figures(quick=False)) == []


def test_what_is_worse_once_is_a_busy_moment_and_twice_a_regression() -> None:
    kept = figures(row(100.0))
    fine, slow, slower, gone = (
        compare("d", kept, now)
        for now in (figures(row(100.0)), figures(row(150.0)), figures(row(170.0)), figures())
    )
    assert [one.regression for one in least_worse(slow, fine)] == [False]
    assert [one.regression for one in least_worse(gone, fine)] == [False]
    assert [one.regression for one in least_worse(slow, slower)] == [True]
    assert [one.regression for one in least_worse(slow, gone)] == [True]
    assert least_worse(slow, []) == slow


def test_case_without_a_peer_is_not_compared() -> None:
    alone = Row("alone", Series([1.0], "ms"))
    assert compare("d", figures(alone), figures()) == []


def test_two_cases_of_one_text_are_refused() -> None:
    with pytest.raises(ValueError, match="called the same: one"):
        figures(row(1.0), row(2.0))


def test_micro_benchmarks_stand_beside_the_reference() -> None:
    stats = {"min": 1e-6, "q1": 2e-6, "median": 3e-6}
    double = {name: value * 2 for name, value in stats.items()}
    found = of_micro(
        {"benchmarks": [{"name": "test_lease", "stats": double}, {"name": "test_reference", "stats": stats}]}
    )
    [only] = found.rows
    assert (only.case, only.ratio) == ("lease", 2.0)


def test_many_values_are_kept_as_their_range_and_median() -> None:
    many = Row("many", Series([float(n) for n in range(99)], "ms"), Series([2.0] * 99, "ms"), "peer")
    before = figures(many)
    [kept] = shortened(figures(many))["rows"]
    assert kept["ours"]["values"] == [0.0, 49.0, 98.0] and kept["peer"]["values"] == [2.0] * 3
    assert kept["ratio"] == before["rows"][0]["ratio"] == 24.5
    assert compare("d", before, {**before, "rows": [kept]})[0].regression is False


def test_page_names_missed_targets_with_their_cause(tmp_path: Path) -> None:
    changes = tmp_path / "changes"
    changes.mkdir()
    (changes / "part.md").write_text("| change | predicted | measured |\n|---|---|---|\n| less | 2x | 3x |\n")
    good = row(90.0, target=1.0)
    bad = Row("two", Series([3.0, 5.0, 4.0], "ms"), Series([2.0], "ms"), "peer", target=1.1, note="a | b")
    page = tmp_path / "benchmarks.md"

    def draw(name: str, report: dict[str, Any], folder: Path) -> list[tuple[str, str]]:
        (folder / "x.svg").write_text("")
        return [("x.svg", "ratios")]

    write_page(page, {"dispatch": figures(good, bad)}, changes, draw)
    text = page.read_text()
    assert "1 of 2 are met." in text
    assert "| [dispatch](#dispatch): two | <= 1.1x | 2x | a \\| b |" in text
    assert "| two | 4 [3-5] ms | 2 ms (peer) | 2 | <= 1.1x | **missed** |" in text
    assert "![ratios](benchmarks/x.svg)" in text and "### part\n\n| change |" in text
