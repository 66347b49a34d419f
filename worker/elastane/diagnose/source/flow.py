"""Which variables a loop carries from one turn into the next, and what they decide.

A variable is carried when the body assigns it and reads it before it surely does; so is a container that the
body changes. What is computed from such a variable, or assigned where one decides a branch, depends on it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from elastane.diagnose.source.reading import Function, calls_in, last_name, loads, name_of, walk_here

_CHANGING: Final = ("append", "appendleft", "extend", "insert", "pop", "popleft", "add", "update")


def carried(body: Sequence[ast.stmt], given: Iterable[str] = ()) -> set[str]:
    """Names that the body of a loop carries. given: names the loop itself assigns (its targets)."""
    written = {name for node in _nodes(body) for name in _stores(node)}
    found: set[str] = set()
    _scan(body, set(given), written, found)
    read = {
        n.id
        for node in _nodes(body)
        if isinstance(node, ast.Call | ast.Name)
        for n in ast.walk(node)
        if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)
    }
    changed = set()
    for call in calls_in(body):
        if isinstance(call.func, ast.Attribute) and call.func.attr in _CHANGING:
            changed.add(name_of(call.func.value))
    for node in _nodes(body):
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
            changed.add(name_of(node.value))
    # Changed in place and never assigned in the body: it was there before the loop.
    return found | {
        name for name in changed if name in read and name not in written and name not in set(given)
    }


def _nodes(body: Sequence[ast.stmt]) -> Iterator[ast.AST]:
    for statement in body:
        yield from walk_here(statement)


def _stores(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id


def _scan(body: Sequence[ast.stmt], known: set[str], written: set[str], found: set[str]) -> set[str]:
    """Go through the statements; returns the names surely assigned behind them."""
    for statement in body:
        if isinstance(statement, ast.If):
            _reads(statement.test, known, written, found)
            known |= _targets(statement.test)
            ends = [
                _scan(part, set(known), written, found)
                for part in (statement.body, statement.orelse)
                if not _leaves(part)
            ]
            known |= set.intersection(*ends) if ends else set()
        elif isinstance(statement, ast.For | ast.AsyncFor | ast.While):
            head = statement.test if isinstance(statement, ast.While) else statement.iter
            _reads(head, known, written, found)
            inner = set(known)
            if not isinstance(statement, ast.While):
                inner |= _targets(statement.target)
            # A loop that nobody goes through is rare, and a variable read behind it would not exist either.
            known |= _scan(statement.body, inner, written, found)
            _scan(statement.orelse, set(known), written, found)
        elif isinstance(statement, ast.With | ast.AsyncWith):
            for item in statement.items:
                _reads(item.context_expr, known, written, found)
                if item.optional_vars is not None:
                    known |= _targets(item.optional_vars)
            known |= _scan(statement.body, set(known), written, found)
        elif isinstance(statement, ast.Try):
            _scan(statement.body, set(known), written, found)
            for handler in statement.handlers:
                _scan(handler.body, set(known), written, found)
            known |= _scan(statement.finalbody, set(known), written, found)
        elif isinstance(statement, Function | ast.ClassDef):
            known.add(statement.name)
        else:
            if isinstance(statement, ast.AugAssign) and isinstance(statement.target, ast.Name):
                name = statement.target.id
                if name not in known:
                    found.add(name)
            _reads(statement, known, written, found)
            known |= _targets(statement)
    return known


def _leaves(part: Sequence[ast.stmt]) -> bool:
    return bool(part) and isinstance(part[-1], ast.Continue | ast.Break | ast.Return | ast.Raise)


def _reads(node: ast.AST, known: set[str], written: set[str], found: set[str]) -> None:
    found |= {name for name in _free_loads(node) if name in written and name not in known}


def _free_loads(node: ast.AST) -> set[str]:
    """Names read, without those that a comprehension or a lambda in it assigns for itself."""
    own: set[str] = set()
    for inner in ast.walk(node):
        if isinstance(inner, ast.comprehension):
            own |= _targets(inner.target)
        elif isinstance(inner, ast.Lambda):
            own |= {argument.arg for argument in inner.args.args}
    return loads(node) - own


def _targets(node: ast.AST) -> set[str]:
    return {n.id for n in walk_here(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}


@dataclass(frozen=True)
class Decision:
    """A carried variable decides something. kind: "settings" of an optimizer, "loss", "stop", "weights"."""

    kind: str
    variable: str
    line: int
    name: str = ""  # of the setting


class Flow:
    """What depends on which of the variables `sources` in a loop body."""

    def __init__(
        self, body: Sequence[ast.stmt], sources: Iterable[str], functions: Mapping[str, Function]
    ) -> None:
        self._body = body
        self._functions = functions
        self._origin: dict[str, str] = {name: name for name in sources}
        self._controls: list[str] = []
        while self._spread(body):
            pass

    def origin(self, node: ast.AST | None) -> str:
        """The source that a value depends on, by the order of names in it; empty if on none."""
        if node is None:
            return ""
        names = [
            n.id
            for n in ast.walk(node)
            if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load) and n.id in self._origin
        ]
        return self._origin[names[0]] if names else ""

    def decisions(self) -> list[Decision]:
        """In the order of the text."""
        found: list[Decision] = []
        self._decide(self._body, "", found)
        return sorted(set(found), key=lambda decision: decision.line)

    def _spread(self, body: Sequence[ast.stmt], control: str = "") -> bool:
        """One pass; whether it found a name that depends on a source and was not known to."""
        news = False
        for statement in body:
            inside = control
            if isinstance(statement, ast.If | ast.While):
                inside = control or self.origin(statement.test)
            elif isinstance(statement, ast.Assign | ast.AnnAssign | ast.AugAssign):
                by = control or self.origin(statement.value)
                news |= self._mark(statement, by)
            elif isinstance(statement, ast.For):
                by = control or self.origin(statement.iter)
                news |= self._mark(statement.target, by)
            elif isinstance(statement, ast.With):
                for item in statement.items:
                    if item.optional_vars is not None:
                        news |= self._mark(item.optional_vars, control or self.origin(item.context_expr))
            if isinstance(statement, Function | ast.ClassDef):
                continue
            for part in _parts(statement):
                news |= self._spread(part, inside)
        return news

    def _mark(self, node: ast.AST, by: str) -> bool:
        fresh = {name for name in _targets(node) if name not in self._origin} if by else set()
        for name in fresh:
            self._origin[name] = by
        return bool(fresh)

    def _decide(self, body: Sequence[ast.stmt], control: str, found: list[Decision]) -> None:
        for statement in body:
            inside = control
            if isinstance(statement, ast.If | ast.While):
                inside = control or self.origin(statement.test)
            if isinstance(statement, ast.Break) and control:
                found.append(Decision("stop", control, statement.lineno))
            if isinstance(statement, ast.Assign | ast.AugAssign):
                by = control or self.origin(statement.value)
                for target in _subscripts(statement):
                    name = setting_of(target)
                    if by and name:
                        found.append(Decision("settings", by, statement.lineno, name))
            if not isinstance(statement, Function | ast.ClassDef):
                for call in _own_calls(statement):
                    self._of_call(call, control, found)
                for part in _parts(statement):
                    self._decide(part, inside, found)

    def _of_call(self, call: ast.Call, control: str, found: list[Decision]) -> None:
        if isinstance(call.func, ast.Attribute) and call.func.attr == "backward":
            by = self.origin(call.func.value)
            if by:
                found.append(Decision("loss", by, call.lineno))
        elif isinstance(call.func, ast.Attribute) and call.func.attr == "load_state_dict":
            by = control or next(filter(None, map(self.origin, call.args)), "")
            if by:
                found.append(Decision("weights", by, call.lineno))
        else:
            function = self._functions.get(name_of(call.func))
            if function is None:
                return
            name = sets_settings(function)
            by = control or next(
                filter(None, (self.origin(a) for a in [*call.args, *(k.value for k in call.keywords)])), ""
            )
            if name and by:
                found.append(Decision("settings", by, call.lineno, name))


def setting_of(target: ast.Subscript) -> str:
    """ "lr" of `group["lr"]` or `optimizer.param_groups[0]["lr"]`; empty for another subscript."""
    key = target.slice
    names = ("lr", "weight_decay", "momentum", "betas", "eps", "alpha", "dampening")
    if isinstance(key, ast.Constant) and isinstance(key.value, str) and key.value in names:
        return key.value
    return ""


def sets_settings(function: Function) -> str:
    """The setting that a function of the script writes into param_groups; empty if none."""
    for node in ast.walk(function):
        if isinstance(node, ast.Assign | ast.AugAssign):
            for target in _subscripts(node):
                if setting_of(target) and any(
                    last_name(n) == "param_groups" for n in ast.walk(function) if isinstance(n, ast.Attribute)
                ):
                    return setting_of(target)
    return ""


def _subscripts(statement: ast.Assign | ast.AugAssign) -> Iterator[ast.Subscript]:
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    for target in targets:
        parts = target.elts if isinstance(target, ast.Tuple | ast.List) else [target]
        yield from (part for part in parts if isinstance(part, ast.Subscript))


def _parts(statement: ast.stmt) -> Iterator[list[ast.stmt]]:
    for name in ("body", "orelse", "finalbody"):
        part = getattr(statement, name, None)
        if part:
            yield part
    for handler in getattr(statement, "handlers", []):
        yield handler.body


def _own_calls(statement: ast.stmt) -> Iterator[ast.Call]:
    """Calls in the statement's own expressions, not in the statements inside it."""
    inner = {id(node) for part in _parts(statement) for one in part for node in ast.walk(one)}
    for node in walk_here(statement):
        if isinstance(node, ast.Call) and id(node) not in inner:
            yield node
