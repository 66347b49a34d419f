"""The units of a model: consecutive parts, which a pipeline never divides further.

    Units.build(given)      every worker builds all units, one at a time, and keeps no unit's storage
    units.hold(wanted)      allocate storage for the units that the plan assigns here, release all others
    units.initialise(i)     the script's initial values, bit for bit

Structure and storage are separate. Every worker always has all modules, and all `Parameter` objects with
their shapes, so optimizer groups and bucket layout are those of the whole model. Only storage is allocated
and released. A released parameter keeps its object, shape and dtype; its values are NaN, in one element of
memory.

Units may be passed as constructors. They run in order under the script's own generators, so the initial
weights are those of the stock script. The generator states before each constructor are kept, so that any
worker can reproduce a unit's initial values later. Only with constructors does no worker ever hold the whole
model, not even at the start.

Units that share a parameter are *tied*: they are always held together.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from elastane.pipeline.unit_building import SharedMemoryCheck, UnitsError, built, entries_of, ties_of
from elastane.pipeline.unit_split import is_split, parts_of
from elastane.pipeline.unit_storage import InitialValuesError, UnitRecord, built_again, generators_here
from elastane.rng import Generators

__all__ = ["InitialValuesError", "ParameterSpec", "Units", "UnitsError"]


@dataclass(frozen=True)
class ParameterSpec:
    """A parameter of the model as the script built it.

    name: in the stock model. unit: the first unit with the parameter. requires_grad: as built.
    """

    name: str
    unit: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    requires_grad: bool

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


class Units:
    """All units of a model; made by `build`, which `prepare_pipeline` calls in every worker.

    names: of the units in the stock model, such as "3" or "body.0". parameters, specs: of the whole model,
    each parameter once, in stock's order of registration; the objects never change. ties: a number for each
    unit; units with the same number above 0 must be held together.
    """

    def __init__(
        self, records: Sequence[UnitRecord], model: nn.Module | None, generators: Generators
    ) -> None:
        self._records = list(records)
        self._model = nn.Sequential(*(record.module for record in records)) if model is None else model
        self._started = False
        self._generators = generators
        self.names: tuple[str, ...] = tuple(record.name for record in records)
        self.ties: tuple[int, ...] = ties_of([record.module for record in records])
        self.parameters: list[nn.Parameter] = []
        specs: list[ParameterSpec] = []
        self._owned: list[list[int]] = [[] for _ in records]
        for unit, record in enumerate(records):
            for local, parameter in record.owned.items():
                spec = record.specs[local]
                self._owned[unit].append(len(specs))
                specs.append(
                    ParameterSpec(
                        record.prefix + local,
                        unit,
                        spec.shape,
                        spec.stride,
                        spec.dtype,
                        parameter.requires_grad,
                    )
                )
                self.parameters.append(parameter)
        self.specs: tuple[ParameterSpec, ...] = tuple(specs)

    @classmethod
    def build(cls, given: Any, *, release: bool = True, device: torch.device | None = None) -> Units:
        """Build the units in order, each released before the next is built.

        given: an nn.Sequential (nested ones are flattened), a list of modules and of constructors without
        arguments, or a model that torch.distributed.pipelining has split at SplitPoints. release: False keeps
        all units, as in a process of a stock job. device: whose generator constructors may use besides the
        CPU's (default: the current GPU, if there is one). Raises UnitsError.
        """
        model, entries = entries_of(parts_of(given) if is_split(given) else given)
        if not entries:
            raise UnitsError(
                "the pipeline has no units",
                hint="give an nn.Sequential, or a list of modules or of functions that build them",
            )
        generators = generators_here(device)
        records: list[UnitRecord] = []
        owners: dict[int, int] = {}
        memory = SharedMemoryCheck()
        for index, (name, unit) in enumerate(entries):
            if isinstance(unit, nn.Module):
                memory.note(index, name, unit)
        for index, (name, unit) in enumerate(entries):
            before = generators.capture()
            module = built(index, name, unit, released=release and index > 0)
            memory.note(index, name, module)
            record = UnitRecord(index, name, module, None if unit is module else unit, before, owners)
            records.append(record)
            record.note_initial(keep=release)
            if release:
                record.release()
        units = cls(records, model, generators)
        if not units.parameters:
            raise UnitsError(
                f"the {len(entries)} units of the pipeline have no parameters",
                hint="there is nothing to train",
            )
        return units

    # ------------------------------------------------------------------ what there is

    @property
    def count(self) -> int:
        return len(self._records)

    @property
    def held(self) -> frozenset[int]:
        """The units whose values are in this process."""
        return frozenset(index for index, record in enumerate(self._records) if record.held)

    def module(self, unit: int) -> nn.Module:
        """Return the unit's module, always the same object. It has its values only while the unit is held."""
        return self._records[unit].module

    def is_built_by_function(self, unit: int) -> bool:
        """True if the unit was passed as a constructor, so that only workers that hold it need its memory."""
        return self._records[unit].constructor is not None

    def prefix(self, unit: int) -> str:
        """Return the prefix of stock's names of the unit's parameters and buffers: "" or "NAME."."""
        return self._records[unit].prefix

    def owned(self, unit: int) -> tuple[int, ...]:
        """Return the indices in `parameters` of the unit's own: those that no earlier unit has."""
        return tuple(self._owned[unit])

    def owned_parameters(self, unit: int) -> Mapping[str, nn.Parameter]:
        """Return the unit's own parameters by their names within the unit."""
        return self._records[unit].owned

    def owned_buffers(self, unit: int) -> Iterator[tuple[str, nn.Module, str]]:
        """Yield the unit's buffers that no earlier unit has: name within it, module, name in the module."""
        yield from self._records[unit].places()

    def owned_modules(self, unit: int) -> Iterator[tuple[str, nn.Module]]:
        """Yield the unit's modules that no earlier unit has, with their names within the unit."""
        yield from self._records[unit].modules

    def parameter_bytes(self, unit: int) -> int:
        """Return the size of the unit's own parameters, in bytes."""
        return sum(self.specs[place].nbytes for place in self._owned[unit])

    def buffer_bytes(self, unit: int) -> int:
        """Return the size of the unit's buffers as built, in bytes."""
        return self._records[unit].buffer_bytes

    def named(self) -> list[tuple[str, nn.Parameter]]:
        """Return all parameters of the model, with their stock names, in stock's order."""
        return [(spec.name, parameter) for spec, parameter in zip(self.specs, self.parameters, strict=True)]

    def tied_with(self, units: Iterable[int]) -> frozenset[int]:
        """Return these units and all that must be held with them."""
        wanted = set(units)
        numbers = {self.ties[unit] for unit in wanted} - {0}
        return frozenset(wanted | {unit for unit, tie in enumerate(self.ties) if tie in numbers})

    def as_model(self) -> nn.Module:
        """Return the stock model: the nn.Sequential that was passed, or a new one of the units."""
        return self._model

    # ------------------------------------------------------------------ storage

    def hold(self, wanted: Iterable[int]) -> None:
        """Allocate storage for these units and release all others, in place.

        New storage is uninitialised. Values, buffers and gradients of released units are lost. Raises
        UnitsError, and changes nothing, if only some of the units that are tied together are wanted.
        """
        units = frozenset(wanted)
        if unknown := [unit for unit in units if not 0 <= unit < self.count]:
            raise ValueError(f"units {unknown} of {self.count}")
        if torn := self.tied_with(units) - units:
            raise UnitsError(
                f"units {sorted(units)} share parameters with units {sorted(torn)}, which are not wanted",
                hint="tied units belong into one stage",
                units=sorted(torn),
            )
        for unit, record in enumerate(self._records):
            if unit not in units:
                record.release()
        for unit in sorted(units):
            self._records[unit].hold()

    def initialise(self, unit: int) -> None:
        """Fill a held unit with the script's initial values, bit for bit; generators are unchanged.

        A constructor runs again from the generator states of its first run. A module's values come from a
        copy that is kept until `started`. Raises InitialValuesError and changes nothing.
        """
        record = self._records[unit]
        if not record.held:
            raise ValueError(f"unit {unit} is not held")
        if record.constructor is not None:
            record.fill(built_again(record, self._generators))
        elif record.initial is not None:
            record.fill(record.initial)
        else:
            raise InitialValuesError(
                f"the initial values of unit {unit} ({record.name}) are gone: training has begun",
                hint="start this process anew, or give the unit as a function that builds it",
                unit=unit,
            )

    def started(self) -> None:
        """Drop the copies of initial values; called once a step has been applied, here or before."""
        if not self._started:
            self._started = True
            for record in self._records:
                record.initial = None
