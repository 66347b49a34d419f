"""Find out from its source what a script does with `job.is_leader` or `job.rank` where it reads them.

`if job.is_leader:` shows exactly what EST 0 does alone: the statements under it. A value kept in a variable
or passed to a function may decide anything later.
"""

from __future__ import annotations

import ast
import linecache
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from types import CodeType, FrameType
from typing import Any, Final

from elastane.script_source.places import line_in_words, tree_of
from elastane.script_source.words import SEEDED, SEEDS, TELLS

_GENERATOR: Final = 0x20 | 0x80 | 0x200  # flags of generators, coroutines and asynchronous generators
#: Calls that only print or split the data: they have no influence on which ranks draw random numbers.
_HARMLESS: Final = TELLS | {"str", "format"}
_LEAVES: Final = (ast.Return, ast.Yield, ast.YieldFrom, ast.Raise)
_OWN: Final = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)


@dataclass(frozen=True, slots=True)
class Asked:
    """A use of an attribute by the script. block: lines that only EST 0 runs; None unless that is certain.

    kept: the value may also decide something later. harmless: it does not affect random draws. seeds: it
    seeds a generator.
    """

    place: str
    block: tuple[int, int] | None = None
    kept: bool = True
    harmless: bool = False
    seeds: bool = False


def how_asked(frame: FrameType) -> Asked:
    """Classify the use of the attribute that `frame` is reading at its current instruction."""
    return _at(frame.f_code, frame.f_lasti, frame.f_lineno)


@cache
def _at(code: CodeType, instruction: int, line: int) -> Asked:
    text = linecache.getline(code.co_filename, line).strip()
    place = line_in_words(code.co_filename, line) + (f": {text}" if text else "")
    positions = list(code.co_positions())
    path = _path(code.co_filename, positions[instruction // 2]) if instruction >= 0 else []
    if not path:
        return Asked(place)
    statement = next((node for node in reversed(path) if isinstance(node, ast.stmt)), None)
    if isinstance(statement, ast.If) and _decides(statement, path):
        plain = not statement.orelse and not _leaves(statement) and not code.co_flags & _GENERATOR
        block = (statement.lineno, statement.end_lineno or statement.lineno)
        return Asked(place, block if plain else None, kept=False)
    if isinstance(statement, ast.If) and any(node is statement.test for node in path):
        return Asked(place, kept=False)
    calls = {_name(node.func) for node in path if isinstance(node, ast.Call)}
    if calls & (SEEDS | SEEDED):
        return Asked(place, seeds=True)
    if any(name in _HARMLESS or name.endswith("Sampler") for name in calls):
        return Asked(place, kept=False, harmless=True)
    return Asked(place)


def _decides(statement: ast.If, path: list[ast.AST]) -> bool:
    """True if only EST 0 runs the block, because the attribute is true for EST 0 alone."""
    read, test = path[-1], statement.test
    first = test.values[0] if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) else test
    if isinstance(read, ast.Attribute) and read.attr == "rank":
        return (
            isinstance(first, ast.Compare)
            and first.left is read
            and len(first.ops) == 1
            and isinstance(first.ops[0], ast.Eq)
            and isinstance(first.comparators[0], ast.Constant)
            and first.comparators[0].value == 0
        ) or (isinstance(first, ast.UnaryOp) and isinstance(first.op, ast.Not) and first.operand is read)
    return first is read


def _leaves(statement: ast.If) -> bool:
    """True if the block may end other than by continuing with the statement after it."""

    def leaves(node: ast.AST, in_loop: bool) -> bool:
        if isinstance(node, _OWN):
            return False
        if isinstance(node, _LEAVES) or (isinstance(node, ast.Break | ast.Continue) and not in_loop):
            return True
        in_loop = in_loop or isinstance(node, ast.For | ast.While)
        return any(leaves(child, in_loop) for child in ast.iter_child_nodes(node))

    return any(leaves(part, False) for part in statement.body)


def _name(function: ast.AST) -> str:
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def _path(file: str, position: tuple[int | None, int | None, int | None, int | None]) -> list[ast.AST]:
    """Return the AST nodes from the module down to the attribute at a position; [] if not found."""
    line, end_line, column, end_column = position
    tree = tree_of(file)
    if tree is None or None in position:
        return []
    path: list[ast.AST] = []

    def search(node: ast.AST) -> bool:
        path.append(node)
        at = getattr(node, "lineno", None), getattr(node, "end_lineno", None)
        at_columns = getattr(node, "col_offset", None), getattr(node, "end_col_offset", None)
        if isinstance(node, ast.Attribute) and (at, at_columns) == ((line, end_line), (column, end_column)):
            return True
        if any(search(child) for child in ast.iter_child_nodes(node)):
            return True
        path.pop()
        return False

    return path if search(tree) else []


class BlockTrace:
    """Calls `left` when `frame` leaves a range of lines. `follow` returns False if it cannot trace.

    Python has a single trace function per thread, and a debugger or coverage tool may be using it.
    """

    def __init__(self, left: Callable[[], None]) -> None:
        self._left = left
        self._frame: FrameType | None = None
        self._lines = range(0)

    def follow(self, frame: FrameType, block: tuple[int, int]) -> bool:
        if sys.gettrace() is not None:
            return False
        self._frame, self._lines = frame, range(block[0], block[1] + 1)
        frame.f_trace = self._in_frame
        sys.settrace(_in_no_other_frame)
        return True

    def stop(self) -> None:
        """Stop tracing: the block has ended or was abandoned."""
        if self._frame is not None:
            sys.settrace(None)
            self._frame.f_trace = None
            self._frame = None

    def _in_frame(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "return" or (event == "line" and frame.f_lineno not in self._lines):
            self.stop()
            self._left()
            return None
        return self._in_frame


def _in_no_other_frame(frame: FrameType, event: str, argument: Any) -> None:
    """Global trace function: without one Python traces no frame at all; it ignores new frames."""
