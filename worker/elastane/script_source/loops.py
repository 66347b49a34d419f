"""Finds the loops of a script: `for`, and expressions that loop (comprehensions, map)."""

from __future__ import annotations

import ast
from typing import Final

from elastane.script_source.names import dotted

Loop = ast.For | ast.AsyncFor
_Comprehension = ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp
_ITEM: Final = "item of map()"


class WrittenAsExpression(ast.For):
    """A `for` loop equivalent to an expression. origin: the expression."""

    origin: ast.expr


def as_loop(node: ast.AST) -> Loop | None:
    """Return the node as a `for` loop; None if it is not a loop."""
    if isinstance(node, Loop):
        return node
    if isinstance(node, _Comprehension):
        elements = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
        body: list[ast.stmt] = [ast.copy_location(ast.Expr(one), one) for one in elements]
        first, *inner = node.generators
        for part in reversed(inner):
            body = [_loop(node, part.target, part.iter, _where(part.ifs, body))]
        return _loop(node, first.target, first.iter, _where(first.ifs, body))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "map":
        if len(node.args) != 2:
            return None
        function, source = node.args
        item, target = (ast.copy_location(ast.Name(_ITEM, use), node) for use in (ast.Load(), ast.Store()))
        call = ast.copy_location(ast.Call(function, [item], []), node)
        return _loop(node, target, source, [ast.copy_location(ast.Expr(call), node)])
    return None


def loops_in(tree: ast.AST) -> list[Loop]:
    """Return all loops in a tree."""
    return [loop for node in ast.walk(tree) if (loop := as_loop(node)) is not None]


def node_of(loop: Loop) -> ast.AST:
    """Return the loop's node in the script's syntax tree."""
    return loop.origin if isinstance(loop, WrittenAsExpression) else loop


def loop_at(tree: ast.AST, line: int, *, generator: bool = False) -> Loop | None:
    """Return the innermost loop with its header in this line, or with a body that calls next() in it.

    generator: consider only generator expressions, which run in a frame of their own; False: only the others.
    """
    found = [
        loop
        for loop in loops_in(tree)
        if loop.lineno <= line <= _end(loop) and isinstance(node_of(loop), ast.GeneratorExp) is generator
    ]
    if found:
        return max(found, key=lambda one: (one.lineno, isinstance(one, WrittenAsExpression), one.col_offset))
    return _asking_at(tree, line)


def is_generator(loop: Loop) -> bool:
    """Return True if the loop passes its values to another loop: it yields, or is a generator expression."""
    return any(isinstance(node, ast.Yield | ast.YieldFrom) for node in ast.walk(loop)) or isinstance(
        node_of(loop), ast.GeneratorExp
    )


def iteration_counter(loop: Loop) -> str | None:
    """Return the variable in which enumerate() counts the turns; None if the header does not call it."""
    calls = (node for node in ast.walk(loop.iter) if isinstance(node, ast.Call))
    counts = any(isinstance(call.func, ast.Name) and call.func.id == "enumerate" for call in calls)
    parts = loop.target.elts if isinstance(loop.target, ast.Tuple | ast.List) else []
    first = parts[0] if parts else None
    return first.id if counts and isinstance(first, ast.Name) else None


def _end(loop: Loop) -> int:
    last = node_of(loop) if isinstance(loop, WrittenAsExpression) else loop.iter
    return getattr(last, "end_lineno", None) or loop.lineno


def _asking_at(tree: ast.AST, line: int) -> Loop | None:
    """Return the loop around a call of next() in this line."""
    found: list[ast.For | ast.While] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.For | ast.While) and node.lineno < line <= (node.end_lineno or node.lineno):
            calls = (one for part in node.body for one in ast.walk(part) if isinstance(one, ast.Call))
            if any(dotted(one.func) == "next" and one.lineno == line for one in calls):
                found.append(node)
    loop = max(found, key=lambda node: node.lineno, default=None)
    if isinstance(loop, ast.While):
        condition = ast.copy_location(ast.If(loop.test, [ast.Pass()], []), loop)
        target, source = (ast.copy_location(ast.Tuple([], use), loop) for use in (ast.Store(), ast.Load()))
        return _loop(loop, target, source, [condition, *loop.body])
    return loop


def _loop(origin: ast.AST, target: ast.expr, source: ast.expr, body: list[ast.stmt]) -> WrittenAsExpression:
    loop = WrittenAsExpression(target=target, iter=source, body=body, orelse=[])
    loop.origin = origin  # type: ignore[assignment]
    return ast.copy_location(loop, origin)


def _where(tests: list[ast.expr], body: list[ast.stmt]) -> list[ast.stmt]:
    for test in reversed(tests):
        body = [ast.copy_location(ast.If(test, body, []), test)]
    return body
