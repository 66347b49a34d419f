"""Refuse, at their line, values that the script carries from turn to turn and that decide the result.

The analysis of the source (`script_source`) is combined with run-time facts: the frame of the loop shows
which names are the prepared objects, and an attribute of the model or of an optimizer is an error once it has
changed twice in a row. Without source (exec, a deleted notebook cell) nothing is reported.
"""

from __future__ import annotations

import functools
import sys
import types
import weakref
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

import torch

from elastane.runtime.est_step import EstStep
from elastane.runtime.prepared_objects import PreparedObjects
from elastane.script_source import (
    Carried,
    ClassSource,
    Role,
    carried_attributes,
    carried_values,
    cure,
    loop_at,
    reported_attributes,
)
from elastane.script_source.body import Place
from elastane.script_source.loops import is_generator
from elastane.script_source.places import (
    OWN_PACKAGES,
    display_name,
    is_script_class,
    is_script_file,
    tree_of,
)
from elastane_common.errors import UnsupportedError

_TIMES: Final = 2
"""Consecutive changes from which on an attribute counts as carried, not as initialized on first use."""


#: Number of elements of a container that are compared, besides its length.
_ITEMS_MAX: Final = 64


class CarriedValueError(UnsupportedError):
    """A value that the loop, the model or an optimizer carries along decides the result."""

    code = "ELA352"


# ---------------------------------------------------------------------- the loop


def check_loop(
    frame: types.FrameType | None,
    prepared: PreparedObjects,
    registered: Iterable[object],
    *,
    pipeline: bool = False,
) -> None:
    """Refuse values that the running loop over the prepared loader carries into its result.

    frame: of the code that requests a mini-batch. pipeline: the model is cut into units. Raises
    CarriedValueError with the lines.
    """
    found = carried_in_loop(frame, prepared, registered)
    if found:
        file, carried = found[0]
        changed, reaches = carried.file or file, carried.reaches_file or file
        of = f" of {reaches}" if reaches != changed else ""
        raise CarriedValueError(
            f"{changed}, line {carried.line}: {carried.name} is carried from turn to turn, and decides"
            f" {carried.decides} in line {carried.reaches}{of}",
            hint=cure(carried, pipeline=pipeline),
            variable=carried.name,
        )


def carried_in_loop(
    frame: types.FrameType | None, prepared: PreparedObjects, registered: Iterable[object]
) -> list[tuple[str, Carried]]:
    """Return the values that `check_loop` refuses, each with its file's name; for `elastane doctor`."""
    result: list[tuple[str, Carried]] = []
    while frame is not None:
        tree = tree_of(frame.f_code.co_filename) if is_script_file(frame.f_code.co_filename) else None
        generator = frame.f_code.co_name == "<genexpr>"
        loop = loop_at(tree, frame.f_lineno, generator=generator) if tree is not None else None
        if tree is not None and loop is not None:
            roles = roles_in(frame, prepared, registered)
            names = {**frame.f_globals, **frame.f_locals}
            counting = _counting(prepared.model, [name for name, role in roles.items() if role == "model"])
            found = carried_values(tree, loop, roles, names, counting=counting)
            result += [(display_name(frame.f_code.co_filename), carried) for carried in found]
            if not is_generator(loop):
                break
        frame = frame.f_back
    return result


def _counting(model: torch.nn.Module, names: Iterable[str]) -> dict[str, Place]:
    """Return attributes that modules only count in and do not read: code that reads them decides the result.

    names: the model's names in the loop. Keys are attributes as the loop writes them, values the places of
    change.
    """
    found: dict[str, Place] = {}
    for inner, module in model.named_modules():
        for attribute, place in reported_attributes(_sources(module), module).items():
            path = f"{inner}.{attribute}" if inner else attribute
            found |= {f"{name}.{path}": place for name in names}
    return found


def roles_in(
    frame: types.FrameType, prepared: PreparedObjects, registered: Iterable[object]
) -> dict[str, Role]:
    """Return the roles of the names in a frame that refer to objects kept by the job."""
    roles: dict[int, Role] = {id(one): "other" for one in (*registered, prepared.loader)}
    roles |= {id(one): "other" for one in (*prepared.schedulers, *prepared.extras.values())}
    roles |= {id(one): "optimizer" for one in (*prepared.optimizers, *prepared.scalers)}
    roles[id(prepared.model)] = "model"
    names = dict(frame.f_globals) | dict(frame.f_locals)
    result: dict[str, Role] = {}
    for name, value in with_attributes(names):
        if id(value) in roles:
            result[name] = roles[id(value)]
        elif type(value).__module__.partition(".")[0] in OWN_PACKAGES or _is_loader(value):
            result[name] = "other"
    return result


def with_attributes(names: dict[str, Any]) -> Iterator[tuple[str, object]]:
    """Yield names with their values, and the attributes of those that are of the script's own classes."""
    for name, value in names.items():
        yield name, value
        if is_script_class(type(value)):
            yield from ((f"{name}.{part}", inner) for part, inner in getattr(value, "__dict__", {}).items())


def _is_loader(value: object) -> bool:
    """True if it is the iterator returned by the prepared loader."""
    return isinstance(value, types.GeneratorType) and not is_script_file(value.gi_code.co_filename)


# ---------------------------------------------------------------------- attributes of modules and optimizers


@dataclass(slots=True)
class _Attribute:
    """An attribute that its class computes from its previous value.

    changes: consecutive turns with a change.
    """

    owner: Any
    name: str
    shown: str
    where: str
    mark: Any
    changes: int = 0


class AttributeWatch:
    """Watches plain attributes of the model's modules and of optimizers, which are in no state and not per
    EST.

    Only the script's own classes are examined, and only attributes that their source shows to be carried.
    loss_fn: of a pipeline; its object is examined, too.
    """

    def __init__(self, prepared: PreparedObjects, loss_fn: object = None) -> None:
        modules = [
            (f"model.{name}" if name else "model", one) for name, one in prepared.model.named_modules()
        ]
        self._of_modules = [found for shown, one in modules for found in _carried_by(one, shown)]
        self._of_optimizers = [
            found
            for one in prepared.optimizers
            if not _has_own_state(one)
            for found in _carried_by(one, type(one).__name__)
        ]
        self._of_loss = [found for shown, one in _parts_of_loss(loss_fn) for found in _carried_by(one, shown)]

    def end_est_step(self, est_step: EstStep) -> None:
        """Raise CarriedValueError for an attribute that keeps changing."""
        for attribute in self._of_modules:
            if _goes_on(attribute):
                raise CarriedValueError(
                    f"{attribute.shown} ({attribute.where}) changes from turn to turn, and decides what the"
                    " model does",
                    hint=(
                        "make it a buffer (self.register_buffer) that forward writes to in place: each "
                        "step then begins with rank 0's buffer, as under DDP; or compute it from job.step"
                    ),
                    attribute=attribute.shown,
                )
        for attribute in self._of_loss:
            if _goes_on(attribute):
                raise CarriedValueError(
                    f"{attribute.shown} ({attribute.where}) changes from mini-batch to mini-batch, and"
                    " decides the loss",
                    hint="compute it from job.step; what is counted belongs in a unit, as a buffer",
                    attribute=attribute.shown,
                )
        for attribute in self._of_optimizers if est_step.applied else ():
            if _goes_on(attribute):
                raise CarriedValueError(
                    f"{attribute.shown} ({attribute.where}) changes with every step, decides what the"
                    " optimizer does, and is not in its state_dict: a worker that joins would not have it",
                    hint="keep it in self.state[parameter] or in a param_group, which state_dict holds",
                    attribute=attribute.shown,
                )


def _parts_of_loss(loss_fn: Any) -> Iterator[tuple[str, object]]:
    """Yield the objects in which a loss function may keep values."""
    while isinstance(loss_fn, functools.partial):
        loss_fn = loss_fn.func
    owner = getattr(loss_fn, "__self__", loss_fn)
    if isinstance(owner, torch.nn.Module):
        for name, module in owner.named_modules():
            yield f"loss_fn.{name}" if name else "loss_fn", module
    elif hasattr(owner, "__dict__"):
        yield "loss_fn", owner


def _carried_by(owner: Any, shown: str) -> Iterator[_Attribute]:
    for name, place in carried_attributes(_sources(owner), owner).items():
        where = f"{place.file}, line {place.line}"
        yield _Attribute(owner, name, f"{shown}.{name}", where, _mark(vars(owner).get(name)))


def _sources(owner: object) -> list[ClassSource]:
    """Return the classes of an object that the script itself defines."""
    found = []
    for kind in type(owner).__mro__:
        names = vars(sys.modules[kind.__module__]) if kind.__module__ in sys.modules else {}
        file = names.get("__file__") or ""
        tree = tree_of(file) if is_script_file(file) else None
        if tree is not None:
            found.append(ClassSource(tree, kind.__name__, names, display_name(file)))
    return found


def _goes_on(attribute: _Attribute) -> bool:
    """True once the attribute has changed in enough turns in a row."""
    mark = _mark(vars(attribute.owner).get(attribute.name))
    attribute.changes = attribute.changes + 1 if mark != attribute.mark else 0
    attribute.mark = mark
    return attribute.changes >= _TIMES


class _TensorMark:
    """Version of a tensor without a reference to it: equal if it is the same tensor and unwritten."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = weakref.ref(tensor)
        self._version = tensor._version

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _TensorMark):
            return False
        known, same = self._tensor(), other._tensor()
        return known is not None and known is same and self._version == other._version

    __hash__ = None  # type: ignore[assignment]


def _mark(value: object) -> object:
    """Return a value that differs before and after a change, without holding tensors."""
    if isinstance(value, torch.nn.Parameter | torch.nn.Module):
        return None
    if isinstance(value, torch.Tensor):
        return _TensorMark(value)
    if isinstance(value, list | tuple | set | deque | dict):
        first = islice(value.values() if isinstance(value, dict) else value, _ITEMS_MAX)
        return len(value), [_mark(one) for one in first]
    return value if isinstance(value, int | float | complex | str | None) else None


def _has_own_state(optimizer: torch.optim.Optimizer) -> bool:
    """True if the optimizer's class defines its own `state_dict`."""
    return type(optimizer).state_dict is not torch.optim.Optimizer.state_dict
