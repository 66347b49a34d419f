"""Detect copies of the weights that the script keeps beside the model: an average, a teacher, a target
network.

A copy that was not prepared is not part of the job's state, and a body that updates it does so in every EST's
turn: from intermediate weights, and N times a step. Any object that holds tensors with the shapes of all
trained parameters, in a local variable of the loop's function or a global one, counts as a copy. The first
steps after the start, after a ring change and at the beginning of an epoch are watched; a change in between
causes a warning. Changes show in norms rather than tensor versions, since an average is usually written
through `.data`.
"""

from __future__ import annotations

import sys
import types
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Final

import structlog
import torch

from elastane.runtime.est_step import EstsDisagreeError, EstStep
from elastane.runtime.loop_carried import roles_in
from elastane.runtime.prepared_objects import PreparedObjects
from elastane.script_source.places import OWN_PACKAGES, is_script_class, script_frame
from elastane_common.errors import UnsupportedError

_log = structlog.get_logger(__name__)

_DEPTH_MAX: Final = 4
_OBJECTS_MAX: Final = 5_000
_FOREIGN: Final = frozenset({"numpy", *OWN_PACKAGES})
_PLAIN = (
    str,
    bytes,
    int,
    float,
    complex,
    type,
    types.FunctionType,
    types.ModuleType,
    types.BuiltinFunctionType,
)


class CopyNotPreparedError(UnsupportedError):
    """The loop body changes a copy of the weights that was not prepared."""

    code = "ELA353"


class CopyWatch:
    """Examines the script's variables at the end of each turn.

    registered: objects that each EST has separately. alone: there is a single EST, whose turn runs once a
    step.
    """

    def __init__(
        self, prepared: PreparedObjects, registered: Iterable[object], *, alone: bool = False
    ) -> None:
        self._alone = alone
        self._prepared = prepared
        self._registered = tuple(registered)
        self._shapes = Counter(p.shape for p in prepared.model.parameters() if p.requires_grad)
        self._seen: dict[str, tuple[object, list[float]]] = {}
        self._warned: set[str] = set()

    def begin(self) -> None:
        """Record the copies that exist before the body runs, and warn of those changed between epochs."""
        before, self._seen = self._seen, self._take()
        for name, (owner, now) in self._seen.items():
            known, then = before.get(name, (None, []))
            if known is owner and repr(then) != repr(now) and not self._is_prepared(owner):
                self._warn(
                    name,
                    "a copy of the weights that was not prepared has changed since the steps that were "
                    "watched last. Unless it is set anew from the model in every epoch, a worker that joins "
                    "begins with other values: pass it to prepare, as a module or an object with state_dict "
                    "and load_state_dict",
                )

    def end_est_step(self, est_step: EstStep) -> None:
        """Compare with the previous turn.

        Raises CopyNotPreparedError for a copy that the turn has changed, EstsDisagreeError for a prepared one
        changed in a turn that does not apply the step.
        """
        before, self._seen = self._seen, self._take()
        for name, (owner, now) in self._seen.items():
            known, then = before.get(name, (None, []))
            # repr compares NaN as equal to NaN, which == on lists would not.
            if known is owner and repr(then) != repr(now):
                self._changed(est_step, name, owner)

    def _changed(self, est_step: EstStep, name: str, owner: object) -> None:
        if self._is_prepared(owner):
            if not (est_step.applied and (est_step.asked_stepped or self._alone)):
                raise EstsDisagreeError(
                    f"{name} was changed in step {est_step.step} in the turn of EST {est_step.rank}",
                    hint=(
                        "update it after optimizer.step() under `if job.stepped:`, once per step rather "
                        "than in every EST's turn"
                    ),
                    variable=name,
                )
        elif isinstance(owner, list | tuple | dict):
            self._warn(
                name,
                "a copy of the weights changes in every turn, and workers that join will not have it: "
                "keep it in a module, pass the module to prepare, and update it under `if "
                "job.stepped:`",
                step=est_step.step,
            )
        else:
            raise CopyNotPreparedError(
                f"{name} holds a copy of the weights that was not prepared, and was changed in step "
                f"{est_step.step}: it would change in every EST's turn, and a worker that joins would "
                "not have it",
                hint=(
                    f"write model, ..., {name} = job.prepare(net, ..., {name}), and update it after "
                    "optimizer.step() under `if job.stepped:`; an object that is not a module needs "
                    "state_dict and load_state_dict"
                ),
                variable=name,
            )

    def _is_prepared(self, owner: object) -> bool:
        return any(owner is extra for extra in self._prepared.extras.values())

    def _warn(self, name: str, text: str, **facts: int) -> None:
        """Log a warning of a variable, once for each."""
        if name not in self._warned:
            self._warned.add(name)
            _log.warning(text, variable=name, **facts)

    def _take(self) -> dict[str, tuple[object, list[float]]]:
        """Return, by variable name, the copy that it holds and the norms of its tensors."""
        frame = script_frame(sys._getframe(1))
        if frame is None:
            return {}
        roles = roles_in(frame, self._prepared, self._registered)
        known = {id(tensor) for tensor in self._own_tensors()}
        names: dict[str, Any] = dict(frame.f_globals) | dict(frame.f_locals)
        starts = {name: value for name, value in names.items() if name not in roles and name[:2] != "__"}
        starts |= {f"the prepared {type(one).__name__}": one for one in self._plain_extras()}
        found: dict[str, tuple[object, list[float]]] = {}
        for name, value in starts.items():
            copy = self._copy_in(value, known)
            if copy is None:
                continue
            parts = _parts(value) if is_script_class(type(value)) else {}
            inner = {f"{name}.{part}": (one, self._copy_in(one, known)) for part, one in parts.items()}
            named = {part: (one, copied) for part, (one, copied) in inner.items() if copied is not None}
            found |= named or {name: (value, copy)}
        return found

    def _copy_in(self, value: object, known: Container[int]) -> list[float] | None:
        """Return the norms of the value's tensors other than `known`, or None if they cannot be a copy."""
        try:
            tensors = [one for one in _tensors(value) if id(one) not in known and self._has_values(one)]
        except Exception:  # noqa: BLE001 - an odd object of the script's must not end its training
            return None
        shapes = Counter(tensor.shape for tensor in tensors)
        return norms(tensors) if self._shapes.total() > 1 and self._shapes <= shapes else None

    def _has_values(self, tensor: torch.Tensor) -> bool:
        """True for a tensor that can be read."""
        return True

    def _plain_extras(self) -> list[object]:
        """Extras other than modules; modules are watched by tensor versions in every step."""
        return [extra for extra in self._prepared.extras.values() if not isinstance(extra, torch.nn.Module)]

    def _own_tensors(self) -> Iterator[torch.Tensor]:
        prepared = self._prepared
        modules = [one for one in prepared.extras.values() if isinstance(one, torch.nn.Module)]
        for module in (prepared.model, *modules):
            for tensor in (*module.parameters(), *module.buffers()):
                yield tensor
                if tensor.grad is not None:
                    yield tensor.grad
        for optimizer in prepared.optimizers:
            for state in optimizer.state.values():
                yield from (value for value in state.values() if isinstance(value, torch.Tensor))


def _tensors(start: object) -> Iterator[torch.Tensor]:
    """Yield the tensors that an object holds, approximately: reads no property and calls no method."""
    waiting, seen = [(start, 0)], set[int]()
    while waiting and len(seen) < _OBJECTS_MAX:
        value, depth = waiting.pop()
        if id(value) in seen or isinstance(value, _PLAIN) or value is None:
            continue
        seen.add(id(value))
        if isinstance(value, torch.Tensor):
            if value.layout is torch.strided:
                yield value
        elif isinstance(value, torch.nn.Module):
            yield from (*value.parameters(), *value.buffers())
        elif depth < _DEPTH_MAX:
            waiting += [(child, depth + 1) for child in _children(value)]


def _parts(value: object) -> dict[str, object]:
    """Return the attributes that are objects in their own right, not containers."""
    own = getattr(value, "__dict__", {})
    return {name: part for name, part in own.items() if not isinstance(part, list | tuple | dict)}


def _children(value: object) -> Iterator[object]:
    if isinstance(value, dict):
        return islice(value.values(), _OBJECTS_MAX)
    if isinstance(value, list | tuple):
        return islice(value, _OBJECTS_MAX)
    own = getattr(value, "__dict__", None)
    foreign = type(value).__module__.partition(".")[0] in _FOREIGN
    return iter(list(own.values()) if isinstance(own, dict) and not foreign else ())


def norms(tensors: Sequence[torch.Tensor]) -> list[float]:
    """Return the norm of each tensor; almost any write changes it."""
    with torch.no_grad():
        found = [tensor.detach() for tensor in tensors]
        numbers = (tensor if tensor.is_floating_point() else tensor.double() for tensor in found)
        return [torch.linalg.vector_norm(tensor).item() for tensor in numbers]
