"""Finds variables that persist across epochs and affect the result: the best metric, a patience.

A worker that joins later, or a job resumed from a checkpoint, starts from their initial values unless
`job.carry` keeps them. Also finds values computed from the model before the loop over mini-batches, and sums
over one worker's mini-batches (see `epoch_body`). Pure, like `carrying`, on which it builds.
"""

from __future__ import annotations

import ast
from collections.abc import Container, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from elastane.script_source.body import HYPERPARAMETERS, Place, Role
from elastane.script_source.callees import pipes_in
from elastane.script_source.carrying import IN_EPOCHS, Carried, carried_values
from elastane.script_source.epoch_body import Inputs
from elastane.script_source.loops import Loop
from elastane.script_source.names import Function, dotted

NO_INPUTS: Final = Inputs()


def epoch_values(
    tree: ast.Module,
    loop: Loop,
    roles: Mapping[str, Role],
    names: Mapping[str, object] = MappingProxyType({}),
    inputs: Inputs = NO_INPUTS,
    counting: Mapping[str, Place] = MappingProxyType({}),
) -> list[Carried]:
    """Return the values that the loop over epochs carries into later steps, in the order of lines reached.

    Excludes values that an inner loop over mini-batches carries from turn to turn; they are refused there.
    roles, names, inputs, counting: as for `carried_values`.
    """
    setters = setters_of(tree)
    inside = {
        carried.name
        for inner in _training_loops(loop, pipes_in(tree, names))
        for carried in carried_values(tree, inner, roles, names, setters=setters, counting=counting)
    }
    found = carried_values(
        tree, loop, roles, names, kinds=IN_EPOCHS, setters=setters, counting=counting, inputs=inputs
    )
    across = {carried.name for carried in found if carried.origin == "carried"}
    return [
        carried
        for carried in found
        if carried.name not in inside and (carried.origin == "carried" or carried.name not in across)
    ]


def in_words(carried: Carried) -> str:
    """Describe, for messages, where the variable is set and what it affects."""
    return f"{carried.name}, set in line {carried.line}, decides {carried.decides} in line {carried.reaches}"


def carry_line(found: Sequence[Carried]) -> str:
    """Return the change to the script that makes the values part of the job's state."""
    names = list(dict.fromkeys(one.name.rpartition(".")[2] for one in found if not is_attribute(one)))
    given = ", ".join(f"{name}=..." for name in names)
    lines = []
    if names:
        lines.append(
            f"write `state = job.carry({given})` before the loop over epochs, and `state.{names[0]}` in it"
        )
    if parts := [one.name for one in found if is_attribute(one)]:
        lines.append(
            f"set {', '.join(dict.fromkeys(parts))} in every epoch before the loop over mini-batches, from "
            "the number of the epoch or from values of job.carry"
        )
    return "; ".join(lines)


def is_attribute(carried: Carried) -> bool:
    """True for an attribute of the model or the dataset, which job.carry cannot replace."""
    return carried.kind == "attribute" and carried.name == carried.target


def setters_of(tree: ast.AST) -> dict[str, str]:
    """Map each function that writes to param_groups to the first hyperparameter that it sets."""
    found: dict[str, str] = {}
    for function in ast.walk(tree):
        if not isinstance(function, Function):
            continue
        keys = [
            key
            for node in ast.walk(function)
            if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store)
            if (key := getattr(node.slice, "value", None)) in HYPERPARAMETERS
        ]
        if keys and any(getattr(node, "attr", "") == "param_groups" for node in ast.walk(function)):
            found[function.name] = keys[0]
    return found


def _training_loops(loop: Loop, pipes: Container[str]) -> Iterator[Loop]:
    """Yield the inner loops that call backward(), or a pipeline's pipe."""
    for node in ast.walk(loop):
        if node is not loop and isinstance(node, Loop) and _trains(node, pipes):
            yield node


def _trains(loop: Loop, pipes: Container[str]) -> bool:
    return any(
        getattr(node, "attr", "") == "backward" or (isinstance(node, ast.Call) and dotted(node.func) in pipes)
        for node in ast.walk(loop)
    )
