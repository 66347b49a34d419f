"""Finds Python values that a loop's body carries from one turn to the next and that affect the result.

The loop body runs once for each EST of a worker, and again when a step is replayed. So a Python value carried
from one turn to the next (a count of steps, a running mean) differs from that of any stock rank. Most such
values are only printed. `carried_values` finds those that affect the result: it interprets the body
abstractly (`body`) and looks at what backward() is called on, what is written to a param_group, what decides
whether backward() or optimizer.step() is called, and what clips the gradients.

Pure: source in, findings out. Whatever cannot be followed (aliases, state inside libraries) counts as
harmless, so there are no false alarms, but some values may be missed.
"""

from __future__ import annotations

import ast
from collections.abc import Container, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from elastane.script_source.body import Body, Kind, Place, Role, Values
from elastane.script_source.callees import Callees, loop_scope
from elastane.script_source.epoch_body import EpochBody, Inputs, Origin, origin_of
from elastane.script_source.loops import Loop, iteration_counter, node_of
from elastane.script_source.names import Function, parameters, stored, walk_scope, within

#: Decisions that affect the result of a step. Loading weights and ending the loop matter only across epochs.
IN_ITERATIONS: Final[frozenset[Kind]] = frozenset({"setting", "loss", "steps", "clipping", "model"})
IN_EPOCHS: Final[frozenset[Kind]] = IN_ITERATIONS | {"stop", "weights", "attribute", "kept"}


@dataclass(frozen=True)
class Carried:
    """A value that the loop carries from turn to turn and that decides the result.

    name: as written in the loop, "it" or "self.it". line: where it is changed. counts: True if it counts
    turns. decides: what it affects, in words, at line `reaches`; kind: the kind of that. target: "lr" for a
    setting, the call such as "opt.step" for steps, or the attribute. at: line of the call for steps, else
    `reaches`. file, reaches_file: files of these lines if not the loop's; otherwise "". origin: source of the
    value, if not the previous turn or epoch.
    """

    name: str
    line: int
    counts: bool
    decides: str
    reaches: int
    kind: Kind
    target: str
    at: int
    file: str = ""
    reaches_file: str = ""
    origin: Origin = "carried"


def carried_values(
    tree: ast.Module,
    loop: Loop,
    roles: Mapping[str, Role],
    names: Mapping[str, object] = MappingProxyType({}),
    *,
    kinds: Container[Kind] = IN_ITERATIONS,
    setters: Mapping[str, str] = MappingProxyType({}),
    counting: Mapping[str, Place] = MappingProxyType({}),
    inputs: Inputs | None = None,
) -> list[Carried]:
    """Find the values that a loop carries into its result, sorted by the lines that they affect.

    tree: the whole file. loop: a loop in it, as a rule the one over the prepared loader. roles: objects
    managed by Elastane, by name ("model", "self.model"); they carry nothing. names: values of names when the
    loop begins; with them, functions of other files are followed too, and branches that the script's options
    rule out are skipped. kinds: restricts
    what is looked for. setters: functions that write to param_groups, and the key. counting: attributes of
    the model that its own methods change in every turn, as the loop writes them, and where. inputs: the
    training loop's inputs, if `loop` is a loop over epochs.
    """
    home = _home(tree, loop)
    function = home if isinstance(home, Function) else None
    scope = loop_scope(tree, function, names)
    callees = Callees(scope, function)
    inside = {name for name in stored(loop.target) if not within(name, roles)}
    fresh = _only_inside(home, loop)
    while True:  # what the calls of the body change is only known once it has run
        body = (
            Body(scope, callees, roles, inside, setters)
            if inputs is None
            else EpochBody(scope, callees, roles, inside, setters, inputs)
        )
        body.changed |= {name: frozenset({name}) for name in counting}
        body.places |= counting
        begun = {*inside, *counting} - fresh
        _run(body, loop, {name: frozenset({name}) for name in begun})
        found = {name for name in body.changed if "@" not in name} - inside - set(counting)
        if not found:
            break
        inside = inside | found
    result: dict[tuple[str, str], Carried] = {}
    for one in body.reached:
        for by in sorted(one.by) if one.kind in kinds else ():
            origin, name = origin_of(by)
            known = body.changed.get(name) if origin == "carried" else by in body.places
            if known and (name, one.decides) not in result:
                where: Place = body.places[by]
                result[name, one.decides] = Carried(
                    name, where.line, name in body.counters,
                    one.decides, one.place.line, one.kind, one.target, one.at, where.file, one.place.file,
                    origin,
                )  # fmt: skip
    return sorted(result.values(), key=lambda carried: carried.reaches)


def cure(carried: Carried, *, pipeline: bool = False) -> str:
    """Return the advice that fixes a value carried by the loop over the prepared loader.

    pipeline: the loop's turn is a step of a pipeline.
    """
    if pipeline:
        return _cure_in_pipeline(carried)
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


def _cure_in_pipeline(carried: Carried) -> str:
    if carried.kind == "steps":
        return (
            "a turn is a whole step: to add up gradients over k mini-batches give prepare_pipeline"
            " accumulation_steps=k and step in every turn; else let job.step decide"
        )
    if carried.counts:
        return (
            "it counts turns, of which a worker that joins has run fewer, and one whose step was lost more:"
            " use job.step, the number of the step"
        )
    return (
        "a worker that joins begins with the first value, and a lost step changes it twice: keep it in"
        " job.carry, changed after optimizer.step() `if job.stepped:`, or compute it from job.step; what is"
        " counted by mini-batch belongs in a unit, as a buffer"
    )


def _run(body: Body, loop: Loop, values: Values) -> None:
    """Interpret one turn of the loop."""
    counter = iteration_counter(loop)
    body.begin(loop.target, loop.iter, values)
    if counter is not None:
        values[counter] = frozenset({counter})
        body.changed[counter] = frozenset({counter})
        body.places[counter] = Place(loop.lineno)
        body.counters.add(counter)
    body.run(loop.body, values)


def _only_inside(home: ast.Module | Function, loop: Loop) -> set[str]:
    """Return the names that are assigned only inside the loop, within its function or module.

    The first turn has no earlier value of them, so a turn that reads one must have assigned it itself.
    """
    inside = {id(node) for node in ast.walk(node_of(loop))}
    only, before = set[str](), set[str]()
    for node in walk_scope(home.body):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            (only if id(node) in inside else before).add(node.id)
        elif isinstance(node, ast.Global | ast.Nonlocal):
            before |= set(node.names)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            before |= {alias.asname or alias.name for alias in node.names}
    if isinstance(home, Function):
        before |= {argument.arg for argument in parameters(home)}
    return only - before


def _home(tree: ast.Module, loop: Loop) -> ast.Module | Function:
    """Return the function that contains the loop, or the module."""
    node = node_of(loop)
    homes = [one for one in ast.walk(tree) if isinstance(one, Function) and node in walk_scope(one.body)]
    return homes[0] if homes else tree
