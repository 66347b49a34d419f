"""Resolves a call to the function of the script that it runs, and maps that function's names to the caller's.

If the values of names at run time are given, they are used first, so that functions and classes in the
script's other files are found too. Otherwise, or where no value is known, the file itself is searched: for
functions and methods with a unique name, and for objects built from one of its classes.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import inspect
import sys
from collections import Counter
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from itertools import islice
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Final

from elastane.script_source.names import Function, dotted, parameters, stored, walk_scope
from elastane.script_source.options import UnknownValueError, value_of
from elastane.script_source.places import display_name, is_script_class, is_script_file, tree_of

_CALLED: Final = ("forward", "__call__")
#: Placeholder name for an element of a container.
_ELEMENT: Final = "an element"
_ELEMENTS_MAX: Final = 64


@dataclass(frozen=True, eq=False)
class Source:
    """A file of the script. file: name shown in messages; "" for the loop's own file."""

    tree: ast.Module
    file: str = ""

    @cached_property
    def functions(self) -> dict[str, Function]:
        """Functions (not methods) with a name that is unique in the file."""
        methods = {id(one) for kind in self.classes.values() for one in kind.body}
        return _once([n for n in ast.walk(self.tree) if isinstance(n, Function) and id(n) not in methods])

    @cached_property
    def methods(self) -> dict[str, Function]:
        """Methods with a name that is unique in the file."""
        return _once(
            [one for kind in self.classes.values() for one in kind.body if isinstance(one, Function)]
        )

    @cached_property
    def classes(self) -> dict[str, ast.ClassDef]:
        return {node.name: node for node in ast.walk(self.tree) if isinstance(node, ast.ClassDef)}

    @cached_property
    def built(self) -> dict[str, str]:
        """Map names, including "self.name", to the class of the file that all their values are built from."""
        found: dict[str, set[str]] = {}
        for node in ast.walk(self.tree):
            for target in node.targets if isinstance(node, ast.Assign) else ():
                name = dotted(target)
                made = dotted(node.value.func) if isinstance(node.value, ast.Call) else None  # type: ignore[attr-defined]
                if name is not None:
                    found.setdefault(name, set()).add(made or "")
        return {
            name: next(iter(made))
            for name, made in found.items()
            if len(made) == 1 and made <= set(self.classes)
        }

    @cached_property
    def pipes(self) -> dict[str, ast.expr | None]:
        """Map the names of pipelines' pipes to the loss_fn that prepare_pipeline was given."""
        found: dict[str, ast.expr | None] = {}
        for node in ast.walk(self.tree):
            call = node.value if isinstance(node, ast.Assign) else None
            if not (isinstance(call, ast.Call) and getattr(call.func, "attr", "") == "prepare_pipeline"):
                continue
            for target in node.targets:  # type: ignore[attr-defined]
                first = target.elts[0] if isinstance(target, ast.Tuple | ast.List) else target
                if (name := dotted(first)) is not None:
                    found[name] = next((one.value for one in call.keywords if one.arg == "loss_fn"), None)
        return found

    def method(self, kind: str, name: str) -> Function | None:
        """Return a method of a class, or of its bases in the file; None if there is none."""
        waiting, seen = [kind], set[str]()
        while waiting:
            one = self.classes.get(waiting.pop(0))
            if one is None or one.name in seen:
                continue
            seen.add(one.name)
            for part in one.body:
                if isinstance(part, Function) and part.name == name:
                    return part
            waiting += [dotted(base) or "" for base in one.bases]
        return None

    def is_whole(self, kind: str) -> bool:
        """Return True if all bases of the class are in the file, except torch's Module and object."""
        one = self.classes.get(kind)
        bases = [dotted(base) or "" for base in one.bases] if one is not None else [kind]
        return all(
            base.rpartition(".")[2] in ("Module", "object") or (base != kind and self.is_whole(base))
            for base in bases
        )

    def class_of(self, function: Function) -> str:
        """Return the name of the class that defines the method; "" for a plain function."""
        return next((name for name, kind in self.classes.items() if function in kind.body), "")

    def encloses(self, outer: Function, inner: Function) -> bool:
        return any(node in (inner, _lambda_of(inner)) for node in ast.walk(outer))


@dataclass(frozen=True)
class Callee:
    """A function of the script as run by one call.

    own: for a method, the loop's name for the object it is called on; owner: the object itself, if known.
    known: values of its globals and closure; None: not known. whole: the whole class is in the script, so
    everything that the call does to the object can be seen.
    """

    function: Function
    source: Source
    own: str | None = None
    owner: object = None
    known: Mapping[str, object] | None = None
    whole: bool = True


@dataclass(frozen=True)
class Scope:
    """Maps the names in one piece of source (the loop or a called function) to the loop's names.

    known: values of names at run time. roots: the loop's name for each name that differs, or a unique one if
    the loop has none. prefix: prepended to all other names. given: the argument passed for each parameter,
    with the caller's scope. own: name of the method's first parameter, usually "self"; kind: its class.
    """

    source: Source
    known: Mapping[str, object] = field(default_factory=dict)
    roots: Mapping[str, str] = field(default_factory=dict)
    prefix: str = ""
    given: Mapping[str, tuple[ast.expr, Scope]] = field(default_factory=dict)
    own: str = ""
    kind: str = ""

    def canonical(self, written: str) -> str:
        """Return the loop's name for a name written here."""
        root, dot, rest = written.partition(".")
        return self.roots.get(root, self.prefix + root) + dot + rest

    def path(self, node: ast.AST | None) -> str | None:
        """Return the loop's name for an expression such as `a.b`; None if it is no chain of attributes."""
        written = dotted(node)
        return None if written is None else self.canonical(written)


def loop_scope(tree: ast.Module, home: Function | None, known: Mapping[str, object]) -> Scope:
    """Return the scope of a loop. home: the enclosing function; known: values of names when it begins."""
    source = source_of(tree)
    kind = source.class_of(home) if home is not None else ""
    own = home.args.args[0].arg if home is not None and kind and home.args.args else ""
    return Scope(source, known, own=own, kind=kind)


class Callees:
    """Resolves the calls in a loop's body. home: the enclosing function; None at module level."""

    def __init__(self, scope: Scope, home: Function | None) -> None:
        self._loop = scope
        self._home = home
        bound = stored(home) if home is not None else set()
        self._own_names = {name for name in bound if "." not in name}
        self._own_names |= {one.arg for one in parameters(home)} if home is not None else set()

    def of(self, function: ast.expr, scope: Scope) -> Callee | None:
        """Return the script's function that is run by calling the expression; None if there is none."""
        if not isinstance(function, ast.Name | ast.Attribute):
            return None
        found, certain = _at_run_time(function, scope)
        return found if found is not None or certain else self._in_source(function, scope)

    def loss_of(self, function: ast.expr, scope: Scope) -> Callee | None:
        """Return the script's loss_fn if the expression is a pipeline's pipe, which calls it."""
        try:
            pipe = value_of(function, scope.known)
        except UnknownValueError:
            pipe = None
        if is_pipe(pipe):
            return _loss_at_run_time(getattr(pipe, "loss_fn", None), scope)
        given = scope.source.pipes.get(dotted(function) or "") if pipe is None else None
        if isinstance(given, ast.Lambda):
            return Callee(_as_function(given), scope.source)
        return None if given is None else self.of(given, scope)

    def of_elements(self, function: ast.expr, container: ast.expr, scope: Scope) -> list[Callee]:
        """Return the functions that a call of an element of a container, or of its method, may run.

        One for each element that the container holds now.
        """
        found = []
        for node in ast.walk(container):
            path = scope.path(node)
            try:
                value = (
                    value_of(node, scope.known) if path is not None and isinstance(node, ast.expr) else None
                )
            except UnknownValueError:
                continue
            for key, element in _elements(value):
                held = replace(
                    scope,
                    known={**scope.known, _ELEMENT: element},
                    roots={**scope.roots, _ELEMENT: f"{path}[{key!r}]"},
                )
                called: ast.expr = ast.Name(_ELEMENT, ast.Load())
                if isinstance(function, ast.Attribute):
                    called = ast.Attribute(called, function.attr, ast.Load())
                if (callee := _at_run_time(called, held)[0]) is not None:
                    found.append(callee)
        return found

    def property_of(self, node: ast.Attribute, scope: Scope) -> Callee | None:
        """Return the getter that is run by reading the attribute, if it is a property of a script's class."""
        try:
            owner = value_of(node.value, scope.known)
        except UnknownValueError:
            own = scope.own and dotted(node.value) == scope.own
            found = self._in_source(node, scope) if own else None
            marks = found.function.decorator_list if found is not None else ()
            return found if any(dotted(mark) in ("property", "cached_property") for mark in marks) else None
        if not is_script_class(type(owner)):
            return None
        value = inspect.getattr_static(type(owner), node.attr, None)
        getter = value.fget if isinstance(value, property) else getattr(value, "func", None)
        return _defined(getter, scope.path(node.value), owner) if isinstance(getter, FunctionType) else None

    def _in_source(self, function: ast.Name | ast.Attribute, scope: Scope) -> Callee | None:
        if isinstance(function, ast.Name) and function.id in scope.given:
            return self.of(*scope.given[function.id])
        written, source = dotted(function), scope.source
        if written is None:
            return None
        if (built := self._built(written, scope)) is not None:
            method = next((one for name in _CALLED if (one := source.method(built, name))), None)
            return self._method(method, scope, written, built)
        if isinstance(function, ast.Name):
            found = source.functions.get(written)
            return (
                None if found is None or self._is_variable(written, found, scope) else Callee(found, source)
            )
        owner = dotted(function.value) or ""
        kind = scope.kind if owner == scope.own else self._built(owner, scope)
        if kind is None:
            return None
        method = source.method(kind, function.attr)
        if method is None and owner == scope.own:
            method = source.methods.get(function.attr)
        return self._method(method, scope, owner, kind)

    def _method(self, method: Function | None, scope: Scope, owner: str, kind: str) -> Callee | None:
        if method is None:
            return None
        return Callee(method, scope.source, scope.canonical(owner), whole=scope.source.is_whole(kind))

    def _built(self, written: str, scope: Scope) -> str | None:
        built = scope.source.built
        return built.get(written) or built.get(scope.canonical(written))

    def _is_variable(self, name: str, function: Function, scope: Scope) -> bool:
        """Return True if the name is a local variable of the caller that shadows the file's function."""
        if name in scope.roots:
            return True
        inside = self._home is not None and scope.source.encloses(self._home, function)
        return scope is self._loop and name in self._own_names and not inside

    def enter(
        self, callee: Callee, call: ast.Call | None, scope: Scope, mark: str, moving: Container[str]
    ) -> Scope:
        """Return the scope of a function that is being called.

        mark: prefix that makes the names of its local variables unique. moving: names in the caller whose
        values change while the loop runs, and so are not known.
        """
        function, source = callee.function, callee.source
        same = source.tree is self._loop.source.tree
        stands = {name for name in stored(function) if "." not in name} - _outer(function)
        roots = {name: mark + name for name in stands}
        around = self._loop.known if callee.known is None and same else callee.known
        known: dict[str, object] = dict(around or {})
        if same and self._home is not None and not source.encloses(self._home, function):
            # Another function of the file does not see the local variables of the one around the loop.
            for name in self._own_names - stands:
                roots[name] = f"{source.file or 'module'}.{name}"
                if callee.known is None:
                    known.pop(name, None)
        names = [one.arg for one in (*function.args.posonlyargs, *function.args.args)]
        given, own, kind = _arguments(function, call, names[1:] if callee.own else names), "", ""
        for name in (one.arg for one in parameters(function)):
            known.pop(name, None)
            roots[name] = mark + name
            if (node := given.get(name)) is not None and name not in stands:
                roots[name] = scope.path(node) or roots[name]
                with contextlib.suppress(UnknownValueError, TypeError, ValueError, RuntimeError):
                    # A plain name becomes the loop's name, which shows later whether its value changes.
                    known[name] = value_of(node, scope.known, moving if dotted(node) is None else ())
        for name, value in _defaults(function).items():
            if name in given or name in stands:
                continue
            if isinstance(value, ast.Constant):
                known[name] = value.value
            elif isinstance(value, ast.List | ast.Dict | ast.Set | ast.Call):
                roots[name] = f"{function.name}.{name}"  # a mutable default persists across calls
        if callee.own is not None and names:
            own, kind = names[0], source.class_of(function)
            roots[own] = callee.own
            if callee.owner is not None:
                known[own] = callee.owner
        for name in stands:
            known.pop(name, None)
        prefix = "" if same else f"{source.file.rpartition('/')[2].removesuffix('.py')}."
        where = {name: (node, scope) for name, node in given.items() if name not in stands}
        return Scope(source, known, roots, prefix, where, own, kind)


@lru_cache(maxsize=64)
def source_of(tree: ast.Module, file: str = "") -> Source:
    """Return the Source of a parsed file."""
    return Source(tree, file)


def is_pipe(value: object) -> bool:
    """Return True for the pipe of a pipeline, which calls the script's loss_fn."""
    return type(value).__module__.startswith("elastane.runtime.pipelines.") and hasattr(value, "loss_fn")


def pipes_in(tree: ast.Module, names: Mapping[str, object]) -> set[str]:
    """Return the names that stand for a pipe. names: their values at run time."""
    return {*source_of(tree).pipes, *(name for name, value in names.items() if is_pipe(value))}


def _loss_at_run_time(loss: object, scope: Scope) -> Callee | None:
    """Return the code of a loss function, as the loop knows its object."""
    while isinstance(loss, functools.partial):
        loss = loss.func
    if isinstance(loss, FunctionType):
        return _defined(loss)
    owner = getattr(loss, "__self__", loss)
    name = next((name for name, value in scope.known.items() if value is owner), "loss_fn")
    if isinstance(loss, MethodType):
        return _defined(loss.__func__, name, owner)
    return _at_run_time(ast.Name(name, ast.Load()), replace(scope, known={**scope.known, name: loss}))[0]


@lru_cache(maxsize=64)
def _as_function(given: ast.Lambda) -> ast.FunctionDef:
    """Return a lambda as a function."""
    body = ast.copy_location(ast.Return(given.body), given.body)
    made = ast.FunctionDef("loss_fn", given.args, [body], [], None, None)
    made._lambda = given  # type: ignore[attr-defined]
    return ast.copy_location(made, given)


def _lambda_of(function: Function) -> ast.Lambda | None:
    return getattr(function, "_lambda", None)


def _at_run_time(function: ast.expr, scope: Scope) -> tuple[Callee | None, bool]:
    """Resolve a call by the values of names; return the callee, if any, and whether that is certain."""
    try:
        value = value_of(function, scope.known)
    except UnknownValueError:
        value = None
    if isinstance(value, FunctionType):
        return _defined(value), True
    if isinstance(value, MethodType):
        return _defined(value.__func__, scope.path(function), value.__self__), True
    if value is not None and is_script_class(type(value)):
        # Calling a module runs its forward(), through a __call__ of torch's.
        for name in _CALLED:
            method = inspect.getattr_static(type(value), name, None)
            if isinstance(method, FunctionType):
                return _defined(method, scope.path(function), value), True
        return None, True
    if not isinstance(function, ast.Attribute):
        return None, value is not None
    try:
        owner = value_of(function.value, scope.known)
    except UnknownValueError:
        return None, False
    kind = owner if isinstance(owner, type) else type(owner)
    if isinstance(owner, ModuleType) or not is_script_class(kind):
        return None, True
    method = inspect.getattr_static(kind, function.attr, None)
    if isinstance(method, staticmethod) or (owner is kind and isinstance(method, FunctionType)):
        return _defined(inspect.unwrap(getattr(method, "__func__", method))), True
    if isinstance(method, classmethod):
        return _defined(method.__func__, kind.__name__, kind), True
    return (_defined(method, scope.path(function.value), owner), True) if callable(method) else (None, False)


def _elements(value: object) -> Iterator[tuple[object, object]]:
    """Yield (key, element) for elements of a container, or submodules, that the script defines itself."""
    held = value
    if not isinstance(value, list | tuple | dict):
        held = getattr(value, "__dict__", {}).get("_modules") if not isinstance(value, type) else None
    pairs = (
        held.items() if isinstance(held, dict) else enumerate(held if isinstance(held, list | tuple) else ())
    )
    for key, element in islice(pairs, _ELEMENTS_MAX):
        if is_script_class(type(element)) or isinstance(element, FunctionType):
            yield key, element


def _defined(function: object, own: str | None = None, owner: object = None) -> Callee | None:
    """Return the definition of a function as a Callee; None if it is not defined in the script."""
    function = inspect.unwrap(function) if callable(function) else function
    code = getattr(function, "__code__", None)
    if not isinstance(function, FunctionType) or code is None or not is_script_file(code.co_filename):
        return None
    tree, node = tree_of(code.co_filename), _definition(code)
    if tree is None or node is None:
        return None
    names = {**function.__globals__, **_cells(function)}
    whole = owner is None or all(_is_plain(kind) for kind in type(owner).__mro__)
    return Callee(node, source_of(tree, display_name(code.co_filename)), own, owner, names, whole)


@lru_cache(maxsize=1024)
def _definition(code: CodeType) -> Function | None:
    tree = tree_of(code.co_filename)
    if code.co_name == "<lambda>":
        lambdas = (
            [node for node in ast.walk(tree) if isinstance(node, ast.Lambda)] if tree is not None else []
        )
        here = {(line, column) for line, _, column, _ in code.co_positions()}
        found = (one for one in lambdas if (one.body.lineno, one.body.col_offset) in here)
        return next(map(_as_function, found), None)
    for node in ast.walk(tree) if tree is not None else ():
        if (
            isinstance(node, Function)
            and node.name == code.co_name
            and code.co_firstlineno in (node.lineno, *(mark.lineno for mark in node.decorator_list))
        ):
            return node
    return None


def _cells(function: FunctionType) -> dict[str, object]:
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=False)
    return {name: cell.cell_contents for name, cell in cells if _is_filled(cell)}


def _is_filled(cell: object) -> bool:
    try:
        return cell.cell_contents is not None  # type: ignore[attr-defined]
    except ValueError:
        return False


def _is_plain(kind: type) -> bool:
    """Return True if no method can change state unseen: the script's classes, torch's Module, object."""
    module = sys.modules.get(kind.__module__)
    known = kind is object or (kind.__module__, kind.__name__) == ("torch.nn.modules.module", "Module")
    return known or is_script_file(getattr(module, "__file__", None) or "")


def _once(functions: list[Function]) -> dict[str, Function]:
    count = Counter(function.name for function in functions)
    return {function.name: function for function in functions if count[function.name] == 1}


def _outer(function: Function) -> set[str]:
    """Return the names that the function declares global or nonlocal."""
    declared = (n for n in walk_scope(function.body) if isinstance(n, ast.Global | ast.Nonlocal))
    return {name for node in declared for name in node.names}


def _arguments(function: Function, call: ast.Call | None, names: list[str]) -> dict[str, ast.expr]:
    """Map parameters to the expressions that the call passes; empty if it unpacks a sequence."""
    if call is None or any(isinstance(one, ast.Starred) for one in call.args):
        return {}
    given = dict(zip(names, call.args, strict=False))
    return given | {one.arg: one.value for one in call.keywords if one.arg}


def _defaults(function: Function) -> dict[str, ast.expr]:
    given = function.args
    named = [one.arg for one in (*given.posonlyargs, *given.args)]
    found = dict(zip(reversed(named), reversed(given.defaults), strict=False))
    pairs = zip(given.kwonlyargs, given.kw_defaults, strict=True)
    return found | {one.arg: value for one, value in pairs if value is not None}
