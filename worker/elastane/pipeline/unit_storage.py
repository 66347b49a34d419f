"""One unit's module, its storage, which can be released and allocated again, and its initial values."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from elastane.rng import Generators, Parts
from elastane.state.digests import combined, digest_of_tensors
from elastane_common.errors import UnsupportedError


class InitialValuesError(UnsupportedError):
    """A unit's initial values cannot be restored in this process; nothing was changed."""

    code = "ELA381"


@dataclass(frozen=True)
class _Spec:
    """Shape and layout of a parameter or buffer when it was built."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype


@dataclass
class _Values:
    """Values of a unit: its own parameters and buffers by name, and extra states of its modules."""

    parameters: dict[str, torch.Tensor]
    buffers: dict[str, torch.Tensor | None]
    extra: dict[str, Any]

    def digest(self) -> int:
        tensors = [*self.parameters.values(), *(b for b in self.buffers.values() if b is not None)]
        return combined([digest_of_tensors(tensors)])

    def form(self) -> dict[str, str]:
        named = {**self.parameters, **self.buffers}
        return {
            name: "None" if t is None else f"{str(t.dtype).removeprefix('torch.')}{list(t.shape)}"
            for name, t in named.items()
        }


class UnitRecord:
    """One unit: its module, initial values and storage.

    owners: parameters, buffers and modules of earlier units, by id; this unit's own are added.
    """

    def __init__(
        self,
        index: int,
        name: str,
        module: nn.Module,
        constructor: Callable[[], nn.Module] | None,
        generators: Parts,
        owners: dict[int, int],
    ) -> None:
        self.index, self.name, self.module, self.constructor = index, name, module, constructor
        self.prefix = f"{name}." if name else ""
        self.generators = generators
        self.initial: _Values | None = None
        self.digest = 0
        self.form: dict[str, str] = {}
        self.held = True
        #: For each released tensor: itself, its offset in the storage, and the size of the storage.
        self._homes: list[tuple[torch.Tensor, torch.Tensor, int]] = []
        #: Buffers shared with an earlier unit, which owns them.
        self._foreign: set[str] = set()
        self.owned: dict[str, nn.Parameter] = {}
        for local, parameter in module.named_parameters():
            if owners.setdefault(id(parameter), index) == index:
                self.owned[local] = parameter
        self.modules = [
            (local, part)
            for local, part in module.named_modules()
            if owners.setdefault(id(part), index) == index
        ]
        for local, buffer in list(self.buffers()):
            if buffer is not None and owners.setdefault(id(buffer), index) != index:
                self._foreign.add(local)
        self.specs = {local: _spec(parameter) for local, parameter in self.owned.items()}
        self.buffer_bytes = sum(b.nbytes for _, b in self.buffers() if b is not None)

    def places(self) -> Iterator[tuple[str, nn.Module, str]]:
        """Yield the unit's own buffers: name within it, module, name in the module."""
        for local, part in self.modules:
            for name in part._buffers:
                if (full := _join(local, name)) not in self._foreign:
                    yield full, part, name

    def buffers(self) -> Iterator[tuple[str, torch.Tensor | None]]:
        """Yield the unit's own buffers: name within it, current tensor."""
        for full, part, name in self.places():
            yield full, part._buffers[name]

    # ------------------------------------------------------------------ initial values

    def note_initial(self, *, keep: bool) -> None:
        values = self.values()
        if self.constructor is not None:
            self.digest, self.form = values.digest(), values.form()
        elif keep:
            self.initial = _copied(values)

    def values(self) -> _Values:
        return _Values(
            {local: parameter.detach() for local, parameter in self.owned.items()},
            dict(self.buffers()),
            _extra_states(self.modules),
        )

    def fill(self, values: _Values) -> None:
        with torch.no_grad():
            for local, parameter in self.owned.items():
                spec = self.specs[local]
                if tuple(parameter.stride()) != spec.stride:  # a checkpoint may have loaded another one
                    parameter.data = torch.empty_strided(
                        spec.shape, spec.stride, dtype=spec.dtype, device=parameter.device
                    )
                parameter.copy_(values.parameters[local])
            for full, part, name in self.places():
                buffer, value = part._buffers[name], values.buffers.get(full)
                if buffer is not None and value is not None and _spec(buffer) == _spec(value):
                    buffer.copy_(value)
                else:
                    part._buffers[name] = None if value is None else _clone(value)
        parts = dict(self.modules)
        for local, state in values.extra.items():
            parts[local].set_extra_state(state)

    # ------------------------------------------------------------------ storage

    def release(self) -> None:
        if not self.held:
            return
        self.held = False
        seen: set[int] = set()
        for tensor in (*self.owned.values(), *(b for _, b in self.buffers() if b is not None)):
            if id(tensor) in seen:
                continue
            seen.add(id(tensor))
            tensor.grad = None
            home = tensor.data
            if not home.untyped_storage().resizable():  # memory of a NumPy array or a file
                home = torch.empty_strided(home.shape, home.stride(), dtype=home.dtype, device=home.device)
            self._homes.append((tensor, home, home.untyped_storage().nbytes()))
            tensor.data = _absent(home)
        for _, home, _ in self._homes:
            home.untyped_storage().resize_(0)

    def hold(self) -> None:
        if self.held:
            return
        self.held = True
        for tensor, home, nbytes in self._homes:
            storage = home.untyped_storage()
            if storage.nbytes() < nbytes:
                storage.resize_(nbytes)
            tensor.data = home
        self._homes.clear()


def built_again(record: UnitRecord, generators: Generators) -> _Values:
    """Run a unit's constructor again, as it first ran."""
    assert record.constructor is not None
    present = generators.capture()
    try:
        generators.restore(record.generators)
        module = record.constructor()
    finally:
        generators.restore(present)
    where = f"unit {record.index} ({record.name})"
    if not isinstance(module, nn.Module):
        raise InitialValuesError(
            f"the function that builds {where} returned {kind_of(module)} this time, not a module",
            unit=record.index,
        )
    parameters = dict(module.named_parameters(remove_duplicate=False))
    if module is record.module or any(parameters.get(n) is p for n, p in record.owned.items()):
        raise InitialValuesError(
            f"the function given as {where} returns what existed before instead of building it",
            hint="give the module itself",
            unit=record.index,
        )
    parts = dict(module.named_modules(remove_duplicate=False))
    if missing := [n for n, _ in record.modules if n not in parts] + [
        n for n in record.owned if n not in parameters
    ]:
        raise _differs(where, record.index, missing[0])
    buffers = dict(module.named_buffers(remove_duplicate=False))
    values = _Values(
        {name: parameters[name].detach() for name in record.owned},
        {name: buffers.get(name) for name, _ in record.buffers()},
        _extra_states([(name, parts[name]) for name, _ in record.modules]),
    )
    form = values.form()
    if form != record.form:
        name = next(name for name in record.form if record.form[name] != form[name])
        raise _differs(where, record.index, name)
    if values.digest() != record.digest:
        raise InitialValuesError(
            f"the function that builds {where} gave other values than the first time, though the generators"
            " were in the same states",
            hint="let it draw from the global generators of torch, numpy and random alone, and depend on"
            " nothing that changes",
            unit=record.index,
        )
    return values


def _differs(where: str, index: int, name: str) -> InitialValuesError:
    return InitialValuesError(
        f"the function that builds {where} built another module than the first time: {name} differs",
        hint="let it depend on nothing that changes",
        unit=index,
    )


def _extra_states(modules: Iterable[tuple[str, nn.Module]]) -> dict[str, Any]:
    return {
        local: part.get_extra_state()
        for local, part in modules
        if type(part).get_extra_state is not nn.Module.get_extra_state
    }


def _join(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix else name


def _copied(values: _Values) -> _Values:
    return _Values(
        {name: _clone(value) for name, value in values.parameters.items()},
        {name: None if value is None else _clone(value) for name, value in values.buffers.items()},
        {name: _tree_copied(value) for name, value in values.extra.items()},
    )


def _tree_copied(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return _clone(value)
    if isinstance(value, dict):
        return {key: _tree_copied(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_tree_copied(item) for item in value)
    return value


def _clone(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().clone(memory_format=torch.preserve_format)


def _spec(tensor: torch.Tensor) -> _Spec:
    return _Spec(tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype)


def _absent(tensor: torch.Tensor) -> torch.Tensor:
    """Return the stand-in for a released tensor: the same shape, in one element of memory."""
    value = math.nan if tensor.is_floating_point() or tensor.is_complex() else 0
    one = torch.full((), value, dtype=tensor.dtype, device=tensor.device)
    return one.expand(tensor.shape)


def is_absent(tensor: torch.Tensor) -> bool:
    """True for a released tensor. A tensor with one element cannot be recognised."""
    return tensor.numel() > 1 and not any(tensor.stride())


def generators_here(device: torch.device | None) -> Generators:
    """Return the generators from which a unit's constructor may draw. device: None for the current GPU."""
    if device is None and torch.cuda.is_available():
        device = torch.device("cuda")
    return Generators(device)


def kind_of(value: object) -> str:
    """Name an object's type in a message."""
    name = type(value).__qualname__
    return f"an object of type {name}" if value is not None else "None"
