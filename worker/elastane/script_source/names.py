"""Helpers for names in a syntax tree."""

from __future__ import annotations

import ast
from collections.abc import Container, Iterable, Iterator

Function = ast.FunctionDef | ast.AsyncFunctionDef


def dotted(node: ast.AST | None) -> str | None:
    """Return "a.b" for a name or a chain of attributes; None for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        owner = dotted(node.value)
        return None if owner is None else f"{owner}.{node.attr}"
    return None


def prefixes(name: str) -> Iterator[str]:
    """Yield "a", "a.b" and "a.b.c" for "a.b.c"."""
    parts = name.split(".")
    yield from (".".join(parts[:count]) for count in range(1, len(parts) + 1))


def within(name: str, names: Container[str]) -> bool:
    """Return True if `name` is one of the names, or an attribute of one."""
    return any(prefix in names for prefix in prefixes(name))


def innermost(node: ast.expr) -> ast.expr:
    """Return the object at the start of a chain of calls: `a` for `a.mul_(x).add_(y)`."""
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        node = node.func.value
    return node


def is_whole(part: ast.expr) -> bool:
    """Return True if the index selects a whole tensor: [:] or [...]."""
    if isinstance(part, ast.Slice):
        return part.lower is None and part.upper is None and part.step is None
    return isinstance(part, ast.Constant) and part.value is Ellipsis


def stored(node: ast.AST) -> set[str]:
    """Return all names and attributes that are assigned in the tree."""
    stores = (one for one in ast.walk(node) if isinstance(getattr(one, "ctx", None), ast.Store))
    return {name for one in stores if (name := dotted(one)) is not None}


def parameters(function: Function | ast.Lambda) -> list[ast.arg]:
    """Return all parameters, including *args and **kwargs."""
    given = function.args
    every = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
    return [argument for argument in every if argument is not None]


def walk_here(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the node and all nodes below it in order, except those inside functions and classes."""
    yield node
    if isinstance(node, Function | ast.Lambda | ast.ClassDef):
        return
    for child in ast.iter_child_nodes(node):
        yield from walk_here(child)


def walk_scope(statements: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Yield the nodes of all statements, as `walk_here` does."""
    for statement in statements:
        yield from walk_here(statement)
