"""Abstract interpreter for the body of a loop over epochs: finds values that a joining worker lacks.

In addition to what `Body` finds, a value between epochs may come from two sources that differ from worker to
worker:

    the model     outside the loop over mini-batches: a worker that joins in the middle of an epoch runs that
                  code with the weights of the step at which it joins
    mini-batches  a sum over the turns of one worker: which ESTs it hosts depends on the ring

Such a value may be kept in an attribute of the model or of the dataset.
"""

from __future__ import annotations

import ast
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from elastane.script_source.body import NONE, VARIES, Body, Deps, Kind, Role, Values
from elastane.script_source.callees import Callees, Scope
from elastane.script_source.loops import Loop
from elastane.script_source.names import dotted, innermost, within

Origin = Literal["carried", "model", "turns"]
"""Source of a value: an earlier turn or epoch, the model between epochs, or a worker's mini-batches."""

_MODEL: Final = "*model "
_TURNS: Final = "*turns "
#: Methods of a module or tensor whose results do not depend on its weights.
_STRUCTURE: Final = frozenset(
    {"parameters", "named_parameters", "buffers", "named_buffers", "modules", "named_modules", "children"}
    | {"named_children", "train", "eval", "to", "cuda", "cpu", "half", "float", "double", "zero_grad"}
    | {"requires_grad_", "apply", "get_submodule", "get_parameter", "load_state_dict", "numel", "size", "dim"}
    | {"register_buffer", "register_parameter", "add_module", "keys", "bfloat16", "type", "to_empty"}
    | {"share_memory", "compile"}
)
#: Name prefixes of such methods in user scripts: `get_criterion`, `init_hidden`.
_STRUCTURE_PREFIXES: Final = ("get_", "init_", "num_", "trainable_", "param_")
#: Attributes of modules and parameters that have no effect here, or are checked during training.
_OTHERS: Final = frozenset({"grad", "data", "training"})
_SAVES: Final = frozenset({"save", "copyfile", "deepcopy"})
_IN_TRAINING: Final[frozenset[Kind]] = frozenset(
    {"setting", "loss", "steps", "clipping", "model", "attribute"}
)


@dataclass(frozen=True)
class Inputs:
    """Names under which the loop uses the prepared loader and its dataset."""

    loaders: frozenset[str] = frozenset()
    datasets: frozenset[str] = frozenset()


def origin_of(name: str) -> tuple[Origin, str]:
    """Return the origin of a dependency, and the name of its variable."""
    if name.startswith(_MODEL):
        return "model", name.removeprefix(_MODEL)
    if name.startswith(_TURNS):
        return "turns", name.removeprefix(_TURNS)
    return "carried", name


class EpochBody(Body):
    """Interprets statements of the loop over epochs; `begin` and `run` are those of `Body`."""

    def __init__(
        self,
        scope: Scope,
        callees: Callees,
        roles: Mapping[str, Role],
        moving: Container[str],
        setters: Mapping[str, str],
        inputs: Inputs,
    ) -> None:
        super().__init__(scope, callees, roles, moving, setters)
        self._inputs = inputs
        #: Names assigned in loops over the loader, and the mini-batch target of the current one.
        self._of_turns: set[str] = set()
        self._batch: ast.expr | None = None
        self._epochs: set[str | None] = set()

    def begin(self, target: ast.expr, source: ast.expr, values: Values) -> None:
        """Begin an epoch. target: the variable of its number."""
        self._epochs = {self._scope.path(one) for one in ast.walk(target)} - {None}
        super().begin(target, source, values)

    def _statement(self, node: ast.stmt, values: Values) -> None:
        if isinstance(node, ast.If) and not node.orelse and self._is_for_good(node.test, values):
            self._control.append((self._of(node.test, values), node.lineno))
            self.run(node.body, values)
            self._control.pop()
            return
        if isinstance(node, Loop) and self._is_model(node.iter):
            self._goes_over(node.target, node.iter)
            self._loops += 1
            self.bind_target(node.target, self._of(node.iter, values), values)
            self.run(node.body, values)  # at least once, because a model has parts
            self._loops -= 1
            return
        if not (isinstance(node, Loop) and self._trains(node)):
            super()._statement(node, values)
            return
        self._training += 1
        for name, given in list(values.items()):
            if self._role_of_part(name) == "model":
                self._reach(given, "attribute", "what the model does", node.lineno, name)
            elif within(name, self._inputs.datasets):
                self._reach(given, "attribute", "the mini-batches", node.lineno, name)
        outer, self._batch = self._batch, node.target
        super()._statement(node, values)
        self._batch = outer
        self._training -= 1
        if not self._training:
            for name in self._of_turns:
                if VARIES in values.get(name, NONE):
                    values[name] |= {_TURNS + name}
                    self.places.setdefault(_TURNS + name, self._place(node.lineno))

    def _trains(self, loop: Loop) -> bool:
        """Return True for the loop over the prepared loader."""
        if any(self._scope.path(one) in self._inputs.loaders for one in ast.walk(loop.iter)):
            return True
        inner = list(_outside_of_loops(loop.body))
        return any(getattr(one, "attr", "") == "backward" for one in inner) or any(
            isinstance(one, ast.Call) and dotted(one.func) in self._scope.source.pipes for one in inner
        )

    def _is_for_good(self, test: ast.expr, values: Values) -> bool:
        """Return True if the condition is the same in all epochs, or stays true, as `epoch >= k` does.

        A worker that begins at a later epoch then runs the branch as well, or no worker ever does, so the
        earlier values do not matter.
        """
        if self._settled(test) is not None:
            return False
        if not self._of(test, values):
            return True
        match test:
            case ast.Compare(left=epoch, ops=[ast.Gt() | ast.GtE()], comparators=[bound]):
                pass
            case ast.Compare(left=bound, ops=[ast.Lt() | ast.LtE()], comparators=[epoch]):
                pass
            case _:
                return False
        return self._scope.path(epoch) in self._epochs and not self._of(bound, values)

    # ------------------------------------------------------------------ what is changed

    def bind_target(self, target: ast.expr, given: Deps, values: Values) -> None:
        if target is self._batch:
            given |= {VARIES}
        name = self._scope.path(target)
        if name is None:
            super().bind_target(target, given, values)
            return
        given = self._named(given | self._decided(), name, target.lineno)
        if not self._training and isinstance(target, ast.Attribute) and self._is_attribute_of_model(target):
            for one in (name, self._as_part_of_model(target)):
                values[one] = given
                self._change(one, given, target.lineno)
            return
        goes_over_model = isinstance(target, ast.Name) and self._is_model(target)
        parts = {part: of for part, of in values.items() if goes_over_model and part.startswith(f"{name}.")}
        super().bind_target(target, given, values)
        values |= parts

    def _mutate(self, name: str, given: Deps, line: int, values: Values) -> None:
        super()._mutate(name, self._named(given | self._decided(), name, line), line, values)

    def _change(self, name: str, given: Deps, line: int) -> None:
        if self._training:
            self._of_turns.add(name)
        super()._change(name, given, line)

    def _named(self, given: Deps, name: str, line: int) -> Deps:
        """Return the dependencies, with `name` in place of the values between epochs it was computed from."""
        origins = {origin_of(one)[0] for one in given} - {"carried"}
        if self._training or not origins:
            return given
        kept = {one for one in given if origin_of(one)[0] == "carried"}
        for mark in ({"model": _MODEL, "turns": _TURNS}[origin] for origin in origins):
            kept.add(mark + name)
            self.places.setdefault(mark + name, self._place(line))
        return frozenset(kept)

    def _is_attribute_of_model(self, target: ast.expr) -> bool:
        if not isinstance(target, ast.Attribute) or target.attr in _OTHERS:
            return False
        return self._is_model(target.value)

    def _is_model(self, node: ast.expr) -> bool:
        """Return True for the model, a part of it, and the variable of a loop over its parts."""
        if self._role(node) == "model":
            return True
        while isinstance(node, ast.Attribute | ast.Subscript | ast.Call):
            node = node.func if isinstance(node, ast.Call) else node.value
        source = self._over.get(self._scope.path(node) or "")
        return source is not None and self._role(source) == "model"

    def _as_part_of_model(self, target: ast.Attribute) -> str:
        """Return "net.*.p" for `m.p` in `for m in net.modules()`, so that all such loops share one name."""
        source = self._over.get(self._scope.path(target.value) or "")
        whole = None if source is None else self._scope.path(innermost(source))
        return (self._scope.path(target) or "") if whole is None else f"{whole}.*.{target.attr}"

    def _role_of_part(self, name: str) -> Role | None:
        return next((role for one, role in self._roles.items() if name.startswith(f"{one}.")), None)

    # ------------------------------------------------------------------ what is read and reached

    def _call(self, node: ast.Call, values: Values) -> list[Deps]:
        found = super()._call(node, values)
        if self._training:
            return found
        word = node.func.attr if isinstance(node.func, ast.Attribute) else dotted(node.func)
        copies = word == "deepcopy" and any(self._is_model(innermost(one)) for one in node.args)
        if word in _SAVES and (copies or word != "deepcopy"):
            self._reach(self._decided(), "kept", "which weights are saved", node.lineno)
        if word == "load_state_dict" and isinstance(node.func, ast.Attribute):
            changed = self._scope.path(node.func.value)
            if changed is not None:
                self._mutate(
                    changed, NONE.union(*(self._of(one, values) for one in node.args)), node.lineno, values
                )
        if copies or (not _tells_structure(word) and self._is_model(node.func)):
            return [part | {_MODEL} for part in found]
        return found

    def _reach(self, given: Deps, kind: Kind, decides: str, line: int, target: str = "", at: int = 0) -> None:
        left_out = {"turns"} if self._training else {"model"}
        if kind == "kept":
            left_out = {"turns", "model"}
        elif self._training and kind not in _IN_TRAINING:
            left_out.add("model")
        given = frozenset(one for one in given if origin_of(one)[0] not in left_out)
        super()._reach(given, kind, decides, line, target, at)


def _tells_structure(method: str | None) -> bool:
    """Return True for a method of the model whose result does not depend on its weights, by its name."""
    return method is not None and (method in _STRUCTURE or method.startswith(_STRUCTURE_PREFIXES))


def _outside_of_loops(nodes: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Iterate over all nodes below, except bodies of loops."""
    for node in nodes:
        if not isinstance(node, Loop | ast.While):
            yield node
            yield from _outside_of_loops(ast.iter_child_nodes(node))
