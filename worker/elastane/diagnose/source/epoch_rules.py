"""Rules for the loop over epochs, outside the loop over mini-batches."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from elastane.diagnose.findings import Severity
from elastane.diagnose.source.notes import Notes
from elastane.diagnose.source.reading import Script, exits, name_of
from elastane.script_source import Carried
from elastane.script_source.across_epochs import carry_line, is_attribute
from elastane.script_source.loops import node_of
from elastane.script_source.words import NUMPY_UNEVEN, PYTHON_UNEVEN


def epoch_findings(script: Script, notes: Notes) -> None:
    """Note findings in all loops over job.epochs of the file."""
    for loop in script.epoch_loops:
        noted = _variables(script, loop, notes)
        _breaks(loop, notes, noted)
        _draws(script, loop, notes)
        _gathered_by_one(script, loop, notes)
        _early_leader(script, loop, notes)


def _variables(script: Script, loop: ast.For, notes: Notes) -> set[int]:
    """Note variables that live across epochs and decide something.

    Return the lines that decide when to stop.
    """
    decided: dict[str, list[str]] = {}
    first: dict[str, Carried] = {}
    stops: set[int] = set()
    for carried in sorted(script.across_epochs(loop), key=lambda one: one.kind == "kept"):
        if carried.kind == "stop":
            stops.add(carried.at)
        words = f"sets {carried.target}" if carried.kind == "setting" else f"decides {carried.decides}"
        if words not in decided.setdefault(carried.name, []):
            decided[carried.name].append(words)
        first.setdefault(carried.name, carried)
    for name, found in decided.items():
        what, todo = _origin(first[name])
        notes.add(
            Severity.DIFFERS,
            "saved weights" if first[name].kind == "kept" else "epoch variable",
            first[name].line if is_attribute(first[name]) else first[name].at,
            f"{name} {what[0]} and {' and '.join(found)}: {what[1]}",
            todo,
            variable=name,
        )
    return stops


def _origin(carried: Carried) -> tuple[tuple[str, str], str]:
    """Return what is wrong with a value that comes from there, in two parts, and the remedy."""
    carry = f"{carry_line([carried])}: it travels with the model"
    if carried.origin == "model":
        what = (
            "is computed from the model between epochs",
            ("a worker that joins in the middle of an epoch computes it from the weights of that step"),
        )
        return what, f"{carry}; pass a module to prepare instead, and set its weights by load_state_dict"
    if carried.origin == "turns":
        what = (
            "is computed from a worker's mini-batches",
            ("a worker has those of all ranks that it hosts, each rank of DDP only its own"),
        )
        return what, "compute it from what is the same in all workers: evaluate the whole set in each worker"
    lost = (
        ""
        if carried.kind == "kept" or is_attribute(carried)
        else ", and the job cannot continue from a checkpoint"
    )
    return ("lives across epochs", f"a worker that joins later does not have it{lost}"), carry


def _breaks(loop: ast.For, notes: Notes, noted: set[int]) -> None:
    for leave in exits(loop.body):
        if leave.lineno not in noted and isinstance(leave, ast.Break):
            notes.add(
                Severity.NOTE,
                "break",
                leave,
                "a break out of job.epochs: this is correct only if all workers do it in the same epoch",
                "decide it from what all workers have alike: the evaluated model, and values of "
                "job.carry(...)",
            )


def _gathered_by_one(script: Script, loop: ast.For, notes: Notes) -> None:
    """Note values of all ranks that only the leader asks for: stock DDP would wait for ever."""
    for node in ast.walk(loop):
        if not isinstance(node, ast.Call) or not script.under_if(node, "is_leader"):
            continue
        for asked in ("gather", "reduce"):
            if script.is_job_attribute(node.func, asked):
                notes.add(
                    Severity.REFUSED,
                    "between epochs",
                    node,
                    f"job.{asked} under `if job.is_leader`: every rank has to call it; under stock DDP it"
                    " waits for the others for ever",
                    "call it in every worker, and use the result in the leader",
                )


def _draws(script: Script, loop: ast.For, notes: Notes) -> None:
    """Note random numbers drawn between epochs that cannot be attributed to a rank with certainty."""
    loader_loops = {id(node_of(one.node)) for one in script.loader_loops}
    for node in _outside(loop, loader_loops):
        if (
            isinstance(node, ast.Call)
            and not script.in_isolated(node)
            and not script.in_each_rank(node)
            and not script.under_if(node, "is_leader")
        ):
            dotted = script.dotted(node.func)
            module, _, method = dotted.rpartition(".")
            uneven = PYTHON_UNEVEN if module == "random" else NUMPY_UNEVEN
            if module in ("random", "numpy.random", "np.random") and method in uneven:
                notes.add(
                    Severity.REFUSED,
                    "between epochs",
                    node,
                    f"{name_of(node.func)} draws between epochs, as many numbers as it happens to need: "
                    "what each rank would have drawn is not known",
                    "`for rank in job.each_rank():` around it has stock DDP's bits; or draw inside "
                    "`with job.isolated_rng():`, or from a generator of your own, seeded with the epoch",
                )
    for name, value in script.assigned:
        if script.is_job_attribute(value, "is_leader") and any(
            isinstance(node, ast.If)
            and name in {n.id for n in ast.walk(node.test) if isinstance(n, ast.Name)}
            for node in ast.walk(loop)
        ):
            notes.add(
                Severity.NOTE,
                "between epochs",
                value,
                f"{name} stores job.is_leader, and another worker may lead later; random numbers drawn "
                "under it cannot be attributed to the leader",
                "read job.is_leader where it is needed",
                variable=name,
            )


def _early_leader(script: Script, loop: ast.For, notes: Notes) -> None:
    """Note job.is_leader before there is a ring: in the loop's own function, above it."""
    home = script.function_of(loop)
    for node in ast.walk(home or script.tree):
        if (
            script.is_job_attribute(node, "is_leader")
            and node.lineno < loop.lineno  # type: ignore[attr-defined]
            and script.function_of(node) is home
        ):
            notes.add(
                Severity.REFUSED,
                "between epochs",
                node,
                "job.is_leader is read before job.epochs, where no worker has joined the ring: nobody "
                "leads yet",
                "read it in the loop over job.epochs or after it; before that, do only what every worker "
                "may do",
            )


def _outside(node: ast.AST, left_out: set[int]) -> Iterator[ast.AST]:
    """Yield the nodes in the loop, except the loops over mini-batches."""
    for child in ast.iter_child_nodes(node):
        if id(child) not in left_out:
            yield child
            yield from _outside(child, left_out)
