"""What benchmarks import from the product is there: they run seldom, and no type checker reads them."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SCRIPTS = sorted(ROOT.glob("benchmarks/**/*.py"))


def imported(script: Path) -> list[tuple[str, str]]:
    """Return what a script imports from the product, as (module, name)."""
    return [
        (node.module, alias.name)
        for node in ast.walk(ast.parse(script.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("elastane")
        for alias in node.names
    ]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: str(script.relative_to(ROOT)))
def test_what_a_benchmark_imports_is_there(script: Path) -> None:
    for module, name in imported(script):
        if not hasattr(importlib.import_module(module), name):
            importlib.import_module(f"{module}.{name}")
