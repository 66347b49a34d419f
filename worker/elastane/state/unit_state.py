"""State of a pipeline's worker, by unit: exported, and loaded in place.

    unit       parameters, buffers, extra states of modules, the optimizer's state of its parameters
    common     state that every worker has: the optimizer's groups, schedulers, extras, flags of the whole
    model

At a change of plan, in the order of calls:
    export(units, common=...)  state to donate; by reference, valid until the next step begins
      Staged                     state received (`unit_handover`) or read (`unit_checkpoint`)
      adopt(wanted, staged)      compares everything with the script's objects, then puts it in place
      settle()                   after every applied step: releases units that only the former plan assigned

Until a step is applied in the new ring, a worker still holds its former units, at the current step, so that
they are not lost if their receiver dies. `adopt` checks everything first, so a state that does not fit
changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import nn

from elastane.state.codec import Exported, StateFormatError, decode, encode
from elastane.state.in_place import check_parameters, fill_buffers, fill_parameters, same_names
from elastane.state.model_units import ModelUnits
from elastane.state.optimizer_state import Placer, StateError
from elastane.state.train_state import Stateful, scripts_names
from elastane.state.unit_optimizer import UnitOptimizer

#: Fields of a unit and of the common part.
UNIT: Final = ("name", "parameters", "buffers", "modules", "optimizer")
COMMON: Final = ("units", "parameters", "aliases", "flags", "optimizer", "schedulers", "extras")


@dataclass
class Staged:
    """State of units that is complete and checked, but not in place.

    units, common: decoded from the form of `UnitState.export`. devices: original kind of device of each
    tensor (by id).
    """

    units: dict[int, Any] = field(default_factory=dict)
    common: Any = None
    devices: dict[int, str] = field(default_factory=dict)

    @classmethod
    def of(cls, *exported: Exported) -> Staged:
        """Decode an exported state. Raises StateFormatError."""
        staged = cls()
        for one in exported:
            tree = decode(one)
            if not isinstance(tree, dict) or sorted(tree) != ["common", "units"]:
                raise StateFormatError("this is not the state of units")
            staged.units |= tree["units"]
            staged.common = staged.common if tree["common"] is None else tree["common"]
            staged.note_devices(one)
        return staged

    def note_devices(self, exported: Exported) -> None:
        """Record the original devices of the tensors."""
        self.devices |= {id(t): s.device for t, s in zip(exported.tensors, exported.specs, strict=True)}

    def __or__(self, other: Staged) -> Staged:
        """Return the union; the other's common part takes precedence."""
        common = self.common if other.common is None else other.common
        return Staged(self.units | other.units, common, self.devices | other.devices)


class UnitState:
    """The objects a pipeline's script trains with.

    units, optimizer, schedulers: the script's; schedulers in the order in which every worker builds them.
    extras: by name, objects with state_dict and load_state_dict; named as in `TrainState`, so that a job
    without a pipeline can load them. Not thread-safe: called by the script's thread between steps.
    """

    def __init__(
        self,
        units: ModelUnits,
        optimizer: UnitOptimizer,
        schedulers: Sequence[Stateful] = (),
        extras: Mapping[str, Stateful] | None = None,
    ) -> None:
        self.units = units
        self.optimizer = optimizer
        self.schedulers = list(schedulers)
        self.extras = dict(extras or {})
        #: The units that the plan assigns to this worker, which it steps.
        self.active: frozenset[int] = frozenset()
        self._aliases = _aliases(units)

    # ------------------------------------------------------------------ export

    def export(self, units: Iterable[int], *, common: bool) -> Exported:
        """Return held units' state by reference; called on each donor, and for checkpoints.

        Equal in structure on all holders of these units. Raises StateNotCarriedError that names the item.
        """
        if lacking := set(units := sorted(units)) - self.units.held:
            raise ValueError(f"units {sorted(lacking)} are not held")
        state = {
            "units": {unit: self._unit(unit) for unit in units},
            "common": self._common() if common else None,
        }
        return encode(state)

    def export_unit(self, unit: int) -> Exported:
        """Return one held unit's state by reference."""
        return self.export([unit], common=False)

    def export_common(self) -> Exported:
        """Return the common part by reference; any worker that has entered a ring can."""
        return self.export([], common=True)

    # ------------------------------------------------------------------ load

    def adopt(self, wanted: Iterable[int], staged: Staged, *, initial: Iterable[int] = ()) -> None:
        """Hold the units that a plan assigns to this worker, and until `settle` also its previous ones.

        staged: state of wanted units, and the common part if this worker lacks it. initial: wanted units that
        start from the script's initial values. Other wanted units must be held and stay unchanged. A unit
        that is both held and staged gets the staged values. Raises StateError, StateFormatError or
        InitialValuesError; nothing was changed in the first two cases.
        """
        units, begin = frozenset(wanted), frozenset(initial)
        if lacking := units - self.units.held - begin - set(staged.units):
            raise StateError(
                f"units {sorted(lacking)} are neither held here nor among what was received",
                hint="the plan and its sources do not agree; this is a bug: report it with the job's events",
                units=sorted(lacking),
            )
        self.check(staged)
        self.units.hold(units | self.units.held)
        self._activate(units)
        self._load(staged)
        for unit in sorted(begin - set(staged.units)):
            self.units.initialise(unit)
            self.optimizer.initialise(unit)

    def settle(self) -> None:
        """Release the units of the former plan; called after every applied step.

        They would be a step behind; the prepared step proves that every member has its units.
        """
        if self.units.held != self.active:
            self.units.hold(self.active)
            self._activate(self.active)

    def check(self, staged: Staged) -> None:
        """Raise StateError, naming the first difference, unless the state fits the script's objects."""
        if staged.common is not None:
            self._check_common(staged.common)
        for unit, saved in staged.units.items():
            self._check_unit(unit, saved)

    # ------------------------------------------------------------------ units

    def _activate(self, units: frozenset[int]) -> None:
        self.active = units
        self.optimizer.hold(units, self.units.held)

    def _unit(self, unit: int) -> dict[str, Any]:
        # None too: a module may set a buffer from None, or to None, while it trains.
        buffers = {name: module._buffers[key] for name, module, key in self.units.owned_buffers(unit)}
        return {
            "name": self.units.names[unit],
            "parameters": dict(self.units.owned_parameters(unit)),
            "buffers": buffers,
            "modules": {name: m.get_extra_state() for name, m in self._with_state(unit)},
            "optimizer": self.optimizer.export_unit(unit),
        }

    def _check_unit(self, unit: int, saved: Any) -> None:
        if not isinstance(saved, dict) or sorted(saved) != sorted(UNIT):
            raise StateFormatError("this is not the state of a unit")
        if not 0 <= unit < self.units.count or saved["name"] != self.units.names[unit]:
            raise StateError(
                f"unit {unit} is {saved['name']} in the state, and the script has units"
                f" {', '.join(self.units.names[:20])}",
                hint="every worker must build the same units",
                unit=unit,
            )
        prefix, mine = self.units.prefix(unit), self.units.owned_parameters(unit)
        check_parameters(mine, saved["parameters"], prefix)
        known = {name for name, _, _ in self.units.owned_buffers(unit)}
        same_names(f"buffers of unit {saved['name']}", saved["buffers"], known)
        same_names(
            f"module states of unit {saved['name']}",
            saved["modules"],
            [name for name, _ in self._with_state(unit)],
        )
        if unknown := set(saved["optimizer"]) - set(mine):
            raise StateError(f"the optimizer's state of {prefix}{min(unknown)} belongs to no parameter")

    def _load(self, staged: Staged) -> None:
        placer = Placer(staged.devices, self._model_kind(staged), self._device())
        if staged.common is not None:
            self._load_common(staged.common, placer)
        for unit in sorted(staged.units):
            saved, device = staged.units[unit], self._device(unit)
            with torch.no_grad():
                fill_parameters(self.units.owned_parameters(unit), saved["parameters"])
                self._fill_buffers(unit, saved["buffers"], placer, device)
            modules = dict(self._with_state(unit))
            for name, value in saved["modules"].items():
                modules[name].set_extra_state(placer.tree(value))
            self.optimizer.load_unit(unit, saved["optimizer"], placer)

    def _fill_buffers(
        self, unit: int, saved: Mapping[str, torch.Tensor | None], placer: Placer, device: torch.device
    ) -> None:
        own = {(id(module), key): name for name, module, key in self.units.owned_buffers(unit)}
        parts: dict[int, tuple[str, nn.Module]] = {}
        for name, module, key in self.units.owned_buffers(unit):
            parts[id(module)] = (name.removesuffix(key), module)
        # Buffers of an earlier unit in these modules stay.
        present = {
            prefix + key: buffer
            for prefix, module in parts.values()
            for key, buffer in module._buffers.items()
            if (id(module), key) not in own and buffer is not None
        }
        fill_buffers(parts.values(), {**present, **saved}, placer, device)

    def _with_state(self, unit: int) -> list[tuple[str, nn.Module]]:
        return [
            (name, module)
            for name, module in self.units.owned_modules(unit)
            if type(module).get_extra_state is not nn.Module.get_extra_state
        ]

    def _device(self, unit: int | None = None) -> torch.device:
        owned = self.units.parameters if unit is None else self.units.owned_parameters(unit).values()
        return next((p.device for p in owned), self.units.parameters[0].device)

    def _model_kind(self, staged: Staged) -> str:
        """Return the original kind of device of the parameters, which may differ from this worker's."""
        values = (value for saved in staged.units.values() for value in saved["parameters"].values())
        return next((staged.devices[id(value)] for value in values), "cpu")

    # ------------------------------------------------------------------ the common part

    def _common(self) -> dict[str, Any]:
        model = self.units.as_model()
        return {
            "units": list(self.units.names),
            "parameters": [[s.name, s.dtype, list(s.shape)] for s in self.units.specs],
            "aliases": dict(self._aliases),
            "flags": {
                "frozen": [
                    spec.name
                    for spec, parameter in zip(self.units.specs, self.units.parameters, strict=True)
                    if not parameter.requires_grad
                ],
                "evaluating": [name for name, module in model.named_modules() if not module.training],
            },
            "optimizer": self.optimizer.export_groups(),
            "schedulers": [scheduler.state_dict() for scheduler in self.schedulers],
            "extras": {name: extra.state_dict() for name, extra in self.extras.items()},
        }

    def _check_common(self, saved: Any) -> None:
        if not isinstance(saved, dict) or sorted(saved) != sorted(COMMON):
            raise StateFormatError("this is not the common state of a pipeline")
        if list(self.units.names) != saved["units"]:
            raise StateError(
                f"the state has units {', '.join(saved['units'][:20])}, the script has units"
                f" {', '.join(self.units.names[:20])}",
                hint="every worker must build the same units",
            )
        form = [[spec.name, spec.dtype, list(spec.shape)] for spec in self.units.specs]
        for mine, other in zip(form, saved["parameters"], strict=False):
            if mine != other:
                raise StateError(
                    f"the state has parameter {other[0]}, {_form(other)}, where the script has {mine[0]},"
                    f" {_form(mine)}",
                    hint="every worker must build the same model",
                    parameter=mine[0],
                )
        if len(form) != len(saved["parameters"]):
            raise StateError(
                f"the state has {len(saved['parameters'])} parameters, the script {len(form)}",
                hint="every worker must build the same model",
            )
        self.optimizer.check_groups(saved["optimizer"])
        if len(saved["schedulers"]) != len(self.schedulers):
            raise StateError(
                f"the state has {len(saved['schedulers'])} schedulers, the script {len(self.schedulers)}",
                hint="every worker must prepare the same schedulers",
            )
        same_names("extras", scripts_names(saved["extras"]), scripts_names(self.extras))

    def _load_common(self, saved: Mapping[str, Any], placer: Placer) -> None:
        frozen, evaluating = set(saved["flags"]["frozen"]), set(saved["flags"]["evaluating"])
        for spec, parameter in zip(self.units.specs, self.units.parameters, strict=True):
            parameter.requires_grad_(spec.name not in frozen)
        for name, module in self.units.as_model().named_modules():
            module.training = name not in evaluating
        # Schedulers first: some write the learning rate into the optimizer when they are loaded.
        for scheduler, value in zip(self.schedulers, saved["schedulers"], strict=True):
            scheduler.load_state_dict(placer.tree(value))
        self.optimizer.load_groups(saved["optimizer"], placer)
        for name, value in saved["extras"].items():
            # The runtime's own may be those of a job without a pipeline.
            if name in self.extras:
                self.extras[name].load_state_dict(placer.tree(value))


def _form(parameter: Sequence[Any]) -> str:
    return f"{str(parameter[1]).removeprefix('torch.')}{parameter[2]}"


def _aliases(units: ModelUnits) -> dict[str, str]:
    """Return the other stock names of parameters and buffers that occur more than once."""
    first = {id(parameter): spec.name for spec, parameter in zip(units.specs, units.parameters, strict=True)}
    for unit in range(units.count):
        for name, module, key in units.owned_buffers(unit):
            buffer = module._buffers[key]
            if buffer is not None:
                first.setdefault(id(buffer), units.prefix(unit) + name)
    model = units.as_model()
    named = (
        *model.named_parameters(remove_duplicate=False),
        *model.named_buffers(remove_duplicate=False),
    )
    return {name: first[id(tensor)] for name, tensor in named if first[id(tensor)] != name}
