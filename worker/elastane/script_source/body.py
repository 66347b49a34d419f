"""Abstract interpreter for a loop's body: tracks the carried names that the value of each name depends on.

Functions and methods of the script that the body calls are interpreted too (`callees`): their arguments, what
they write to, and what they return. The result of any other call is assumed to depend on its arguments.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from elastane.script_source.callees import Callee, Callees, Scope
from elastane.script_source.names import dotted, innermost, is_whole, prefixes, within
from elastane.script_source.options import is_fixed, settled
from elastane.script_source.renewal import renews
from elastane.script_source.words import CLIPS, MUTATES, OVERWRITES, in_place

Role = Literal["model", "optimizer", "other"]
"""Kind of object managed by Elastane that a name stands for: the prepared model; an optimizer or a scaler;
another prepared or registered object, or the job."""

Kind = Literal["setting", "loss", "steps", "clipping", "model", "stop", "weights", "attribute", "kept"]
"""Decided in a loop: hyperparameter, the loss, whether the step's calls are made, how gradients are clipped,
what the model does; when the loop ends, which weights are loaded, an attribute of the model or its dataset
that is set between epochs, which weights are saved."""

#: Keys of param_groups that affect the optimizer's step.
HYPERPARAMETERS: Final = frozenset(
    {"lr", "momentum", "dampening", "weight_decay", "nesterov", "betas"}
    | {"eps", "alpha", "amsgrad", "lr_decay", "rho", "maximize"}
)
#: Methods of prepared objects that are called once per step.
_STEP_CALLS: Final = frozenset({"step", "zero_grad", "update", "update_parameters"})
#: Methods of prepared schedulers that take the progress of training as an argument.
_TOLD: Final = frozenset({"step", "step_update"})
_SETS_LR: Final = re.compile(r"(?i)^(adjust|set|update|apply|warm_?up)\w*(lr|learning_?rate)")
#: Maximum depth of nested calls that are followed.
_DEPTH_MAX: Final = 8
#: Maximum number of different calls that are followed; bounds the analysis to about 3 s.
_CALLS_MAX: Final = 500
#: Pseudo-name for values that differ in every turn without being carried: the mini-batch.
VARIES: Final = "*"

Deps = frozenset[str]
"""Carried names that a value depends on."""
Values = dict[str, Deps]
NONE: Final[Deps] = frozenset()


@dataclass(frozen=True)
class Place:
    """A line of source. file: "" for the loop's own file."""

    line: int
    file: str = ""


@dataclass(frozen=True)
class Reached:
    """A place that affects the result. by: carried names that its value depends on. at: line of the call."""

    by: Deps
    kind: Kind
    decides: str
    place: Place
    target: str
    at: int


@dataclass
class _Call:
    """A call being interpreted.

    returned: for each return, the dependencies of each element of its value. exits: the values at each.
    """

    returned: list[list[Deps]]
    exits: list[Values]


class Body:
    """Interprets statements abstractly, and accumulates findings over all runs.

    changed: names assigned by the body, with the dependencies of their values; places: where, for those that
    depend on a carried name. counters: names increased by a constant. reached: places that affect the result.
    Loops inside the body are run twice, so that what one turn changes is seen by the next.
    """

    def __init__(
        self,
        scope: Scope,
        callees: Callees,
        roles: Mapping[str, Role],
        moving: Container[str],
        setters: Mapping[str, str],
    ) -> None:
        self._scope, self._callees = scope, callees
        self._roles = roles
        self._setters = setters
        self._moving = moving
        self._loops = 0  # inside the body, around the statement
        #: Loops over the prepared loader around the statement; only `EpochBody` counts them.
        self._training = 0
        #: What decides whether the statement is run; of an `if` with its line.
        self._control: list[tuple[Deps, int]] = []
        self._calls: list[_Call] = []
        self._running: list[ast.AST] = []
        #: Loop variables, with the expression that each iterates over.
        self._over: dict[str, ast.expr] = {}
        self._known: dict[object, tuple[list[Deps], Values]] = {}
        self.changed: dict[str, Deps] = {}
        self.places: dict[str, Place] = {}
        self.counters: set[str] = set()
        self.reached: list[Reached] = []

    # ------------------------------------------------------------------ statements

    def begin(self, target: ast.expr, source: ast.expr, values: Values) -> None:
        """Begin a turn: bind the loop's target to a new value, through the script's own generator if any."""
        parts = target.elts if isinstance(target, ast.Tuple | ast.List) else [target]
        given = [NONE] * len(parts)
        if isinstance(source, ast.Call) and self._callee(source, values) is not None:
            given = self._parts(source, len(parts), values)
        for part, one in zip(parts, given, strict=True):
            self.bind_target(part, one | {VARIES}, values)

    def run(self, statements: Iterable[ast.stmt], values: Values) -> None:
        depth = len(self._control)
        # After `if test: continue` or `if test: return`, the rest of the block depends on the test as well.
        for statement in statements:
            self._statement(statement, values)
            if isinstance(statement, ast.If):
                taken = self._settled(statement.test)
                if taken is None and _turns_back(statement, in_call=bool(self._calls)):
                    self._control.append((self._of(statement.test, values), statement.lineno))
                elif taken is not None and self._leaves(statement.body if taken else statement.orelse):
                    break
        del self._control[depth:]

    def _statement(self, node: ast.stmt, values: Values) -> None:
        """Interpret one statement; updates `values`. Inner loops run twice, see the class."""
        match node:
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    self._assign(target, value, values)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                self._assign(target, value, values)
            case ast.AugAssign(target=target, value=value):
                given = self._of(value, values)
                own = NONE if isinstance(target, ast.Subscript) else self._of(target, values)
                name = self._scope.path(target)
                if name is not None and isinstance(value, ast.Constant):
                    self.counters.add(name)
                self.bind_target(target, own | given, values)
            case ast.If(test=test, body=body, orelse=orelse) if (taken := self._settled(test)) is not None:
                self.run(body if taken else orelse, values)
            case ast.If(test=test, body=[ast.Assign(targets=[target], value=value)], orelse=[]) if renews(
                test, target, value, self._callees, self._scope
            ):
                self.bind_target(target, self._of(value, values), values)
            case ast.If(test=test, body=body, orelse=orelse):
                self._branches(self._of(test, values), (body, orelse), values, node.lineno)
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
                self._goes_over(target, source)
                self._loops += 1
                for _ in range(2):
                    self.bind_target(target, given, values)
                    self._branches(NONE, (body, []), values)
                self._loops -= 1
            case ast.Break() if not self._loops:
                self._reach(self._decided(), "stop", "when to stop", node.lineno)
            case ast.Return(value=value) if self._calls:
                self._return(value, values)
            case ast.With(items=items, body=body) | ast.AsyncWith(items=items, body=body):
                for item in items:
                    given = self._of(item.context_expr, values)
                    if item.optional_vars is not None:
                        self.bind_target(item.optional_vars, given, values)
                self.run(body, values)
            case ast.Try(body=body, handlers=handlers, orelse=orelse, finalbody=final):
                self._branches(NONE, (body + orelse, *(handler.body for handler in handlers)), values)
                self.run(final, values)
            case ast.Match(subject=subject, cases=cases):
                self._branches(self._of(subject, values), tuple(case.body for case in cases), values)
            case ast.FunctionDef(body=body):
                self._inside(_Call([], []), body, dict(values))
            case ast.Delete(targets=targets):
                for target in targets:
                    values.pop(self._scope.path(target) or "", None)
            case ast.ClassDef():
                pass
            case _:
                for child in ast.iter_child_nodes(node):
                    if isinstance(child, ast.expr):
                        self._of(child, values)

    def _branches(
        self, test: Deps, branches: Sequence[list[ast.stmt]], values: Values, line: int = 0
    ) -> None:
        """Interpret alternative branches; afterwards each name has its dependencies from all of them."""
        ways = []
        self._control.append((test, line))
        for branch in branches:
            ways.append(dict(values))
            self.run(branch, ways[-1])
        self._control.pop()
        going_on = [way for way, branch in zip(ways, branches, strict=True) if not self._leaves(branch)]
        _merge(values, going_on or ways)

    def _leaves(self, branch: list[ast.stmt]) -> bool:
        """Return True if control does not continue after this branch."""
        last = branch[-1] if branch else None
        return isinstance(last, ast.Return | ast.Raise) or (
            isinstance(last, ast.Continue | ast.Break) and not self._loops
        )

    def _assign(self, target: ast.expr, value: ast.expr, values: Values) -> None:
        if isinstance(target, ast.Tuple | ast.List):
            given = self._parts(value, len(target.elts), values)
            for part, one in zip(target.elts, given, strict=True):
                self.bind_target(part, one, values)
        else:
            self.bind_target(target, self._of(value, values), values)

    def _parts(self, value: ast.expr, count: int, values: Values) -> list[Deps]:
        """Return the dependencies of each of the `count` elements into which a value is unpacked."""
        if isinstance(value, ast.Tuple | ast.List) and len(value.elts) == count:
            return [self._of(part, values) for part in value.elts]
        if isinstance(value, ast.Call):
            found = self._call(value, values)
            return found if len(found) == count else [NONE.union(*found)] * count
        return [self._of(value, values)] * count

    def bind_target(self, target: ast.expr, given: Deps, values: Values) -> None:
        """Assign to the target a value with dependencies `given`, plus those of the enclosing conditions."""
        given = given | self._decided()
        if isinstance(target, ast.Tuple | ast.List):
            for part in target.elts:
                self.bind_target(part, given, values)
        elif isinstance(target, ast.Starred):
            self.bind_target(target.value, given, values)
        elif isinstance(target, ast.Subscript):
            if isinstance(target.slice, ast.Constant) and target.slice.value in HYPERPARAMETERS:
                key = str(target.slice.value)
                self._reach(given, "setting", f'param_group["{key}"]', target.lineno, key)
            changed = self._scope.path(target.value)
            if changed is not None and is_whole(target.slice):
                values[changed] = NONE
            if changed is not None:
                self._mutate(changed, given, target.lineno, values)
        else:
            bound, role = self._scope.path(target), self._role(target)
            if bound is not None and role is None:
                parts = [part for part in values if part.startswith(f"{bound}.")]
                values |= dict.fromkeys([bound, *parts], given)
                self._change(bound, given, target.lineno)
            elif role == "model" and isinstance(target, ast.Attribute) and bound and bound not in values:
                self._reach(given, "model", bound, target.lineno)

    def _mutate(self, name: str, given: Deps, line: int, values: Values) -> None:
        """Record an in-place change of the object that the name stands for."""
        if not within(name, self._roles):
            values[name] = values.get(name, NONE) | given | self._decided()
            self._change(name, values[name], line)

    def _change(self, name: str, given: Deps, line: int) -> None:
        self.changed[name] = self.changed.get(name, NONE) | given
        if given:
            self.places.setdefault(name, self._place(line))

    # ------------------------------------------------------------------ conditions

    def _settled(self, test: ast.expr) -> bool | None:
        return settled(test, self._scope.known, _Moving(self._scope, self._moving))

    def _is_one(self, node: ast.expr) -> bool:
        same = ast.Compare(node, [ast.Eq()], [ast.Constant(1)])
        return self._settled(same) is True

    def _decided(self) -> Deps:
        return NONE.union(*(given for given, _ in self._control))

    # ------------------------------------------------------------------ what is reached

    def _place(self, line: int) -> Place:
        return Place(line, self._scope.source.file if self._scope.prefix else "")

    def _reach(self, given: Deps, kind: Kind, decides: str, line: int, target: str = "", at: int = 0) -> None:
        place = self._place(line)
        self.reached.append(Reached(given - {VARIES}, kind, decides, place, target, at or line))

    def _has_optimizer(self, call: ast.Call) -> bool:
        return any(self._role(argument) == "optimizer" for argument in call.args)

    def _role(self, node: ast.AST) -> Role | None:
        """Return the role of the object from which a chain of attributes, subscripts and calls starts."""
        while dotted(node) is None and isinstance(node, ast.Attribute | ast.Subscript | ast.Call):
            node = node.func if isinstance(node, ast.Call) else node.value
        name = self._scope.path(node)
        found = (self._roles[one] for one in prefixes(name or "") if one in self._roles)
        return next(found, None)

    # ------------------------------------------------------------------ expressions

    def _of(self, node: ast.AST, values: Values) -> Deps:
        """Return the carried names that the expression's value depends on."""
        match node:
            case ast.Name():
                return values.get(self._scope.canonical(node.id), NONE)
            case ast.Attribute(value=owner):
                path = self._scope.path(node)
                found = self._of(owner, values) if path is None else _reading(path, values)
                return found | self._property(node, values)
            case ast.Call():
                return NONE.union(*self._call(node, values))
            case ast.NamedExpr(target=target, value=value):
                given = self._of(value, values)
                self.bind_target(target, given, values)
                return given
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp():
                inside = dict(values)
                found_in = []
                for part in node.generators:
                    over = self._of(part.iter, inside)
                    self._goes_over(part.target, part.iter)
                    bound = (one for one in ast.walk(part.target) if isinstance(one, ast.Name))
                    inside |= {self._scope.canonical(one.id): over for one in bound}
                    found_in += [over, *(self._of(test, inside) for test in part.ifs)]
                elements = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
                return NONE.union(*found_in, *(self._of(element, inside) for element in elements))
            case ast.BinOp(op=ast.Mod(), right=right) if self._is_one(right):
                return NONE  # x % 1 is always 0: "every k-th turn" with k = 1
            case ast.IfExp(test=test, body=yes, orelse=no) if (taken := self._settled(test)) is not None:
                return self._of(yes if taken else no, values)
            case ast.Lambda(args=arguments, body=body):
                inner = dict(values) | {argument.arg: NONE for argument in arguments.args}
                return self._of(body, inner)
            case ast.Yield(value=ast.expr() as value) | ast.YieldFrom(value=value) if self._calls:
                given_parts = value.elts if isinstance(value, ast.Tuple) else [value]
                found_parts = [self._of(part, values) | self._decided() for part in given_parts]
                self._calls[-1].returned.append(found_parts)
                return NONE.union(*found_parts)
        return NONE.union(*(self._of(child, values) for child in ast.iter_child_nodes(node)))

    def _call(self, node: ast.Call, values: Values) -> list[Deps]:
        """Interpret a call; return the dependencies of each element of its value."""
        passed = [*node.args, *(one.value for one in node.keywords)]
        arguments = [self._of(one, values) for one in passed]
        given = NONE.union(*arguments)
        count = len(self.reached)
        word = node.func.attr if isinstance(node.func, ast.Attribute) else dotted(node.func)
        if word in CLIPS:
            self._reach(given, "clipping", "how gradients are clipped", node.lineno)
        if word == "load_state_dict":
            self._reach(given | self._decided(), "weights", "the weights", node.lineno)
        if key := self._setters.get(word or ""):
            self._reach(given | self._decided(), "setting", f"the {key}, by {word}()", node.lineno, key)
        elif word is not None and _SETS_LR.match(word.rpartition(".")[2]) and self._has_optimizer(node):
            self._reach(given, "setting", f"the lr, by {word}()", node.lineno, "lr")
        if word == "next" and node.args and (name := self._scope.path(node.args[0])) is not None:
            self._mutate(name, given | {VARIES}, node.lineno, values)
        if (loss := self._callees.loss_of(node.func, self._scope)) is not None:
            found = self._follow(loss, None, NONE, values) or ()
            self._reach(NONE.union(*found), "loss", "the loss", node.lineno)
        before, named = len(self.reached), {one.kind for one in self.reached[count:]}
        callee = self._callee(node, values)
        followed = None if callee is None else self._follow(callee, node, given, values)
        if callee is None:
            for element in self._of_elements(node.func):
                given = given.union(*self._follow(element, node, given, values) or ())
        if "setting" in named:  # already reported at the call: drop repetitions from inside the callee
            again = (one for one in self.reached[before:] if one.kind != "setting" or not one.by <= given)
            self.reached[before:] = again
        if isinstance(node.func, ast.Attribute):
            owner = self._method(node, node.func, given, arguments[:1], values, callee if followed else None)
        else:
            owner = self._of(node.func, values)
        if followed is not None:
            return followed
        for one in passed:  # closures: step(closure), map(step, loader)
            if (closure := self._callees.of(one, self._scope)) is not None and not self._role(one):
                given = given.union(*self._follow(closure, None, given, values) or ())
        called = node.func.value if isinstance(node.func, ast.Attribute) else node.func
        inside = (self._inside_of(one, values) for one in (*passed, called))
        return [given.union(owner, *inside)]

    def _method(
        self,
        node: ast.Call,
        function: ast.Attribute,
        given: Deps,
        first: list[Deps],
        values: Values,
        followed: Callee | None,
    ) -> Deps:
        """Record what a method call affects and changes; return the dependencies of its object.

        first: dependencies of the first argument, if any. followed: the callee, if it was interpreted.
        """
        word, role = function.attr, self._role(function.value)
        owner = self._of(function.value, values)
        if word == "backward":
            self._reach(owner.union(*first), "loss", "the loss", node.lineno)
        if word == "backward" or (word in _STEP_CALLS and role in ("optimizer", "other")):
            called = ast.unparse(function)
            for test, line in self._control:
                if line:
                    self._reach(test, "steps", f"whether {called}() is called", line, called, node.lineno)
        if word in _TOLD and role == "other":
            called = ast.unparse(function)
            self._reach(given, "setting", f"the lr, by {called}()", node.lineno, "lr")
        if followed is not None and (followed.whole or dotted(function.value) == self._scope.own):
            return owner
        changed = innermost(function.value)
        name = self._scope.path(changed)
        if name is None and isinstance(changed, ast.Subscript) and in_place(word):
            name = self._scope.path(changed.value)  # a part of it
        fixed = name not in self._moving and is_fixed(changed, self._scope.known)
        if name is not None and (word in MUTATES or in_place(word)) and not fixed:
            whole = dotted(changed) is not None and changed is function.value
            if word in OVERWRITES and whole and not within(name, self._roles):
                values[name] = owner = NONE
            self._mutate(name, given, node.lineno, values)
        return owner

    def _inside_of(self, node: ast.expr, values: Values) -> Deps:
        """Return the dependencies of an object's attributes, which a call that is not followed may read."""
        path = self._scope.path(node)
        if path is None or dotted(node) == self._scope.own or within(path, self._roles):
            return NONE
        return NONE.union(*(given for name, given in values.items() if name.startswith(f"{path}.")))

    # ------------------------------------------------------------------ calls that are followed

    def _callee(self, node: ast.Call, values: Values) -> Callee | None:
        owner = node.func.value if isinstance(node.func, ast.Attribute) else node.func
        own = dotted(owner) == self._scope.own
        asked = isinstance(node.func, ast.Attribute) and node.func.attr != "forward"
        if self._role(owner) is not None and not (own or (asked and self._is_counting(owner, values))):
            return None
        return self._callees.of(node.func, self._scope)

    def _of_elements(self, function: ast.expr) -> list[Callee]:
        """Return what a call on a container's elements runs: `parts["a"](x)`, `for one in parts: one(x)`."""
        element = function.value if isinstance(function, ast.Attribute) else function
        if isinstance(element, ast.Subscript) and self._role(element) is None:
            return self._callees.of_elements(function, element.value, self._scope)
        container = self._over.get(self._scope.path(element) or "")
        return [] if container is None else self._callees.of_elements(function, container, self._scope)

    def _goes_over(self, target: ast.expr, source: ast.expr) -> None:
        for one in ast.walk(target):
            if (name := self._scope.path(one)) is not None:
                self._over[name] = source

    def _is_counting(self, node: ast.expr, values: Values) -> bool:
        """Return True for a model with an attribute that is known to change in every turn."""
        path = self._scope.path(node)
        return path is not None and any(name.startswith(f"{path}.") for name in values)

    def _property(self, node: ast.Attribute, values: Values) -> Deps:
        if not isinstance(node.ctx, ast.Load):
            return NONE
        if self._role(node) is not None and not self._is_counting(node.value, values):
            return NONE
        getter = self._callees.property_of(node, self._scope)
        return NONE.union(*self._follow(getter, None, NONE, values) or ()) if getter is not None else NONE

    def _follow(
        self, callee: Callee, call: ast.Call | None, given: Deps, values: Values
    ) -> list[Deps] | None:
        """Interpret a function of the script; return the dependencies of each element of its value.

        None: it was not interpreted, because of its depth, a recursion, or the number of calls.
        """
        if len(self._running) >= _DEPTH_MAX or callee.function in self._running:
            return None
        if len(self._known) >= _CALLS_MAX:
            return None
        mark = f"{callee.function.name}@{len(self._running)}:"
        moving = _Moving(self._scope, self._moving)
        scope = self._callees.enter(callee, call, self._scope, mark, moving)
        inner = {name: deps for name, deps in values.items() if not name.startswith(mark)}
        # Names with the mark are the callee's own variables; all others are shared with the loop.
        for name, root in scope.roots.items():
            if root == mark + name:
                inner[root] = self._of(scope.given[name][0], values) if name in scope.given else NONE
        spread = call is not None and any(isinstance(one, ast.Starred) for one in call.args)
        for argument in (callee.function.args.vararg, callee.function.args.kwarg):
            if argument is not None:
                inner[scope.canonical(argument.arg)] = given
        if spread:
            inner |= {root: given for name, root in scope.roots.items() if root == mark + name}
        seen = (
            callee.function, frozenset(scope.roots.items()), frozenset(inner.items()), tuple(self._control),
            self._training,
        )  # fmt: skip
        if seen not in self._known:
            frame = _Call([], [])
            outside, self._scope = self._scope, scope
            self._running.append(callee.function)
            self._inside(frame, callee.function.body, inner)
            self._running.pop()
            self._scope = outside
            after = {name: deps for name, deps in inner.items() if not name.startswith(mark)}
            self._known[seen] = _together(frame.returned), after
        returned, after = self._known[seen]
        values.update(after)
        if callee.function.decorator_list:
            returned = [part | given for part in returned]
        return returned or [NONE]

    def _inside(self, frame: _Call, statements: Iterable[ast.stmt], values: Values) -> None:
        """Interpret a function's body; afterwards `values` merges those at all of its exits."""
        loops, self._loops = self._loops, 0
        self._calls.append(frame)
        self.run(statements, values)
        self._calls.pop()
        self._loops = loops
        _merge(values, [dict(values), *frame.exits])

    def _return(self, value: ast.expr | None, values: Values) -> None:
        decided = self._decided()
        parts: list[Deps] = []
        if isinstance(value, ast.Tuple):
            parts = [self._of(part, values) for part in value.elts]
        elif value is not None:
            parts = self._call(value, values) if isinstance(value, ast.Call) else [self._of(value, values)]
        self._calls[-1].returned.append([part | decided for part in parts])
        self._calls[-1].exits.append(dict(values))


class _Moving(Container[str]):
    """Names whose values change while the loop runs, as written in one scope."""

    def __init__(self, scope: Scope, moving: Container[str]) -> None:
        self._scope, self._moving = scope, moving

    def __contains__(self, written: object) -> bool:
        name = self._scope.canonical(str(written))
        return name in self._moving or name.rpartition(".")[2] == "training"


def _reading(path: str, values: Values) -> Deps:
    """Return the dependencies of an attribute: its own, and those of the objects that contain it."""
    return NONE.union(*(values.get(prefix, NONE) for prefix in prefixes(path)))


def _merge(values: Values, ways: Sequence[Values]) -> None:
    for name in {name for way in ways for name in way}:
        values[name] = NONE.union(*(way.get(name, NONE) for way in ways))


def _together(returned: list[list[Deps]]) -> list[Deps]:
    """Merge the dependencies of all returns of a function, element by element if their numbers agree."""
    if len({len(parts) for parts in returned}) == 1:
        return [NONE.union(*parts) for parts in zip(*returned, strict=True)]
    return [NONE.union(*(part for parts in returned for part in parts))]


def _turns_back(node: ast.If, *, in_call: bool) -> bool:
    """Return True if the statements after the `if` run only for some outcomes of its test."""
    inner = [one for part in (*node.body, *node.orelse) for one in ast.walk(part)]
    if in_call:
        return any(isinstance(one, ast.Return) for one in inner)
    ends = (part[-1] for part in (node.body, node.orelse) if part)
    return any(isinstance(one, ast.Continue) for one in ends)
