"""docs/reliability.md: the tests it names exist, every fault of `elastane chaos` is on it and measured."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from elastane_cli.chaos.run import FAULTS

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "reliability.md").read_text()
ROWS = [
    [cell.strip() for cell in line.strip().strip("|").split("|")]
    for line in PAGE.splitlines()
    if line.startswith("| ") and not line.startswith("| fault ")
]
#: The rows of the design's fault table.
DESIGN = [
    "worker killed", "worker killed for its memory", "silent node", "stuck trainer", "spot notice",
    "all workers gone", "master killed", "master upgraded", "Redis or Valkey killed", "two masters",
    "partition", "poison task", "malformed request", "oversized request",
    "stale request", "unauthenticated request",
]  # fmt: skip
TESTS = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))


def faults_of(command: str) -> list[str]:
    found = re.search(r"--faults ([a-z,-]+)", command)
    return found[1].split(",") if found else []


def test_every_row_of_the_design_is_there() -> None:
    names = [row[0] for row in ROWS]
    assert [name for name in DESIGN if name not in names] == []
    assert len(names) == len(set(names))


@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_row_names_tests_that_exist(row: list[str]) -> None:
    assert len(row) == 5, row
    named = re.findall(r"`(test_\w+)`", row[3])
    assert named, row
    assert [name for name in named if f"def {name}(" not in TESTS] == []


def test_every_fault_is_on_the_page_and_injected_by_a_test() -> None:
    listed = [name for row in ROWS for name in faults_of(row[4])]
    assert sorted(listed) == sorted(FAULTS)
    injected = (ROOT / "tests" / "integration" / "test_chaos_faults.py").read_text()
    assert [name for name in FAULTS if f'"{name}"' not in injected] == []


def test_every_injected_row_is_measured() -> None:
    for row in ROWS:
        measured = re.findall(r"\d+\.\d+ \(\d+\.\d+ to \d+\.\d+\)", row[2])
        assert len(measured) == len(faults_of(row[4])), row
    assert "@@" not in PAGE
