"""Stand-ins for gradients that other workers hold, shown as `p.grad` of their parameters.

Between `pipe(batch)` and the next step a worker has the averages of its own units only. A script that adds up
the squares of the gradients it sees would clip by a different norm in each worker. So `p.grad` of all other
parameters is an `AbsentGradient`. Results computed from it are absent, too, and have no values: code that
asks for a number, or changes a local gradient by one, is refused. Operations on single gradients run on the
worker that holds them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, NoReturn, cast

import torch
from torch import Tensor, nn

from elastane.pipeline.units import Units
from elastane.runtime.pipelines.errors import PipelineBodyError
from elastane.state.unit_optimizer import UnitOptimizer

#: Attributes of a tensor that do not depend on its values, but differ on the meta device.
_FORM: Final = frozenset(
    {"device", "is_cuda", "is_cpu", "is_meta", "get_device", "type", "__repr__", "__hash__", "__class__"}
    | {"__len__", "layout", "dtype", "shape", "size", "stride", "dim", "numel", "_version"}
)
#: Functions that read values and would not fail on the meta device.
_READS: Final = frozenset(
    {"__format__", "__reduce_ex__", "__array__", "__dlpack__", "data_ptr", "equal", "tolist"}
)
_MOVES: Final = frozenset({"to", "cpu", "cuda"})


class AbsentGradient(Tensor):
    """Stand-in for another worker's gradient: its shape, in one element of memory. Made by `of`."""

    @classmethod
    def of(cls, like: Tensor) -> AbsentGradient:
        """Return the stand-in for a tensor of this shape, dtype and device."""
        with torch._C.DisableTorchFunctionSubclass(), torch.no_grad():
            one = torch.full((), torch.nan if like.is_floating_point() or like.is_complex() else 0)
            one = one.to(like.dtype).to("cpu" if like.device.type == "meta" else like.device)
            made: AbsentGradient = one.expand(like.shape).as_subclass(cls)
            return made

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Iterable[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        given, name = dict(kwargs or {}), _name(func)
        with torch._C.DisableTorchFunctionSubclass():
            if name in _FORM:
                return func(*args, **given)
            if name in _READS:
                _refuse()
            if name.startswith("_foreach_"):
                return _each(func, name, args, given)
            return _computed(func, name, args, given)


class AbsentGradients:
    """Shows the stand-ins to the script, and the optimizer's groups with all their parameters.

    Used by the runner. active: returns the units that this worker steps.
    """

    def __init__(self, units: Units, optimizer: UnitOptimizer, active: Callable[[], Iterable[int]]) -> None:
        self._units, self._optimizer, self._active = units, optimizer, active
        self._shown: list[nn.Parameter] = []
        self._made: dict[int, AbsentGradient] = {}

    def show(self) -> None:
        """Show the stand-ins. Called once the averages are in `p.grad` of the local parameters."""
        units = self._units
        here = {place for unit in self._active() for place in units.owned(unit)}
        for place, (spec, parameter) in enumerate(zip(units.specs, units.parameters, strict=True)):
            if place in here or not spec.requires_grad:
                continue
            parameter.grad = None
            if place not in self._made:
                self._made[place] = AbsentGradient.of(parameter)
            parameter.grad = self._made[place]
            self._shown.append(parameter)
        self._optimizer.show_all()

    @contextmanager
    def groups_hidden(self) -> Iterator[None]:
        """Context manager in which the optimizer's groups contain only local parameters.

        The optimizer steps these; the script's hooks before a step see all parameters, as the loop body does.
        """
        shown, hooks, optimizer = self._optimizer.shows_all, [], self._optimizer.optimizer
        self._optimizer.show_held()
        present = cast("OrderedDict[int, Any]", optimizer._optimizer_step_pre_hooks)
        if shown and present:
            hooks = [optimizer.register_step_pre_hook(hook) for hook in (self._show_all, self._show_held)]
            present.move_to_end(hooks[0].id, last=False)
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()
            if shown:
                self._optimizer.show_all()

    def _show_all(self, *_: Any) -> None:
        self._optimizer.show_all()

    def _show_held(self, *_: Any) -> None:
        self._optimizer.show_held()

    def hide(self) -> None:
        """Remove them."""
        self._optimizer.show_held()
        for parameter in self._shown:
            if isinstance(parameter.grad, AbsentGradient):
                parameter.grad = None
        self._shown = []


def is_absent_gradient(tensor: Tensor) -> bool:
    """True for a stand-in, and for results computed from one."""
    return isinstance(tensor, AbsentGradient)


def _refuse() -> NoReturn:
    raise PipelineBodyError(
        "the script asks for a value that depends on p.grad of a parameter whose gradient is in another"
        " worker",
        hint="for the norm of all gradients write pipe.clip_grad_norm_(max_norm), which returns it (and with"
        " max_norm=inf changes nothing); else change each gradient by itself",
    )


def _name(func: Callable[..., Any]) -> str:
    """Return a function's name; for the getter of a property, the property's name."""
    name: str = getattr(func, "__name__", "")
    return str(getattr(getattr(func, "__self__", None), "__name__", name)) if name == "__get__" else name


def _writes(name: str) -> bool:
    return (
        (name.endswith("_") and not name.endswith("__"))
        or (name.startswith("__i") and name not in ("__invert__", "__index__", "__int__"))
        or name in ("__setitem__", "__set__")
    )


def _computed(func: Callable[..., Any], name: str, args: Sequence[Any], given: dict[str, Any]) -> Any:
    """Return a function's result, without values."""
    if (_writes(name) and args) or given.get("out") is not None:
        changed = given.get("out", args[0] if args else None)
        if not isinstance(changed, AbsentGradient):
            _refuse()
        return None if name in ("__setitem__", "__set__") else changed
    try:
        found = func(*_mapped(args, _meta), **_mapped(given, _meta))
    except (RuntimeError, TypeError, NotImplementedError) as error:
        if name in _MOVES:
            return args[0]
        if "meta" in str(error).lower():
            _refuse()
        raise
    return _mapped(found, AbsentGradient.of)


def _each(func: Callable[..., Any], name: str, args: Sequence[Any], given: dict[str, Any]) -> Any:
    """Run a function of lists (`torch._foreach_*`) on the local gradients; other results are absent."""
    lists = [one for one in (*args, *given.values()) if isinstance(one, list | tuple)]
    count = len(lists[0]) if lists else 0
    others = [one for one in (*args, *given.values()) if not isinstance(one, list | tuple)]
    if any(isinstance(one, AbsentGradient) for one in others):
        _refuse()
    absent = {i for i in range(count) for one in lists if i < len(one) and isinstance(one[i], AbsentGradient)}
    here = [i for i in range(count) if i not in absent]
    writes = _writes(name)
    if writes and any(not isinstance(lists[0][i], AbsentGradient) for i in absent):
        _refuse()

    def chosen(value: Any, places: Sequence[int], change: Callable[[Tensor], Any] | None = None) -> Any:
        if not isinstance(value, list | tuple) or len(value) != count:
            return value
        picked = [value[i] for i in places]
        return picked if change is None else _mapped(picked, change)

    found: list[Any] = [None] * count
    if here:
        result = func(*(chosen(one, here) for one in args), **{k: chosen(v, here) for k, v in given.items()})
        for place, one in zip(here, result or [None] * len(here), strict=True):
            found[place] = one
    if writes:
        return None
    for place in sorted(absent):
        (one,) = func(
            *(chosen(one, [place], _meta) for one in args),
            **{key: chosen(value, [place], _meta) for key, value in given.items()},
        )
        found[place] = AbsentGradient.of(one)
    return found


def _mapped(value: Any, change: Callable[[Tensor], Any]) -> Any:
    """Return a structure with its tensors changed."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, dict):
        return {key: _mapped(one, change) for key, one in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_mapped(one, change) for one in value))
    if isinstance(value, list | tuple):
        return type(value)(_mapped(one, change) for one in value)
    return value


def _meta(tensor: Tensor) -> Tensor:
    """Return a tensor of the same shape and dtype on the meta device, which has no values."""
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
