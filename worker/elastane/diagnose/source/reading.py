"""Shape of a script, read from its syntax tree: the three lines, its loops, the objects it prepares.

Nothing is run and nothing is imported. Names are followed through assignments in a loop body, and into
functions of the script that are called by name.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from elastane.script_source import (
    Carried,
    Role,
    carried_values,
    reported_attributes,
    with_bases,
)
from elastane.script_source.across_epochs import epoch_values, setters_of
from elastane.script_source.body import Place
from elastane.script_source.callees import source_of
from elastane.script_source.epoch_body import Inputs
from elastane.script_source.loops import Loop, as_loop, node_of
from elastane.script_source.names import Function, dotted, walk_here


@dataclass(frozen=True)
class Preparation:
    """A call of prepare. given: names of its arguments ("": an expression); returned: their new names."""

    call: ast.Call
    given: Sequence[str]
    returned: Sequence[str]

    @property
    def line(self) -> int:
        return self.call.lineno


@dataclass(frozen=True)
class LoaderLoop:
    """A loop over mini-batches: its body calls backward(), or the pipe of a pipeline."""

    node: Loop
    function: Function | None
    pipeline: bool = False


@dataclass
class Script:
    """A parsed file. file: its name, as shown in findings."""

    tree: ast.Module
    file: str = "script"
    main: bool = True
    parents: dict[ast.AST, ast.AST] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for node in ast.walk(self.tree):
            for child in ast.iter_child_nodes(node):
                self.parents[child] = node

    @cached_property
    def functions(self) -> dict[str, Function]:
        return {n.name: n for n in ast.walk(self.tree) if isinstance(n, Function)}

    @cached_property
    def imports(self) -> dict[str, str]:
        """Local name -> the dotted name that was imported."""
        found: dict[str, str] = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    found[alias.asname or alias.name.partition(".")[0]] = (
                        alias.name if alias.asname else alias.name.partition(".")[0]
                    )
            elif isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    found[alias.asname or alias.name] = f"{node.module}.{alias.name}"
        return found

    @cached_property
    def jobs(self) -> frozenset[str]:
        """Names of the job: results of elastane.init, and any variable called "job"."""
        found = {"job"}
        for name, value in self.assigned:
            if isinstance(value, ast.Call) and self.dotted(value.func) == "elastane.init":
                found.add(name)
        return frozenset(found)

    @cached_property
    def uses_elastane(self) -> bool:
        return bool(self.inits)

    @cached_property
    def inits(self) -> list[ast.Call]:
        """Calls of elastane.init."""
        calls = (node for node in ast.walk(self.tree) if isinstance(node, ast.Call))
        return [call for call in calls if self.dotted(call.func) == "elastane.init"]

    @cached_property
    def seed_given(self) -> bool:
        """True if elastane.init is given a seed."""
        return any(call.args or any(word.arg == "seed" for word in call.keywords) for call in self.inits)

    @cached_property
    def distributed_calls(self) -> bool:
        """True if the script asks for single-process answers of torch.distributed."""
        return any(word.arg == "distributed_calls" for call in self.inits for word in call.keywords)

    @cached_property
    def assigned(self) -> list[tuple[str, ast.expr]]:
        """(name, value) of every plain assignment to one name, or pairwise to several."""
        found: list[tuple[str, ast.expr]] = []
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    found += _pairs(target, node.value)
            elif isinstance(node, ast.AnnAssign | ast.NamedExpr) and node.value is not None:
                found += _pairs(node.target, node.value)
        return found

    @cached_property
    def preparations(self) -> list[Preparation]:
        """All calls of prepare; if there are several, only one of them is reached in a run."""
        found = []
        for node in ast.walk(self.tree):
            if not (isinstance(node, ast.Call) and self.is_job_method(node, "prepare")):
                continue
            parent = self.parents.get(node)
            targets: list[str] = []
            if isinstance(parent, ast.Assign):
                first = parent.targets[0]
                parts = first.elts if isinstance(first, ast.Tuple | ast.List) else [first]
                targets = [name_of(part) for part in parts]
            found.append(Preparation(node, [name_of(argument) for argument in node.args], targets))
        return found

    @property
    def preparation(self) -> Preparation | None:
        return self.preparations[0] if self.preparations else None

    @cached_property
    def kept(self) -> frozenset[str]:
        """Names of objects kept by the job: passed to prepare, registered, carried.

        Objects in a container count too.
        """
        found: set[str] = set()
        for preparation in self.preparations:
            found |= {*preparation.given, *preparation.returned}
            for argument in preparation.call.args:
                if isinstance(argument, ast.Starred):
                    found |= self._put_into(argument.value)
            parent = self.parents.get(preparation.call)
            if isinstance(parent, ast.Assign):
                found |= {
                    n.id for target in parent.targets for n in ast.walk(target) if isinstance(n, ast.Name)
                }
        for node in ast.walk(self.tree):
            if not isinstance(node, ast.Call):
                continue
            if self.is_job_method(node, "register") and len(node.args) > 1:
                name = name_of(node.args[1]).partition(".")[0]
                found.add(name)
                for loop in self.ancestors(node):
                    if isinstance(loop, ast.For) and name in {name_of(n) for n in ast.walk(loop.target)}:
                        found |= self._put_into(loop.iter)
            parent = self.parents.get(node)
            if self.is_job_method(node, "carry") and isinstance(parent, ast.Assign):
                found |= {name_of(target) for target in parent.targets}
        return frozenset(found - {""})

    def _put_into(self, container: ast.expr) -> set[str]:
        """Return the names in an expression, and in values assigned to them or added to them elsewhere."""
        found = {n.id for n in ast.walk(container) if isinstance(n, ast.Name)}
        inner = set()
        for name, value in self.assigned:
            if name in found:
                inner |= {n.id for n in ast.walk(value) if isinstance(n, ast.Name)}
        for node in ast.walk(self.tree):
            changes = isinstance(node, ast.AugAssign) and name_of(node.target) in found
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                changes = name_of(node.func.value) in found and node.func.attr in (
                    "append",
                    "extend",
                    "insert",
                )
            if changes:
                inner |= {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
        return found | inner

    @cached_property
    def epoch_loops(self) -> list[ast.For]:
        loops = [node for node in ast.walk(self.tree) if isinstance(node, ast.For)]
        return [
            loop
            for loop in loops
            if any(isinstance(n, ast.Call) and self.is_job_method(n, "epochs") for n in ast.walk(loop.iter))
        ]

    @cached_property
    def loader_loops(self) -> list[LoaderLoop]:
        """The innermost loops over a loader that call backward(), or a pipe, themselves or through a
        function."""
        loops = [loop for n in ast.walk(self.tree) if n not in self.epoch_loops and (loop := as_loop(n))]
        pipes = [loop for loop in loops if self._runs_pipe(loop.body)]
        trains = [loop for loop in loops if self.does_backward(loop.body) and self._over_loader(loop)]
        trains += [loop for loop in pipes if loop not in trains]
        inner = [a for a in trains if not any(a is not b and node_of(b) in ast.walk(a) for b in trains)]
        return [LoaderLoop(loop, self.function_of(node_of(loop)), loop in pipes) for loop in inner]

    def _runs_pipe(self, body: Sequence[ast.stmt]) -> bool:
        pipes = source_of(self.tree).pipes
        return any(name_of(call.func) in pipes for call in calls_in(body))

    def does_backward(self, body: Sequence[ast.stmt], depth: int = 2) -> bool:
        for call in calls_in(body):
            if isinstance(call.func, ast.Attribute) and call.func.attr == "backward":
                return True
            function = self.functions.get(name_of(call.func))
            if depth and function is not None and self.does_backward(function.body, depth - 1):
                return True
        return False

    def _over_loader(self, loop: Loop) -> bool:
        known = self.loaders
        for node in ast.walk(loop.iter):
            name = name_of(node)
            last = name.rpartition(".")[2].lower()
            if name in known or any(word in last for word in ("loader", "dataset", "batches", "data_iter")):
                return True
        return False

    @cached_property
    def loaders(self) -> frozenset[str]:
        """Names of the training loader: the value that prepare returned for a DataLoader."""
        built = {n for n, v in self.assigned if isinstance(v, ast.Call) and last_name(v.func) == "DataLoader"}
        found = set()
        preparation = self.preparation
        if preparation is not None:
            for place, new in enumerate(preparation.returned):
                argument = preparation.call.args[place] if place < len(preparation.call.args) else None
                inline = isinstance(argument, ast.Call) and last_name(argument.func) == "DataLoader"
                if new and (inline or name_of(argument) in built or "loader" in new.lower()):
                    found.add(new)
        return frozenset(found)

    @cached_property
    def models(self) -> frozenset[str]:
        """Names of the trained model, before and after prepare."""
        preparation = self.preparation
        if preparation is None:
            return frozenset()
        others = self.loaders | self.optimizers | set(self.schedulers)
        found: set[str] = set()
        for place, old in enumerate(preparation.given):
            new = preparation.returned[place] if place < len(preparation.returned) else ""
            argument = preparation.call.args[place]
            if not ({old, new} & others) and not found and not _is_call_of(argument, "DataLoader"):
                found |= {old, new} - {""}
        return frozenset(found)

    @cached_property
    def optimizers(self) -> frozenset[str]:
        """Names of values built from torch.optim, or of optimizers by their names."""
        found = set()
        preparation = self.preparation
        pairs = list(self.assigned)
        for name, value in pairs:
            if isinstance(value, ast.Call) and is_optimizer(self.dotted(value.func)):
                found.add(name)
        if preparation is not None:
            for place, old in enumerate(preparation.given):
                new = preparation.returned[place] if place < len(preparation.returned) else ""
                if old in found or any(word.startswith("opt") for word in (old, new)):
                    found |= {old, new} - {""}
        found |= {
            argument.arg
            for function in self.functions.values()
            for argument in function.args.args
            if argument.arg in ("optimizer", "opt", "optim")
        }
        return frozenset(found)

    @cached_property
    def roles(self) -> dict[str, Role]:
        """Roles of names of objects kept by the job, as far as the source shows."""
        found: dict[str, Role] = dict.fromkeys(self.kept | self.loaders | self.jobs, "other")
        for call in ast.walk(self.tree):
            if isinstance(call, ast.Call) and last_name(call.func) == "step":
                owner = name_of(call.func).rpartition(".")[0]
                if owner and call.args and name_of(call.args[0]) in self.optimizers:
                    found[owner] = "optimizer"  # a scaler
        found |= dict.fromkeys(self.optimizers, "optimizer")
        return found | dict.fromkeys(self.models, "model")

    @cached_property
    def setters(self) -> dict[str, str]:
        """Functions that write to param_groups: name -> the first key that decides what an optimizer does."""
        return setters_of(self.tree)

    def carried(self, loop: Loop) -> list[Carried]:
        """Return the values that a loop carries from turn to turn into its result."""
        return carried_values(self.tree, loop, self.roles, setters=self.setters, counting=self.counting)

    def across_epochs(self, loop: Loop) -> list[Carried]:
        """Return the values that a loop over epochs carries into the result of later steps."""
        return epoch_values(self.tree, loop, self.roles, inputs=self.inputs, counting=self.counting)

    @cached_property
    def inputs(self) -> Inputs:
        """Names of the training loader, and of the dataset that it is built from."""
        datasets = {
            name_of(value.args[0])
            for name, value in self.assigned
            if isinstance(value, ast.Call) and last_name(value.func) == "DataLoader" and value.args
            if name in self.loaders or name in self.kept
        }
        return Inputs(self.loaders, frozenset(datasets - {""}))

    @cached_property
    def counting(self) -> dict[str, Place]:
        """Attributes that the model only counts in, without using them itself: "net.calls" -> place."""
        built = source_of(self.tree).built
        return {
            f"{name}.{attribute}": place
            for name in self.models & set(built)
            for attribute, place in reported_attributes(with_bases(self.tree, built[name])).items()
        }

    @cached_property
    def schedulers(self) -> dict[str, ast.Call]:
        """Name -> the call that built it."""
        return {
            name: value
            for name, value in self.assigned
            if isinstance(value, ast.Call) and is_scheduler(self.dotted(value.func))
        }

    def dotted(self, node: ast.expr) -> str:
        """Return a name with its import resolved: "torch.optim.SGD"."""
        name = name_of(node)
        head, _, rest = name.partition(".")
        full = self.imports.get(head, head)
        return f"{full}.{rest}" if rest else full

    def is_job_method(self, call: ast.Call, method: str) -> bool:
        func = call.func
        return isinstance(func, ast.Attribute) and func.attr == method and name_of(func.value) in self.jobs

    def is_job_attribute(self, node: ast.AST, attribute: str) -> bool:
        return isinstance(node, ast.Attribute) and node.attr == attribute and name_of(node.value) in self.jobs

    def function_of(self, node: ast.AST) -> Function | None:
        return next((n for n in self.ancestors(node) if isinstance(n, Function)), None)

    def ancestors(self, node: ast.AST) -> Iterator[ast.AST]:
        """Yield the enclosing nodes, the nearest first."""
        parent = self.parents.get(node)
        while parent is not None:
            yield parent
            parent = self.parents.get(parent)

    def under_if(self, node: ast.AST, attribute: str) -> bool:
        """True if the node is in a branch of `if job.<attribute>`."""
        below = node
        for parent in self.ancestors(node):
            if (
                isinstance(parent, ast.If)
                and below in parent.body
                and any(self.is_job_attribute(n, attribute) for n in ast.walk(parent.test))
            ):
                return True
            below = parent
        return False

    def in_each_rank(self, node: ast.AST) -> bool:
        """True if the node is in `for rank in job.each_rank():`."""
        return any(
            isinstance(parent, ast.For)
            and isinstance(parent.iter, ast.Call)
            and self.is_job_method(parent.iter, "each_rank")
            for parent in self.ancestors(node)
        )

    def in_isolated(self, node: ast.AST) -> bool:
        """True if the node is in `with job.isolated_rng():`, or another context of the job's."""
        return any(
            isinstance(parent, ast.With)
            and any(
                isinstance(item.context_expr, ast.Call)
                and isinstance(item.context_expr.func, ast.Attribute)
                and name_of(item.context_expr.func.value) in self.jobs
                for item in parent.items
            )
            for parent in self.ancestors(node)
        )


def name_of(node: ast.AST | None) -> str:
    """Return "a.b.c" for a name or a chain of attributes; empty for anything else."""
    return dotted(node) or ""


def last_name(node: ast.AST) -> str:
    return name_of(node).rpartition(".")[2]


def loads(node: ast.AST) -> set[str]:
    """Return the names that are read in the node."""
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}


def calls_in(nodes: Sequence[ast.AST]) -> Iterator[ast.Call]:
    """Yield calls in the order of the text, except in bodies of functions and classes defined there."""
    for node in nodes:
        for found in walk_here(node):
            if isinstance(found, ast.Call):
                yield found


def exits(body: Sequence[ast.stmt]) -> Iterator[ast.Break | ast.Return]:
    """Yield the statements that leave the loop with this body."""
    for statement in body:
        if isinstance(statement, ast.Break | ast.Return):
            yield statement
        elif isinstance(statement, ast.For | ast.While | ast.AsyncFor):
            yield from (e for e in exits([*statement.body]) if isinstance(e, ast.Return))
            yield from exits(statement.orelse)
        elif isinstance(statement, Function | ast.ClassDef):
            continue
        else:
            for part in ("body", "orelse", "finalbody"):
                yield from exits(getattr(statement, part, []))
            for handler in getattr(statement, "handlers", []):
                yield from exits(handler.body)


def is_scheduler(dotted: str) -> bool:
    return "lr_scheduler." in dotted or dotted.rpartition(".")[2] in (
        "CosineAnnealingLR", "CosineAnnealingWarmRestarts", "OneCycleLR", "StepLR", "MultiStepLR", "LambdaLR",
        "LinearLR", "PolynomialLR", "ExponentialLR", "CyclicLR", "SequentialLR", "ReduceLROnPlateau",
        "get_linear_schedule_with_warmup", "get_cosine_schedule_with_warmup",
    )  # fmt: skip


def is_optimizer(dotted: str) -> bool:
    return dotted.startswith("torch.optim.") and "lr_scheduler" not in dotted and "swa_utils" not in dotted


def _is_call_of(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Call) and last_name(node.func) == name


def _pairs(target: ast.expr, value: ast.expr) -> list[tuple[str, ast.expr]]:
    if isinstance(target, ast.Name):
        return [(target.id, value)]
    if isinstance(target, ast.Tuple | ast.List) and isinstance(value, ast.Tuple | ast.List):
        return [pair for t, v in zip(target.elts, value.elts, strict=False) for pair in _pairs(t, v)]
    return []
