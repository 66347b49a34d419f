"""docs/promises.md names tests that there are, and that `.ci/run` runs."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_NAMED = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?`")


def test_each_promise_is_shown_by_a_test_that_there_is_and_that_decides_on_changes() -> None:
    named = _NAMED.findall((ROOT / "docs" / "promises.md").read_text())
    assert sum(bool(test) for _, test in named) > 20
    for file, test in named:
        tests = _decides((ROOT / file).read_text())
        assert not test or test in tests, f"{file} has no {test}"
        assert all(tests[one] for one in ([test] if test else tests)), (
            f"{file} {test} is left to make test-further"
        )


def _decides(source: str) -> dict[str, bool]:
    """The tests of a file; False for one of which no case is left to `.ci/run`."""
    tree = ast.parse(source)
    whole = [
        one
        for one in tree.body
        if isinstance(one, ast.Assign) and ast.unparse(one.targets[0]) == "pytestmark"
    ]
    left_out = any("further" in ast.unparse(one.value) for one in whole)
    return {
        one.name: not left_out and not any(ast.unparse(mark) == "further" for mark in one.decorator_list)
        for one in tree.body
        if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef) and one.name.startswith("test_")
    }


def test_what_is_left_out_is_seen() -> None:
    marked = "@further\ndef test_a(): ...\n@further_cases\ndef test_b(): ...\n"
    assert _decides(marked) == {"test_a": False, "test_b": True}
    assert _decides(f"pytestmark = [further]\n{marked}") == {"test_a": False, "test_b": False}
