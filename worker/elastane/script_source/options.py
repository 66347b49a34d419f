"""Evaluates conditions that depend only on a script's options, using the values of its names."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Container, Mapping
from typing import Any, Final

from elastane.script_source.names import dotted

_PLAIN: Final = (int, float, str, bytes, type(None), tuple, list, set, frozenset, dict)
_FIXED: Final = (int, float, str, bytes, type(None), tuple, frozenset)
_COMPARES: Final[dict[type[ast.cmpop], Callable[[Any, Any], bool]]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda one, many: one in many,
    ast.NotIn: lambda one, many: one not in many,
}


class UnknownValueError(Exception):
    """The value is unknown, or changes while the loop runs."""


#: Besides our own error, those that comparing arrays and tensors may raise.
_NO_ANSWER: Final = (UnknownValueError, TypeError, ValueError, RuntimeError)


def settled(test: ast.expr, names: Mapping[str, object], moving: Container[str] = ()) -> bool | None:
    """Return the truth of a condition on plain, constant values such as options; None if it is unknown.

    moving: names and attributes that change while the code runs.
    """
    try:
        value = value_of(test, names, moving)
    except _NO_ANSWER:
        return None
    return bool(value) if isinstance(value, _PLAIN) else None


def is_fixed(node: ast.expr, names: Mapping[str, object]) -> bool:
    """Return True if the expression has a known, immutable value."""
    try:
        return isinstance(value_of(node, names), _FIXED)
    except _NO_ANSWER:
        return False


def value_of(node: ast.expr, names: Mapping[str, object], moving: Container[str] = ()) -> object:
    """Evaluate an expression without reading properties or calling methods. Raises UnknownValueError."""
    match node:
        case ast.Constant(value=value):
            return value
        case ast.Tuple(elts=elements) | ast.List(elts=elements) | ast.Set(elts=elements):
            return tuple(value_of(element, names, moving) for element in elements)
        case ast.Name(id=name) if name in names and name not in moving:
            return names[name]
        case ast.Attribute(value=owner, attr=name) if dotted(node) not in moving:
            return _attribute(value_of(owner, names, moving), name)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return not _plain(value_of(operand, names, moving))
        case ast.BoolOp(op=joined, values=parts):
            wanted, unknown = isinstance(joined, ast.Or), False
            for part in parts:
                known = settled(part, names, moving)
                if known is wanted:
                    return wanted
                unknown |= known is None
            if not unknown:
                return not wanted
        case ast.Compare(left=left, ops=[compared], comparators=[right]):
            one, other = value_of(left, names, moving), value_of(right, names, moving)
            if isinstance(compared, ast.Is | ast.IsNot):
                return (one is other) is isinstance(compared, ast.Is)
            return _COMPARES[type(compared)](_plain(one), _plain(other))
    raise UnknownValueError


def _attribute(owner: object, name: str) -> object:
    held = getattr(owner, "__dict__", None)
    if isinstance(held, dict):
        for holder in (held, held.get("_modules")):  # of a torch module
            if isinstance(holder, dict) and name in holder:
                return holder[name]
    raise UnknownValueError


def _plain(value: object) -> Any:
    if not isinstance(value, _PLAIN):
        raise UnknownValueError
    return value
