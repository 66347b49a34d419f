"""The table of versions is what was run, and the wheel allows no version beyond its ends."""

from __future__ import annotations

import tomllib
from pathlib import Path

import compatibility
import pytest
from compatibility import Row, pinned_torch, read_rows, render, with_row
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
OLD = Row("3.11.7", "2.13.0+cpu", "2.4.6", "1625 passed", "equal", "2026-11-01")
NEWER_TORCH = OLD._replace(torch="2.14.1")


def test_a_row_replaces_the_one_of_the_same_versions_alone() -> None:
    again = OLD._replace(python="3.11.9", date="2026-12-01")
    assert with_row([NEWER_TORCH, OLD], again) == [again, NEWER_TORCH]
    other = OLD._replace(python="3.9.1", torch="2.6.0")
    assert with_row([OLD], other) == [other, OLD]  # 3.9 is older than 3.11


def test_the_table_stands_between_its_marks() -> None:
    page = f"before\n{compatibility.BEGIN}old\n{compatibility.END}after\n"
    made = render(page, [OLD, OLD._replace(torch="", numpy="", verify="")])
    assert made.startswith(f"before\n{compatibility.BEGIN}| Python | torch |")
    assert made.endswith(f"{compatibility.END}after\n")
    assert "| 3.11.7 | 2.13.0+cpu | 2.4.6 | 1625 passed | equal | 2026-11-01 |\n" in made
    assert "| 3.11.7 | none |" in made
    assert "old" not in made
    with pytest.raises(ValueError, match="no place"):
        render("before\n", [OLD])


@pytest.mark.parametrize(
    ("tests", "verified", "good"),
    [
        ("9 passed", "equal", True),
        ("9 passed", "", True),
        ("1 failed, 8 passed", "equal", False),
        ("9 passed", "failed", False),
        ("9 passed, 1 error", "equal", False),
        ("failed", "equal", False),
    ],
)
def test_a_row_with_a_failure_is_none_to_rely_on(tests: str, verified: str, good: bool) -> None:
    assert OLD._replace(tests=tests, verify=verified).good is good


def test_what_the_suite_names_is_there() -> None:
    for name in (*compatibility.TESTS, *compatibility.TESTS_WITHOUT_TORCH):
        assert list((ROOT / name).glob("test_*.py")), name
    assert Path(compatibility.VERIFY[-1]).is_file()


def test_the_page_has_the_rows_that_were_made_and_all_of_them_are_good() -> None:
    rows = read_rows(compatibility.ROWS.read_text())
    page = compatibility.PAGE.read_text()
    assert render(page, rows) == page, "run: python tools/compatibility.py --page"
    assert [row for row in rows if not row.good] == []


def test_the_wheel_allows_what_was_run_and_nothing_beyond_both_ends() -> None:
    rows = read_rows(compatibility.ROWS.read_text())
    [torch] = [
        one for one in map(Requirement, PROJECT["optional-dependencies"]["worker"]) if one.name == "torch"
    ]
    pythons = SpecifierSet(PROJECT["requires-python"])
    assert [row for row in rows if Version(row.python) not in pythons] == []
    run = sorted(Version(Version(row.torch).public) for row in rows if row.torch)
    assert [version for version in run if version not in torch.specifier] == []
    bounds = {one.operator: Version(one.version) for one in torch.specifier}
    assert bounds[">="].release[:2] == run[0].release[:2]
    assert bounds["<"].release[:2] == (run[-1].major, run[-1].minor + 1)
    named = {one.rpartition(" :: ")[2] for one in PROJECT["classifiers"] if ":: Python ::" in one}
    assert named == {compatibility.series(row.python) for row in rows}


def test_the_pinned_torch_is_found() -> None:
    pinned = pinned_torch((ROOT / "constraints.txt").read_text())
    assert Version(pinned) in SpecifierSet(">=2.13")
    with pytest.raises(AssertionError):
        pinned_torch("numpy==2\n")
