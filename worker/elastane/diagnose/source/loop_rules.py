"""Rules for the loop over mini-batches: values that must be the same in every turn of a step, but differ."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from elastane.diagnose.findings import Severity
from elastane.diagnose.source.notes import Notes
from elastane.diagnose.source.reading import (
    LoaderLoop,
    Script,
    calls_in,
    exits,
    last_name,
    name_of,
)
from elastane.script_source import cure, iteration_counter
from elastane.script_source.names import walk_here

_BATCH_NORMS = ("BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "SyncBatchNorm")
_COUNTS = (
    "a worker's loop has a turn for every EST that it hosts, and begins anew in a worker that joins: it is "
    "not the same in all turns of a step"
)


_COUNTS_STEPS = "a worker that joins begins anew, and a lost step is run again"


def loop_findings(script: Script, notes: Notes) -> None:
    """Note findings in all loops over mini-batches of the file."""
    for loop in script.loader_loops:
        _variables(script, loop, notes)
        if loop.pipeline:  # its turn is a whole step: what is said below is of the turns of ESTs
            continue
        _breaks(loop, notes)
        _written_weights(script, loop, notes)
        _averages(script, loop, notes)
        _backwards(script, loop, notes)
        _second_forward(script, loop, notes)


def _variables(script: Script, loop: LoaderLoop, notes: Notes) -> None:
    """Note carried variables that decide the lr, the loss, or whether a turn steps."""
    noted: set[tuple[str, str]] = set()
    counts = _COUNTS_STEPS if loop.pipeline else _COUNTS
    for carried in script.carried(loop.node):
        name, enumerated = carried.name, carried.name == iteration_counter(loop.node)
        if (name, carried.kind) in noted:
            continue
        noted.add((name, carried.kind))
        if carried.kind == "setting":
            by = "enumerate" if enumerated else "a counter" if carried.counts else "what the loop carries"
            notes.add(
                Severity.REFUSED,
                "loop variable",
                carried.at,
                f"{carried.target} is set from {by}, {name}: {counts}",
                cure(carried, pipeline=loop.pipeline),
                variable=name,
            )
        elif carried.kind == "steps":
            by = "every k-th turn, counted by" if carried.counts else "in some turns, decided by"
            notes.add(
                Severity.REFUSED,
                "loop body",
                carried.at,
                f"{carried.target}() only {by} {name}: {counts}",
                cure(carried, pipeline=loop.pipeline),
                variable=name,
            )
        else:
            notes.add(
                Severity.REFUSED,
                "loop variable",
                carried.at,
                f"{name} decides {carried.decides}, and "
                + ("enumerate counts turns" if enumerated else f"the loop carries {name}")
                + f": {counts}",
                cure(carried, pipeline=loop.pipeline),
                variable=name,
            )


def _breaks(loop: LoaderLoop, notes: Notes) -> None:
    for leave in exits(loop.node.body):
        word = "break" if isinstance(leave, ast.Break) else "return"
        notes.add(
            Severity.REFUSED,
            "break",
            leave,
            f"a {word} in the loader loop: the other ESTs' turns of the step would be missing",
            "to stop after M steps: job.epochs(n, max_steps=M); for shorter epochs: "
            "job.prepare(..., steps_per_epoch=K)",
        )


# ---------------------------------------------------------------------- weights


def _written_weights(script: Script, loop: LoaderLoop, notes: Notes) -> None:
    given = script.kept
    for written, at in _writes(script, loop.node.body):
        if script.under_if(at, "stepped"):
            continue
        if written in script.models or (not script.main and written in ("model", "net")):
            notes.add(
                Severity.REFUSED,
                "after the step",
                at,
                f"weights of {written} are written in every turn, also in those in which the optimizer "
                "does not step",
                "write them after optimizer.step() under `if job.stepped:`",
                variable=written,
            )
        elif written in given:
            notes.add(
                Severity.REFUSED,
                "after the step",
                at,
                f"{written} is changed in every turn, also in those in which the optimizer does not step",
                "change it under `if job.stepped:`",
                variable=written,
            )
        elif script.main:
            notes.add(
                Severity.REFUSED,
                "after the step",
                at,
                f"{written} is a copy of weights that was not passed to prepare: it is changed in every "
                "turn, and a "
                "worker that joins has a new one",
                f"pass {written} to job.prepare, and change it under `if job.stepped:`",
                variable=written,
            )


def _averages(script: Script, loop: LoaderLoop, notes: Notes) -> None:
    """Note `ema.update(model)` of an object that was not passed to prepare."""
    if script.preparation is None:
        return
    given = script.kept
    for call in calls_in(loop.node.body):
        if not isinstance(call.func, ast.Attribute):
            continue
        owner, method = name_of(call.func.value), call.func.attr
        average = method == "update_parameters" or (method == "update" and "ema" in owner.lower())
        if average and owner and owner not in given and not owner.startswith("self."):
            notes.add(
                Severity.REFUSED,
                "after the step",
                call,
                f"{owner} averages the weights and was not passed to prepare: it is updated in every turn, "
                "and a "
                "worker that joins has a new one",
                f"pass {owner} to job.prepare"
                + ("" if method == "update_parameters" else ", and update it under `if job.stepped:`"),
                variable=owner,
            )


def _writes(script: Script, body: Sequence[ast.AST], depth: int = 1) -> Iterator[tuple[str, ast.AST]]:
    """Yield (owner, place) of in-place writes to the elements of a loop over parameters()."""
    for statement in body:
        for node in walk_here(statement):
            if isinstance(node, ast.For):
                yield from _in_parameter_loop(node)
            elif isinstance(node, ast.Call) and depth:
                function = script.functions.get(name_of(node.func))
                if function is not None:
                    names = [argument.arg for argument in function.args.args]
                    passed = dict(zip(names, map(name_of, node.args), strict=False))
                    passed |= {k.arg: name_of(k.value) for k in node.keywords if k.arg}
                    for whose, _ in _writes(script, function.body, 0):
                        yield passed.get(whose, whose).removesuffix(".module"), node


def _in_parameter_loop(loop: ast.For) -> Iterator[tuple[str, ast.AST]]:
    owners = _parameter_owners(loop.iter)
    targets = loop.target.elts if isinstance(loop.target, ast.Tuple | ast.List) else [loop.target]
    if len(owners) == 1:  # also `for name, p in model.named_parameters()`
        whose = {name_of(target): owners[0] for target in targets}
    else:
        whose = {
            name_of(part): owner
            for target, owner in zip(targets, owners, strict=False)
            for part in (target.elts if isinstance(target, ast.Tuple) else [target])
        }
    for statement in loop.body:
        for node in walk_here(statement):
            target: ast.expr | None = None
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                method = node.func.attr
                if method.endswith("_") and not method.endswith("__") and method != "requires_grad_":
                    target = node.func.value
            elif isinstance(node, ast.AugAssign):
                target = node.target
            elif isinstance(node, ast.Assign) and last_name(node.targets[0]) == "data":
                target = node.targets[0]
            while isinstance(target, ast.Call) and isinstance(target.func, ast.Attribute):
                target = target.func.value  # a.mul_(.9).add_(b)
            path = name_of(target).split(".")
            if target is not None and path[0] in whose and "grad" not in path:
                yield whose[path[0]], node
                return


def _parameter_owners(node: ast.expr) -> list[str]:
    """Return the owners of the parameters that an expression iterates.

    For zip(a.parameters(), b.parameters()) these are both modules.
    """
    if not isinstance(node, ast.Call):
        return []
    if isinstance(node.func, ast.Attribute) and node.func.attr in ("parameters", "named_parameters"):
        return [name_of(node.func.value).removesuffix(".module")]
    if isinstance(node.func, ast.Name) and node.func.id in ("zip", "list", "enumerate", "reversed", "tuple"):
        return [owner for argument in node.args for owner in _parameter_owners(argument)]
    if isinstance(node.func, ast.Attribute) and node.func.attr in ("values", "items"):
        inner = node.func.value
        if isinstance(inner, ast.Call) and last_name(inner.func) == "state_dict":
            return [name_of(inner.func).removesuffix(".state_dict")]
    return []


# ---------------------------------------------------------------------- the order of calls


def _backwards(script: Script, loop: LoaderLoop, notes: Notes) -> None:
    seen = [
        call
        for call in calls_in(loop.node.body)
        if isinstance(call.func, ast.Attribute) and call.func.attr == "backward"
    ]
    for call in seen[1:]:
        if not _exclusive(script, seen[0], call):
            notes.add(
                Severity.REFUSED,
                "loop body",
                call,
                "a second backward() in a turn: stock DDP would reduce twice",
                "add the losses and call backward() once; for several mini-batches a step: "
                "accumulation_steps=k",
            )
            return
    for call in seen[:1]:
        inner = next((n for n in script.ancestors(call) if isinstance(n, ast.For | ast.While)), None)
        if inner is not loop.node and inner is not None and script.function_of(call) is loop.function:
            notes.add(
                Severity.REFUSED,
                "loop body",
                call,
                "backward() in a loop within the turn: stock DDP would reduce each time",
                "add the losses and call backward() once",
            )


def _exclusive(script: Script, first: ast.AST, second: ast.AST) -> bool:
    """True if no turn runs both: they are in the two branches of an if, or one branch leaves the turn."""
    chain = {id(node): node for node in script.ancestors(first)}
    below: ast.AST = second
    for parent in script.ancestors(second):
        if id(parent) in chain:
            if not isinstance(parent, ast.If):
                return False
            return (below in parent.body) != any(
                first is inner for one in parent.body for inner in ast.walk(one)
            )
        below = parent
    return False


def _second_forward(script: Script, loop: LoaderLoop, notes: Notes) -> None:
    """Note a second forward before backward(), of a model that changes its buffers in each forward."""
    if not _changes_buffers(script):
        return
    calls = list(calls_in(loop.node.body))
    ends = (c.lineno for c in calls if isinstance(c.func, ast.Attribute) and c.func.attr == "backward")
    end = next(ends, loop.node.end_lineno or loop.node.lineno)
    forwards = [call for call in calls if name_of(call.func) in script.models and call.lineno <= end]
    for call in forwards[1:]:
        if not _exclusive(script, forwards[0], call) and not _without_gradients(script, forwards[0]):
            notes.add(
                Severity.REFUSED,
                "loop body",
                call,
                f"a second forward of {name_of(call.func)} in a turn, and each forward changes the model's "
                "buffers: stock DDP would start it from what rank 0's first forward left",
                "one forward of both inputs, torch.cat([a, b]); or keep buffers as they are in training: "
                "GroupNorm, track_running_stats=False, eval() of the part",
            )
            return


def _without_gradients(script: Script, call: ast.Call) -> bool:
    """True if the call is under torch.no_grad(): DDP broadcasts no buffers after it."""
    return any(
        isinstance(parent, ast.With)
        and any(
            last_name(part) in ("no_grad", "inference_mode")
            for item in parent.items
            for part in ast.walk(item.context_expr)
            if isinstance(part, ast.Attribute | ast.Name)
        )
        for parent in script.ancestors(call)
    )


def _changes_buffers(script: Script) -> bool:
    """True if the source has BatchNorm, or a module whose forward writes to its buffers."""
    for node in ast.walk(script.tree):
        if isinstance(node, ast.Attribute | ast.Name) and last_name(node) in _BATCH_NORMS:
            return True
        if isinstance(node, ast.ClassDef) and (buffers := _buffers_of(node)):
            forwards = (one for one in node.body if getattr(one, "name", "") == "forward")
            if any(_written(part) in buffers for one in forwards for part in ast.walk(one)):
                return True
    return False


def _buffers_of(kind: ast.ClassDef) -> set[str]:
    registered = (n for n in ast.walk(kind) if isinstance(n, ast.Call) and n.args)
    names = (getattr(n.args[0], "value", None) for n in registered if last_name(n.func) == "register_buffer")
    return {f"self.{name}" for name in names if isinstance(name, str)}


def _written(node: ast.AST) -> str:
    """Return the target of an in-place write, as "self.mean"; empty for anything else."""
    if isinstance(node, ast.AugAssign):
        return name_of(node.target)
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
        return name_of(node.value)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr.endswith("_"):
        return name_of(node.func.value)
    return ""
