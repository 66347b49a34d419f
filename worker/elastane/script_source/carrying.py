"""Finds in a script's source the state that its loop body, its modules and its optimizers carry along.

The loop body runs once for each EST of a worker, and again when a step is replayed. A Python value that it
carries from one turn into the next (a count of steps, a running mean) then differs from a stock rank's. Most
such values are only printed. `carried_values` finds those that decide the result: it interprets the body
abstractly, mapping each name to the carried names that its value depends on, and looks at the places where
the result is made: what backward() is called on, what is written to a param_group, what decides whether
backward() or optimizer.step() is called, what clips the gradients. `carried_attributes` finds attributes of a
class that its methods compute from their own old value and use for something.

Pure: from source to findings. What it cannot follow (calls into other functions, aliases) it takes to be
harmless: findings are meant to be certain, not complete.
"""

from __future__ import annotations

import ast
import operator
import re
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, Literal

from elastane.script_source.names import Function, dotted, walk_here

Role = Literal["model", "optimizer", "other"]
"""What a name of the script stands for, among the things that are under control: the prepared model, an
optimizer or a scaler, another prepared or registered object or the job."""

#: Keys of param_groups that decide what an optimizer does.
HYPERPARAMETERS: Final = frozenset(
    {"lr", "momentum", "dampening", "weight_decay", "nesterov", "betas"}
    | {"eps", "alpha", "amsgrad", "lr_decay", "rho", "maximize"}
)
_MUTATORS: Final = frozenset(
    {"append", "appendleft", "extend", "insert", "add", "update", "pop", "popleft"}
    | {"popitem", "remove", "clear", "put", "push", "setdefault"}
)
_TELLS: Final = frozenset(("print", "debug", "info", "warning", "error", "write", "log", "add_scalar"))
#: Of prepared objects: what counts once a step.
_STEP_CALLS: Final = frozenset({"step", "zero_grad", "update", "update_parameters"})
_SETS_LR: Final = re.compile(r"(?i)^(adjust|set|update|apply|warm_?up)\w*(lr|learning_?rate)")
_CLIPS: Final = frozenset({"clip_grad_norm_", "clip_grad_value_"})
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
_LIMITS: Final = frozenset({"max", "min"})
#: Stands for what differs in every turn without being carried: the mini-batch.
_VARIES: Final = "*"

Loop = ast.For | ast.AsyncFor
_Values = dict[str, frozenset[str]]
_NONE: Final[frozenset[str]] = frozenset()


Kind = Literal["setting", "loss", "steps", "clipping", "model", "stop", "weights"]
"""What is decided: a hyperparameter, the loss, whether the step's calls are made, how gradients are clipped,
what the model does; when the loop ends, which weights are loaded."""

#: What decides the result of a step; weights that are loaded and the loop's end are epochs' matters.
IN_TURNS: Final[frozenset[Kind]] = frozenset({"setting", "loss", "steps", "clipping", "model"})
IN_EPOCHS: Final[frozenset[Kind]] = IN_TURNS | {"stop", "weights"}


@dataclass(frozen=True)
class Carried:
    """A value that the loop carries from turn to turn and that decides the result.

    name: as written, "it" or "self.it". line: where the body changes it. counts: it counts turns. decides:
    what it reaches, in words, at line `reaches`. kind: of what it reaches. target: for a setting, its name
    ("lr"); for steps, the call ("opt.step"). at: for steps, the line of the call; else `reaches`.
    """

    name: str
    line: int
    counts: bool
    decides: str
    reaches: int
    kind: Kind
    target: str
    at: int


@dataclass(frozen=True)
class _Reached:
    """A place where the result is made. by: names that its value depends on."""

    by: frozenset[str]
    kind: Kind
    decides: str
    line: int
    target: str
    at: int


def loop_at(tree: ast.AST, line: int) -> Loop | None:
    """The innermost `for` whose header is at the line."""
    found = [
        node
        for node in ast.walk(tree)
        if isinstance(node, Loop) and node.lineno <= line <= (node.iter.end_lineno or node.lineno)
    ]
    return max(found, key=lambda node: node.lineno, default=None)


def carried_values(
    tree: ast.Module,
    loop: Loop,
    roles: Mapping[str, Role],
    names: Mapping[str, object] = MappingProxyType({}),
    *,
    kinds: Container[Kind] = IN_TURNS,
    setters: Mapping[str, str] = MappingProxyType({}),
) -> list[Carried]:
    """What a loop, that over the prepared loader, carries into its result; in the order of lines it reaches.

    tree: the whole file; loop: in it. roles: names that the job keeps, also "self.model": they do not count
    as carried. names: their values as the loop begins; branches that the script's options rule out are not
    followed. kinds: what to look for. setters: functions that write to param_groups, with the key.
    """
    inside = _assigned(loop.body, roles, names) | _stored(loop.target)
    body = _Body(roles, {name: value for name, value in names.items() if name not in inside}, inside, setters)
    before = _bound_before(tree, loop)
    values: _Values = {
        name: frozenset({name}) for name in inside if "." in name or before is None or name in before
    }
    counter = turn_counter(loop)
    body.bind_target(loop.target, frozenset({_VARIES}), values)
    if counter is not None:
        values[counter] = frozenset({counter})
        body.changed[counter] = frozenset({counter})
        body.lines[counter] = loop.lineno
        body.counters.add(counter)
    body.run(loop.body, values)
    result: dict[tuple[str, str], Carried] = {}
    for one in body.reached:
        for name in sorted(one.by) if one.kind in kinds else ():
            if body.changed.get(name) and (name, one.decides) not in result:
                result[name, one.decides] = Carried(
                    name, body.lines[name], name in body.counters,
                    one.decides, one.line, one.kind, one.target, one.at,
                )  # fmt: skip
    return sorted(result.values(), key=lambda carried: carried.reaches)


def carried_attributes(
    tree: ast.AST,
    class_name: str,
    instance: object = None,
    names: Mapping[str, object] = MappingProxyType({}),
) -> dict[str, int]:
    """Attributes that methods of the class compute from their old value, and use beside that: name -> line.

    Not among them: counters that are only printed, caches that are only replaced, the largest value so far.
    instance: of the class; names: of its module. Branches that options rule out are not followed.
    """
    kind = next((n for n in ast.walk(tree) if isinstance(n, ast.ClassDef) and n.name == class_name), None)
    updated: dict[str, int] = {}
    used: set[str] = set()
    methods = [
        method
        for method in (kind.body if kind is not None else ())
        if isinstance(method, ast.FunctionDef) and method.name != "__init__" and method.args.args
    ]
    moving = {name for method in methods for name in _stored(method)} | {"training"}
    moving = {name.rpartition(".")[2] for name in moving}
    stores = Counter(n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))
    stay = {name: value for name, value in names.items() if stores[name] <= 1}
    for method in methods:
        own = method.args.args[0].arg
        owner = _Attributes(own, stay | {own: instance}, moving)
        for statement in method.body:
            owner.visit(statement)
        for name, line in owner.updated.items():
            updated.setdefault(name, line)
        used |= owner.used
    return {name: line for name, line in updated.items() if name in used}


def cure(carried: Carried) -> str:
    """The remedy, if the loop is the one over the prepared loader."""
    if carried.kind == "steps":
        return (
            "a turn is one EST's mini-batch, and may be run again: to add up gradients over k of them"
            " prepare(..., accumulation_steps=k) and call it in every turn; else let job.step decide"
        )
    if carried.counts:
        return (
            "it counts turns, of which there is one for every EST of the worker and every replay: use"
            " job.step, the number of the step"
        )
    return (
        "if each rank has its own under DDP, keep it in an object with state_dict and load_state_dict and"
        f' job.register("{carried.name.rpartition(".")[2]}", object) before prepare; if all have the same, in'
        " job.carry, changed `if job.stepped:`"
    )


# ---------------------------------------------------------------------- the loop body


class _Body:
    """Interprets statements abstractly.

    changed: names that the body gives a value that is not the same in every turn. reached: places where
    the result is made, with what their values depend on.
    """

    def __init__(
        self,
        roles: Mapping[str, Role],
        names: Mapping[str, object],
        moving: Container[str],
        setters: Mapping[str, str],
    ) -> None:
        self._roles = roles
        self._setters = setters
        self._loops = 0  # inside the body, around the statement
        self._names = names
        self._moving = moving
        self._control: list[frozenset[str]] = []
        self.changed: dict[str, frozenset[str]] = {}
        self.lines: dict[str, int] = {}
        self.counters: set[str] = set()
        self.reached: list[_Reached] = []

    def run(self, statements: Iterable[ast.stmt], values: _Values) -> None:
        for statement in statements:
            self._statement(statement, values)

    def _statement(self, node: ast.stmt, values: _Values) -> None:
        match node:
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    self._assign(target, value, values)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                self._assign(target, value, values)
            case ast.AugAssign(target=target, value=value):
                given = self._of(value, values)
                own = _NONE if isinstance(target, ast.Subscript) else self._of(target, values)
                name = dotted(target)
                if name is not None and isinstance(value, ast.Constant):
                    self.counters.add(name)
                self.bind_target(target, own | given, values)
            case ast.If(test=test, body=body, orelse=orelse) if (taken := self._settled(test)) is not None:
                self.run(body if taken else orelse, values)
            case ast.If(test=test, body=body, orelse=orelse):
                self._branches(self._of(test, values), (body, orelse), values)
                self._decides(node, self._of(test, values))
            case ast.While(test=test, body=body, orelse=orelse):
                self._loops += 1
                for _ in range(2):
                    self._branches(self._of(test, values), (body, orelse), values)
                self._loops -= 1
            case (
                ast.For(target=target, iter=source, body=body)
                | ast.AsyncFor(target=target, iter=source, body=body)
            ):
                given = self._of(source, values)
                self._loops += 1
                for _ in range(2):
                    self.bind_target(target, given, values)
                    self._branches(_NONE, (body, []), values)
                self._loops -= 1
            case ast.Break() if not self._loops:
                self._reach(_NONE.union(*self._control), "stop", "when to stop", node.lineno)
            case ast.With(items=items, body=body) | ast.AsyncWith(items=items, body=body):
                for item in items:
                    given = self._of(item.context_expr, values)
                    if item.optional_vars is not None:
                        self.bind_target(item.optional_vars, given, values)
                self.run(body, values)
            case ast.Try(body=body, handlers=handlers, orelse=orelse, finalbody=final):
                self._branches(_NONE, (body + orelse, *(handler.body for handler in handlers)), values)
                self.run(final, values)
            case ast.Match(subject=subject, cases=cases):
                self._branches(self._of(subject, values), tuple(case.body for case in cases), values)
            case ast.FunctionDef(body=body):
                self._branches(_NONE, (body, []), dict(values))
            case ast.Delete(targets=targets):
                for target in targets:
                    values.pop(dotted(target) or "", None)
            case ast.ClassDef():
                pass
            case _:
                for child in ast.iter_child_nodes(node):
                    if isinstance(child, ast.expr):
                        self._of(child, values)

    def _is_one(self, node: ast.expr) -> bool:
        same = ast.Compare(node, [ast.Eq()], [ast.Constant(1)])
        return self._settled(same) is True

    def _settled(self, test: ast.expr) -> bool | None:
        return settled(test, self._names, self._moving)

    def _branches(self, test: frozenset[str], branches: Iterable[list[ast.stmt]], values: _Values) -> None:
        """Any of the branches may have run: a name depends on whatever it depends on in one of them."""
        ways = []
        self._control.append(test)
        for branch in branches:
            ways.append(dict(values))
            self.run(branch, ways[-1])
        self._control.pop()
        for name in {name for way in ways for name in way}:
            values[name] = _NONE.union(*(way.get(name, _NONE) for way in ways))

    def _decides(self, node: ast.If, test: frozenset[str]) -> None:
        """Whether the step's calls are made must not depend on what is carried."""
        calls = (inner for part in (*node.body, *node.orelse) for inner in ast.walk(part))
        for call in calls:
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute):
                word, role = call.func.attr, self._role(call.func.value)
                if word == "backward" or (word in _STEP_CALLS and role in ("optimizer", "other")):
                    called = ast.unparse(call.func)
                    self._reach(
                        test, "steps", f"whether {called}() is called", node.lineno, called, call.lineno
                    )

    def _assign(self, target: ast.expr, value: ast.expr, values: _Values) -> None:
        pairs = isinstance(target, ast.Tuple | ast.List) and isinstance(value, ast.Tuple | ast.List)
        if pairs and len(target.elts) == len(value.elts):  # type: ignore[attr-defined]
            given = [self._of(part, values) for part in value.elts]  # type: ignore[attr-defined]
            for part, one in zip(target.elts, given, strict=True):  # type: ignore[attr-defined]
                self.bind_target(part, one, values)
        else:
            self.bind_target(target, self._of(value, values), values)

    def bind_target(self, target: ast.expr, given: frozenset[str], values: _Values) -> None:
        """The target has a value that depends on `given`, and on what decided that the line is run."""
        given = given.union(*self._control)
        if isinstance(target, ast.Tuple | ast.List):
            for part in target.elts:
                self.bind_target(part, given, values)
        elif isinstance(target, ast.Starred):
            self.bind_target(target.value, given, values)
        elif isinstance(target, ast.Subscript):
            if isinstance(target.slice, ast.Constant) and target.slice.value in HYPERPARAMETERS:
                key = str(target.slice.value)
                self._reach(given, "setting", f'param_group["{key}"]', target.lineno, key)
            changed = dotted(target.value)
            if changed is not None:
                self._mutate(changed, given, target.lineno, values)
        else:
            bound, role = dotted(target), self._role(target)
            if bound is not None and role is None:
                values[bound] = given
                self._change(bound, given, target.lineno)
            elif bound is not None and role == "model" and isinstance(target, ast.Attribute):
                self._reach(given, "model", bound, target.lineno)

    def _mutate(self, name: str, given: frozenset[str], line: int, values: _Values) -> None:
        """The object that the name stands for was changed in place."""
        if not _controlled(name, self._roles):
            values[name] = values.get(name, _NONE) | given.union(*self._control)
            self._change(name, values[name], line)

    def _change(self, name: str, given: frozenset[str], line: int) -> None:
        self.changed[name] = self.changed.get(name, _NONE) | given
        if given:
            self.lines.setdefault(name, line)

    def _has_optimizer(self, call: ast.Call) -> bool:
        return any(self._role(argument) == "optimizer" for argument in call.args)

    def _role(self, node: ast.AST) -> Role | None:
        """The role of the object that an expression of attributes, subscripts and calls starts from."""
        while (name := dotted(node)) is None and isinstance(node, ast.Attribute | ast.Subscript | ast.Call):
            node = node.func if isinstance(node, ast.Call) else node.value
        found = (self._roles[prefix] for prefix in _prefixes(name or "") if prefix in self._roles)
        return next(found, None)

    def _reach(
        self, given: frozenset[str], kind: Kind, decides: str, line: int, target: str = "", at: int = 0
    ) -> None:
        self.reached.append(_Reached(given - {_VARIES}, kind, decides, line, target, at or line))

    def _of(self, node: ast.AST, values: _Values) -> frozenset[str]:
        """The carried names that the expression's value depends on."""
        match node:
            case ast.Name(id=name):
                return values.get(name, _NONE)
            case ast.Attribute(value=owner):
                path = dotted(node)
                if path is None:
                    return self._of(owner, values)
                return _NONE.union(*(values.get(prefix, _NONE) for prefix in _prefixes(path)))
            case ast.Call():
                return self._call(node, values)
            case ast.NamedExpr(target=target, value=value):
                given = self._of(value, values)
                self.bind_target(target, given, values)
                return given
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp():
                inner = dict(values)
                found = []
                for part in node.generators:
                    over = self._of(part.iter, inner)
                    bound = (one for one in ast.walk(part.target) if isinstance(one, ast.Name))
                    inner |= {one.id: over for one in bound}
                    found += [over, *(self._of(test, inner) for test in part.ifs)]
                elements = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
                return _NONE.union(*found, *(self._of(element, inner) for element in elements))
            case ast.BinOp(op=ast.Mod(), right=right) if self._is_one(right):
                return _NONE  # every k-th turn, with k = 1
            case ast.IfExp(test=test, body=yes, orelse=no) if (taken := self._settled(test)) is not None:
                return self._of(yes if taken else no, values)
            case ast.Lambda(args=arguments, body=body):
                inner = dict(values) | {argument.arg: _NONE for argument in arguments.args}
                return self._of(body, inner)
        return _NONE.union(*(self._of(child, values) for child in ast.iter_child_nodes(node)))

    def _call(self, node: ast.Call, values: _Values) -> frozenset[str]:
        arguments = [self._of(one, values) for one in node.args]
        arguments += [self._of(one.value, values) for one in node.keywords]
        given = _NONE.union(*arguments)
        word = node.func.attr if isinstance(node.func, ast.Attribute) else dotted(node.func)
        if word in _CLIPS:
            self._reach(given, "clipping", "how gradients are clipped", node.lineno)
        if word == "load_state_dict":
            self._reach(given.union(*self._control), "weights", "the weights", node.lineno)
        if key := self._setters.get(word or ""):
            self._reach(given.union(*self._control), "setting", f"the {key}, by {word}()", node.lineno, key)
        elif word is not None and _SETS_LR.match(word.rpartition(".")[2]) and self._has_optimizer(node):
            self._reach(given, "setting", f"the lr, by {word}()", node.lineno, "lr")
        if word == "next" and node.args and (name := dotted(node.args[0])) is not None:
            self._mutate(name, given | {_VARIES}, node.lineno, values)
        if not isinstance(node.func, ast.Attribute):
            return given | self._of(node.func, values)
        owner = self._of(node.func.value, values)
        if word == "backward":
            self._reach(owner | _NONE.union(*arguments[:1]), "loss", "the loss", node.lineno)
        name = _innermost(node.func.value)
        if name is not None and word is not None and (word in _MUTATORS or _in_place(word)):
            self._mutate(name, given, node.lineno, values)
        return owner | given


def turn_counter(loop: Loop) -> str | None:
    """The name that counts turns: that of enumerate, wherever it stands in the header."""
    calls = (node for node in ast.walk(loop.iter) if isinstance(node, ast.Call))
    counts = any(isinstance(call.func, ast.Name) and call.func.id == "enumerate" for call in calls)
    first = loop.target.elts[0] if isinstance(loop.target, ast.Tuple | ast.List) else None
    return first.id if counts and isinstance(first, ast.Name) else None


def _assigned(statements: Iterable[ast.stmt], roles: Container[str], names: Mapping[str, object]) -> set[str]:
    """Names and attributes that the statements give a value or change in place.

    names: values that names have. `if scaler: scaler.update()` changes nothing where scaler is None.
    """
    found = set()
    for node in _walk_scope(statements):
        name = None
        if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            name = dotted(node)
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
            name = dotted(node.value)
        elif isinstance(node, ast.Call):
            if isinstance(node.func, ast.Attribute):
                word = node.func.attr
                owner = _innermost_node(node.func.value)
                mutates = (word in _MUTATORS or _in_place(word)) and not _is_fixed(owner, names)
                name = dotted(owner) if mutates else None
            elif isinstance(node.func, ast.Name) and node.func.id == "next" and node.args:
                name = dotted(node.args[0])
        if name is not None and not _controlled(name, roles):
            found.add(name)
    return found


def _is_fixed(node: ast.expr, names: Mapping[str, object]) -> bool:
    """Whether the value of the expression is known and immutable."""
    try:
        return isinstance(_value(node, names, ()), _FIXED)
    except (_UnsettledError, TypeError, ValueError, RuntimeError):
        return False


def _stored(node: ast.AST) -> set[str]:
    """Names and attributes that are given a value anywhere in it."""
    stores = (one for one in ast.walk(node) if isinstance(getattr(one, "ctx", None), ast.Store))
    return {name for one in stores if (name := dotted(one)) is not None}


def _bound_before(tree: ast.Module, loop: Loop) -> set[str] | None:
    """Names that have a value before the loop's first turn, as far as its function says.

    A name that only the body binds cannot come from the previous turn if the first turn needs it, too.
    """
    home = _home(tree, loop)
    inside = {id(node) for node in ast.walk(loop)}
    names = {
        node.id
        for node in _walk_scope(home.body)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and id(node) not in inside
    }
    for node in _walk_scope(home.body):
        if isinstance(node, ast.Global | ast.Nonlocal):
            names |= set(node.names)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {alias.asname or alias.name for alias in node.names}
    if isinstance(home, Function):
        given = home.args
        every = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
        names |= {argument.arg for argument in every if argument is not None}
        names |= _free(home, names)
    return names


def _free(function: Function, bound: set[str]) -> set[str]:
    """Names that the function never binds: another scope's, changed in place."""
    stored = {
        node.id
        for node in _walk_scope(function.body)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    read = {node.id for node in ast.walk(function) if isinstance(node, ast.Name)}
    return read - stored - bound


def _home(tree: ast.Module, loop: Loop) -> ast.Module | Function:
    """The function whose loop it is, or the module."""
    homes = [node for node in ast.walk(tree) if isinstance(node, Function) and loop in _walk_scope(node.body)]
    return homes[0] if homes else tree


def _walk_scope(statements: Iterable[ast.AST]) -> Iterator[ast.AST]:
    for statement in statements:
        yield from walk_here(statement)


# ---------------------------------------------------------------------- the attributes of a class


class _Attributes(ast.NodeVisitor):
    """What a method does with the attributes of `owner`, its first argument."""

    def __init__(self, owner: str, names: Mapping[str, object], moving: Iterable[str]) -> None:
        self._owner = owner
        self._names = names
        self._moving = {f"{owner}.{name}" for name in moving}
        self.updated: dict[str, int] = {}
        self.used: set[str] = set()

    def visit_If(self, node: ast.If) -> None:
        taken = settled(node.test, self._names, self._moving)
        if taken is None:
            self.generic_visit(node)
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
            word, name = call.func.attr, self._attribute(_innermost_node(call.func.value))
            if word in _TELLS:
                return
            if name is not None and (word in _MUTATORS or _in_place(word)):
                self.updated.setdefault(name, node.lineno)
                for argument in call.args:
                    self.visit(argument)
                return
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in _TELLS:
            return
        self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        name = self._attribute(node)
        if name is not None and isinstance(node.ctx, ast.Load):
            self.used.add(name)
        self.generic_visit(node)

    def _attribute(self, node: object) -> str | None:
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            return node.attr if node.value.id == self._owner else None
        return None


def _not_limited(value: ast.expr) -> list[ast.AST]:
    """The parts of an expression but max(...) and min(...): the largest so far does not count turns."""
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id in _LIMITS:
        return []
    return [value]


# ---------------------------------------------------------------------- options


class _UnsettledError(Exception):
    """The value is unknown, or unknown before the loop has run."""


def settled(test: ast.expr, names: Mapping[str, object], moving: Container[str] = ()) -> bool | None:
    """The value of a condition on plain values that do not change (options, configuration). None: unknown.

    moving: names and attributes that change while the code runs.
    """
    try:
        value = _value(test, names, moving)
    except (_UnsettledError, TypeError, ValueError, RuntimeError):  # what arrays and tensors say to ==
        return None
    return bool(value) if isinstance(value, _PLAIN) else None


def _value(node: ast.expr, names: Mapping[str, object], moving: Container[str]) -> object:
    match node:
        case ast.Constant(value=value):
            return value
        case ast.Tuple(elts=elements) | ast.List(elts=elements) | ast.Set(elts=elements):
            return tuple(_value(element, names, moving) for element in elements)
        case ast.Name(id=name) if name in names and name not in moving:
            return names[name]
        case ast.Attribute(value=owner, attr=name) if dotted(node) not in moving:
            held = getattr(_value(owner, names, moving), "__dict__", None)
            if isinstance(held, dict) and name in held:
                return held[name]
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return not _plain(_value(operand, names, moving))
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
            one, other = _value(left, names, moving), _value(right, names, moving)
            if isinstance(compared, ast.Is | ast.IsNot):
                return (one is other) is isinstance(compared, ast.Is)
            return _COMPARES[type(compared)](_plain(one), _plain(other))
    raise _UnsettledError


def _plain(value: object) -> Any:
    if not isinstance(value, _PLAIN):
        raise _UnsettledError
    return value


# ---------------------------------------------------------------------- names


def _innermost_node(node: ast.expr) -> ast.expr:
    """Of a.mul_(x).add_(y) it is a."""
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        node = node.func.value
    return node


def _innermost(node: ast.expr) -> str | None:
    return dotted(_innermost_node(node))


def _prefixes(name: str) -> Iterator[str]:
    parts = name.split(".")
    yield from (".".join(parts[:count]) for count in range(1, len(parts) + 1))


def _controlled(name: str, roles: Container[str]) -> bool:
    return any(prefix in roles for prefix in _prefixes(name))


def _in_place(word: str) -> bool:
    """Whether a method is one of torch's that write to their tensor."""
    return word.endswith("_") and not word.endswith("__") and word not in _CLIPS
