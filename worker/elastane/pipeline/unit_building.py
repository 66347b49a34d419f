"""Builds units from what the script passes, and refuses what cannot be divided among workers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

import torch
from torch import nn

from elastane.pipeline.unit_storage import is_absent, kind_of
from elastane_common.errors import UnsupportedError

#: Types that a script may pass as a unit.
Unit = nn.Module | Callable[[], nn.Module]


class UnitsError(UnsupportedError):
    """The script's units cannot be divided among workers; the message names the unit."""

    code = "ELA380"


def entries_of(given: Any) -> tuple[nn.Module | None, list[tuple[str, Unit]]]:
    """Return the stock model if it was passed as a whole, and the units with their stock names."""
    if isinstance(given, nn.Sequential):
        return given, list(_flat(given, ""))
    if isinstance(given, nn.ModuleList):
        return None, [(str(index), module) for index, module in enumerate(given)]
    if isinstance(given, nn.Module) or not isinstance(given, Iterable):
        raise UnitsError(
            f"the units of a pipeline were given as {kind_of(given)}",
            hint="give an nn.Sequential, or a list of modules or of functions that build them",
        )
    return None, [(str(index), unit) for index, unit in enumerate(given)]


def _flat(module: nn.Module, name: str) -> Iterator[tuple[str, nn.Module]]:
    if not isinstance(module, nn.Sequential) or type(module).forward is not nn.Sequential.forward:
        yield name, module
        return
    if any(getattr(module, hooks) for hooks in _HOOKS):
        raise UnitsError(
            f"the nn.Sequential {name or 'of the units'} has hooks, which would see only a part of it",
            hint="register them on its modules",
            unit=name,
        )
    for child, part in module._modules.items():
        if part is not None:
            yield from _flat(part, f"{name}.{child}" if name else child)


_HOOKS: Final = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def built(index: int, name: str, unit: Any, *, released: bool) -> nn.Module:
    """Return the module of a unit. released: True if earlier units have already been released."""
    if isinstance(unit, nn.Module):
        module: Any = unit
    elif callable(unit):
        try:
            module = unit()
        except RuntimeError as error:
            if not released or "single memory location" not in str(error):
                raise
            raise _depends(index, name) from error
        if not isinstance(module, nn.Module):
            raise UnitsError(
                f"the function given as unit {index} returned {kind_of(module)}, not a module",
                hint="it is called without arguments and must return an nn.Module",
                unit=index,
            )
    else:
        raise UnitsError(
            f"unit {index} is {kind_of(unit)}, neither a module nor a function that builds one",
            hint="give modules, or functions without arguments that return them",
            unit=index,
        )
    _check(index, name, module)
    if released and not isinstance(unit, nn.Module) and _has_nan(module):
        raise _depends(index, name)
    return module


class SharedMemoryCheck:
    """Refuses distinct tensors of different units that share memory: each unit needs its own storage."""

    def __init__(self) -> None:
        self._first: dict[int, tuple[torch.Tensor, int, str]] = {}
        self._storages: list[torch.UntypedStorage] = []  # keys are addresses

    def note(self, index: int, name: str, module: nn.Module) -> None:
        for local, tensor in (*module.named_parameters(), *module.named_buffers()):
            storage = tensor.untyped_storage()
            self._storages.append(storage)
            known = self._first.setdefault(storage._cdata, (tensor, index, local))
            if known[0] is not tensor and known[1] != index:
                raise UnitsError(
                    f"{local} of unit {index} ({name}) is in the memory of {known[2]} of unit {known[1]}",
                    hint="share the nn.Parameter itself, or copy it",
                    unit=index,
                )


def _depends(index: int, name: str) -> UnitsError:
    return UnitsError(
        f"the function that builds unit {index} ({name}) reads or writes values of an earlier unit, which are"
        " released when it runs",
        hint="give those units as modules",
        unit=index,
    )


def _check(index: int, name: str, module: nn.Module) -> None:
    for local, parameter in module.named_parameters():
        if torch.nn.parameter.is_lazy(parameter):
            problem = "is not initialized yet"
        elif type(parameter) is not nn.Parameter or parameter.layout is not torch.strided:
            problem = f"is a {type(parameter).__name__} with layout {parameter.layout}"
        elif parameter.is_meta:
            problem = "is on the meta device, without values"
        else:
            continue
        raise UnitsError(
            f"parameter {local} of unit {index} ({name}) {problem}",
            hint="a unit's parameters must be dense nn.Parameters with values",
            unit=index,
            parameter=local,
        )


def _has_nan(module: nn.Module) -> bool:
    """True if values of the module are NaN, as values taken from a released unit are."""
    tensors = [*module.parameters(), *module.buffers()]
    return any(
        bool(torch.isnan(tensor).any())
        for tensor in tensors
        if tensor.is_floating_point() and not is_absent(tensor)
    )


def ties_of(modules: Sequence[nn.Module]) -> tuple[int, ...]:
    """Return a number per unit: positive and equal for units that share parameters or buffers, else 0."""
    group = list(range(len(modules)))
    first: dict[int, int] = {}
    for unit, module in enumerate(modules):
        stateful = [m for m in module.modules() if type(m).get_extra_state is not nn.Module.get_extra_state]
        for shared in (*module.parameters(), *module.buffers(), *stateful):
            other = group[first.setdefault(id(shared), unit)]
            if other != group[unit]:
                low, high = sorted((other, group[unit]))
                group = [low if one == high else one for one in group]
    sizes = Counter(group)
    numbers = {one: place for place, one in enumerate(sorted(o for o in sizes if sizes[o] > 1), 1)}
    return tuple(numbers.get(one, 0) for one in group)
