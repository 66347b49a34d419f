"""Names in a syntax tree."""

from __future__ import annotations

import ast
from collections.abc import Iterator

Function = ast.FunctionDef | ast.AsyncFunctionDef


def dotted(node: ast.AST | None) -> str | None:
    """ "a.b" of a name with attributes; None of anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        owner = dotted(node.value)
        return None if owner is None else f"{owner}.{node.attr}"
    return None


def walk_here(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes below in order, itself included, without bodies of functions and classes."""
    yield node
    if isinstance(node, Function | ast.Lambda | ast.ClassDef):
        return
    for child in ast.iter_child_nodes(node):
        yield from walk_here(child)
