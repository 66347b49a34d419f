"""Recognises values rebuilt when a size changes: `if mask is None or mask.size(0) != len(x)`."""

from __future__ import annotations

import ast
from collections.abc import Container
from typing import Final

from elastane.script_source.callees import Callees, Scope
from elastane.script_source.names import dotted
from elastane.script_source.words import KEEPS_SHAPE, MAKES

_LIBRARIES: Final = frozenset({"torch", "np", "numpy", "nn.Transformer", "torch.nn.Transformer"})


def renews(test: ast.expr, target: ast.expr, value: ast.expr, callees: Callees, scope: Scope) -> bool:
    """Return True for `if mask is None or mask.size(0) != len(x): mask = make(len(x))`.

    Such a value is the same as if it were rebuilt in every turn, so it carries no state. This holds only if
    a pure function makes it from nothing but the sizes that the condition compares.
    """
    name = dotted(target)
    tests = test.values if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.Or) else [test]
    compared = set[str]()
    for one in tests:
        match one:
            case ast.Compare(left=left, ops=[ast.Is()], comparators=[ast.Constant(value=None)]):
                if dotted(left) != name:
                    return False
            case ast.Compare(left=left, ops=[ast.NotEq()], comparators=[right]):
                sides = [side for side in (left, right) if not _mentions(side, name)]
                if len(sides) != 1 or not _is_size(left if sides == [right] else right, name):
                    return False
                compared.add(ast.unparse(sides[0]))
            case _:
                return False
    return bool(name and compared) and _is_made_of(value, compared, callees, scope)


def _is_made_of(node: ast.expr, sizes: Container[str], callees: Callees, scope: Scope) -> bool:
    """Return True if the value is determined by the given sizes alone.

    node: the expression that makes it. sizes: source text of the sizes.
    """
    if isinstance(node, ast.Constant):
        return True
    match node:
        case ast.BinOp(left=left, right=right):
            return _is_made_of(left, sizes, callees, scope) and _is_made_of(right, sizes, callees, scope)
        case ast.UnaryOp(operand=one):
            return _is_made_of(one, sizes, callees, scope)
        case ast.Compare(left=left, comparators=[right]):
            return _is_made_of(left, sizes, callees, scope) and _is_made_of(right, sizes, callees, scope)
        case ast.Attribute(value=ast.Name(id="torch")):
            return True  # a dtype
        case ast.Call(func=function, args=arguments, keywords=named):
            owner = dotted(function.value) if isinstance(function, ast.Attribute) else None
            word = function.attr if isinstance(function, ast.Attribute) else dotted(function)
            others = [*arguments, *(one.value for one in named)]
            if word in MAKES and owner in _LIBRARIES and arguments:
                first = arguments[0].elts if isinstance(arguments[0], ast.Tuple) else arguments
                parts = [*first, *others[1:]]
                return ast.unparse(parts[0]) in sizes and all(
                    ast.unparse(one) in sizes or _is_made_of(one, sizes, callees, scope) for one in parts
                )
            if word in KEEPS_SHAPE:
                if isinstance(function, ast.Attribute) and owner not in _LIBRARIES:
                    others.append(function.value)
                return all(_is_made_of(one, sizes, callees, scope) for one in others)
            callee = callees.of(function, scope)
            if callee is None or callee.own is not None or len(callee.function.args.args) != len(others):
                return False
            names = [one.arg for one in callee.function.args.args]
            given = {one for one, value in zip(names, others, strict=True) if ast.unparse(value) in sizes}
            body = callee.function.body
            made = body[0] if len(body) == 1 and len(given) == len(names) else None
            return (
                isinstance(made, ast.Return)
                and made.value is not None
                and _is_made_of(made.value, given, callees, scope)
            )
    return False


def _mentions(node: ast.AST, name: str | None) -> bool:
    return any(dotted(one) == name for one in ast.walk(node))


def _is_size(node: ast.expr, name: str | None) -> bool:
    """Return True for the first dimension of a value: len(name), name.size(0), or name.shape[0]."""
    match node:
        case (
            ast.Call(func=ast.Name(id="len"), args=[one])
            | ast.Call(func=ast.Attribute(value=one, attr="size"), args=[ast.Constant(value=0)])
            | ast.Subscript(value=ast.Attribute(value=one, attr="shape"), slice=ast.Constant(value=0))
        ):
            return dotted(one) == name
    return False
