"""Finds the imports at the start of a script, which a preloaded worker may run ahead of time.

Only imports before the script's first other statement qualify, in their order: a later import could depend on
what the script has done, such as setting an environment variable or a seed.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable


def leading_imports(tree: ast.Module, is_installed: Callable[[str], bool]) -> list[str]:
    """Return the modules that a script imports before anything else, in its order.

    Stops at the first other statement, and at the first import whose top-level package is not `is_installed`:
    the user's own modules may do anything when they are imported.
    """
    names: list[str] = []
    for number, node in enumerate(tree.body):
        if number == 0 and _is_docstring(node):
            continue
        match node:
            case ast.Import(aliases):
                found = [alias.name for alias in aliases]
            case ast.ImportFrom("__future__"):
                continue
            case ast.ImportFrom(str(module), _, 0):
                found = [module]
            case _:
                return names
        for name in found:
            if not is_installed(name.partition(".")[0]):
                return names
            names.append(name)
    return names


def _is_docstring(node: ast.stmt) -> bool:
    match node:
        case ast.Expr(ast.Constant(str())):
            return True
    return False


def is_standard_library(name: str) -> bool:
    """Return True for a top-level module of Python itself."""
    return name in sys.stdlib_module_names
