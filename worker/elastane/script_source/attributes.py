"""Finds the state that a class keeps in its attributes, from its source.

Pure. Unlike `carrying` it prefers false alarms: it reports every attribute that methods compute from its old
value and use for anything. Whether the attribute really changes is checked at run time.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from elastane.script_source.body import Place
from elastane.script_source.names import dotted, innermost, is_whole, stored
from elastane.script_source.options import settled
from elastane.script_source.words import LIMITS, MUTATES, OVERWRITES, TELLS, in_place


class ClassSource(NamedTuple):
    """A class in a syntax tree. names: its module's globals at run time. file: name shown in messages."""

    tree: ast.AST
    name: str
    names: Mapping[str, object] = MappingProxyType({})
    file: str = ""


def carried_attributes(classes: Sequence[ClassSource], instance: object = None) -> dict[str, Place]:
    """Return attributes that methods compute from their old value and also use elsewhere, with their places.

    Excluded are counters that are only printed or only returned by a getter, caches that are only filled, and
    running maxima and minima. Branches that the script's options rule out are skipped.

    classes: a class and its bases in method resolution order; one may update what another uses.
    instance: an object of the class, from which options are read.
    """
    updated, used = _updated_and_used(classes, instance)
    return {name: place for name, place in updated.items() if name in used}


def reported_attributes(classes: Sequence[ClassSource], instance: object = None) -> dict[str, Place]:
    """Return attributes computed from their old value that only code outside the class could use."""
    updated, used = _updated_and_used(classes, instance)
    return {name: place for name, place in updated.items() if name not in used}


def with_bases(tree: ast.AST, class_name: str) -> list[ClassSource]:
    """Return a class and those of its bases found in the same tree, for `carried_attributes`."""
    kinds = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
    found, waiting = dict[str, ClassSource](), [class_name]
    while waiting:
        name = waiting.pop(0)
        if name in kinds and name not in found:
            found[name] = ClassSource(kinds[name], name)
            waiting += [base.id for base in kinds[name].bases if isinstance(base, ast.Name)]
    return list(found.values())


def _updated_and_used(classes: Sequence[ClassSource], instance: object) -> tuple[dict[str, Place], set[str]]:
    """Return attributes updated from their old value, with their places, and the names of attributes used."""
    updated: dict[str, Place] = {}
    used: set[str] = set()
    methods = [(source, method) for source in classes for method in _methods(source)]
    moving = {name for _, method in methods for name in stored(method)} | {"training"}
    moving = {name.rpartition(".")[2] for name in moving}
    # An attribute that forward() sets before using it carries nothing from one turn to the next.
    forward = next((method for _, method in methods if method.name == "forward"), None)
    begun = _set_anew(forward) if forward is not None else set()
    for source, method in methods:
        own = method.args.args[0].arg
        owner = _Attributes(own, {**_constant(source), own: instance}, moving)
        for statement in method.body:
            owner.visit(statement)
        for name, line in owner.updated.items():
            if name not in begun and name not in _set_anew(method):
                updated.setdefault(name, Place(line, source.file))
        if not _is_getter(method, source.tree):
            used |= owner.used
    return updated, used


def _methods(source: ClassSource) -> list[ast.FunctionDef]:
    kinds = (node for node in ast.walk(source.tree) if isinstance(node, ast.ClassDef))
    kind = next((node for node in kinds if node.name == source.name), None)
    return [
        method
        for method in (kind.body if kind is not None else ())
        if isinstance(method, ast.FunctionDef) and method.name != "__init__" and method.args.args
    ]


def _constant(source: ClassSource) -> dict[str, object]:
    """Return the module's globals that are assigned at most once."""
    names = (node for node in ast.walk(source.tree) if isinstance(node, ast.Name))
    stores = Counter(node.id for node in names if isinstance(node.ctx, ast.Store))
    return {name: value for name, value in source.names.items() if stores[name] <= 1}


class _Attributes(ast.NodeVisitor):
    """Records which attributes of `owner`, the method's first argument, a method updates and uses."""

    def __init__(self, owner: str, names: Mapping[str, object], moving: Iterable[str]) -> None:
        self._owner = owner
        self._names = names
        self._moving = {f"{owner}.{name}" for name in moving}
        self.updated: dict[str, int] = {}
        self.used: set[str] = set()

    def visit_If(self, node: ast.If) -> None:
        taken = settled(node.test, self._names, self._moving)
        if taken is None and not all(_tells(statement) for statement in (*node.body, *node.orelse)):
            known = set(self.updated)
            self.generic_visit(node)
            if (memo := self._remembered(node)) not in known:
                self.updated.pop(memo or "", None)
        for statement in () if taken is None else node.body if taken else node.orelse:
            self.visit(statement)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        taken = settled(node.test, self._names, self._moving)
        for part in (node.test, node.body, node.orelse) if taken is None else ():
            self.visit(part)
        if taken is not None:
            self.visit(node.body if taken else node.orelse)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        name = self._attribute(node.target) or self._attribute(getattr(node.target, "value", None))
        if name is not None:
            self.updated.setdefault(name, node.lineno)
        self.visit(node.value)

    def visit_Assign(self, node: ast.Assign) -> None:
        names = {self._attribute(target) for target in node.targets} - {None}
        mentioned = {self._attribute(inner) for part in _not_limited(node.value) for inner in ast.walk(part)}
        own = {name for name in names & mentioned if name is not None}
        for name in own:
            self.updated.setdefault(name, node.lineno)
        for target in node.targets:
            part = self._attribute(target.value) if isinstance(target, ast.Subscript) else None
            if part is not None:
                self.updated.setdefault(part, node.lineno)
        before = set(self.used)
        self.visit(node.value)
        self.used -= own - before

    def visit_Expr(self, node: ast.Expr) -> None:
        call = node.value
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute):
            word, changed = call.func.attr, innermost(call.func.value)
            part = changed.value if isinstance(changed, ast.Subscript) and in_place(word) else changed
            name = self._attribute(part)
            if word in TELLS:
                return
            if name is not None and (word in MUTATES or in_place(word)):
                self.updated.setdefault(name, node.lineno)
                for argument in call.args:
                    self.visit(argument)
                return
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in TELLS:
            return
        self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        name = self._attribute(node)
        if name is not None and isinstance(node.ctx, ast.Load):
            self.used.add(name)
        self.generic_visit(node)

    def _remembered(self, node: ast.If) -> str | None:
        """Return the attribute filled as a cache: `if key not in self.cache: self.cache[key] = f(key)`.

        A cached value is the same in every process, so the cache is not carried state.
        """
        match node.test:
            case ast.Compare(ops=[ast.NotIn()], comparators=[holder]) if name := self._attribute(holder):
                inner = [one for part in node.body for one in ast.walk(part)]
                stored = [one for one in inner if isinstance(one, ast.Subscript) and _is_store(one)]
                given = [one for one in stored if self._attribute(one.value) == name]
                every = [one for one in inner if self._attribute(one) == name]
                return name if len(given) == len(every) else None
        return None

    def _attribute(self, node: object) -> str | None:
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            return node.attr if node.value.id == self._owner else None
        return None


def _is_getter(method: ast.FunctionDef, tree: ast.AST) -> bool:
    """Return True for a getter called only outside of classes: `def seen(self): return self.count`.

    The loop that calls it is examined separately, so returning the attribute does not count as a use.
    """
    last = method.body[-1]
    plain = len(method.body) == 1 or (len(method.body) == 2 and ast.get_docstring(method) is not None)
    if not (plain and isinstance(last, ast.Return) and len(method.args.args) == 1):
        return False
    if method.name.startswith("__") or method.name in ("forward", "step"):
        return False
    inner = [one for node in ast.walk(tree) if isinstance(node, ast.ClassDef) for one in ast.walk(node)]
    return not any(isinstance(one, ast.Attribute) and one.attr == method.name for one in inner)


def _set_anew(method: ast.FunctionDef) -> set[str]:
    """Return the attributes that the method always assigns before it uses them."""
    own = method.args.args[0].arg

    def attributes(part: ast.AST) -> set[str]:
        inner = (one for one in ast.walk(part) if isinstance(one, ast.Attribute))
        return {one.attr for one in inner if isinstance(one.value, ast.Name) and one.value.id == own}

    mentioned, found = set[str](), set[str]()
    for statement in method.body:
        if isinstance(statement, ast.Assign):
            plain = [target for target in statement.targets if isinstance(target, ast.Attribute)]
            names = {target.attr for target in plain if dotted(target) == f"{own}.{target.attr}"}
            found |= names - mentioned - attributes(statement.value)
            for target in statement.targets:
                if isinstance(target, ast.Subscript) and is_whole(target.slice):
                    found |= {part.attr for part in [target.value] if isinstance(part, ast.Attribute)} & (
                        attributes(target.value) - mentioned - attributes(statement.value)
                    )
        # Chained in-place calls too: `self.sum.zero_().add_(x)` begins by overwriting the attribute.
        call = statement.value if isinstance(statement, ast.Expr | ast.Assign) else None
        while isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute):
            part, given = call.func.value, [*call.args, *(one.value for one in call.keywords)]
            if isinstance(part, ast.Attribute) and call.func.attr in OVERWRITES:
                used = set[str]().union(*(attributes(one) for one in given))
                found |= ({part.attr} & attributes(part)) - mentioned - used
            call = part
        mentioned |= attributes(statement)
    return found


def _is_store(node: ast.Subscript) -> bool:
    return isinstance(node.ctx, ast.Store)


def _tells(statement: ast.stmt) -> bool:
    """Return True if the statement only prints or logs."""
    if isinstance(statement, ast.With):
        return all(_tells(inner) for inner in statement.body)
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        return (dotted(statement.value.func) or "").rpartition(".")[2] in TELLS
    return isinstance(statement, ast.Pass)


def _not_limited(value: ast.expr) -> list[ast.AST]:
    """Return the parts of an expression outside max(...) and min(...), as running extremes count no turns."""
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id in LIMITS:
        return []
    return [value]
