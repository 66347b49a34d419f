"""Imports with which a script begins.

What comes before its first other statement may be imported ahead of time, in the same order: nothing of the
script lies between that an import could depend on, such as a variable of the environment or a seed.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable


def leading_imports(tree: ast.Module, is_installed: Callable[[str], bool]) -> list[str]:
    """Return the modules that a script imports before anything else, in its order.

    Ends at the first other statement, and at the first import that `is_installed` denies of its top-level
    package: a module of the user's own may do anything when it is imported.
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
