"""docs/promises.md names tests that there are."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_NAMED = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?`")


def test_each_promise_is_shown_by_a_test_that_there_is() -> None:
    named = _NAMED.findall((ROOT / "docs" / "promises.md").read_text())
    assert sum(bool(test) for _, test in named) > 20
    for file, test in named:
        tree = ast.parse((ROOT / file).read_text())
        tests = {one.name for one in tree.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)}
        assert not test or test in tests, f"{file} has no {test}"
