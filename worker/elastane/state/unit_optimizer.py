"""Optimizer of a whole model, of which a worker holds only some units.

The script's constructor is called once, with all parameters of the model, so its groups are those of the
stock script. Then each group's list, which `step` iterates over, is filtered to the held units. The state of
a unit's parameters moves with the unit.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from elastane.state.model_units import ModelUnits
from elastane.state.optimizer_state import Placer, StateError, load_group, place_entry
from elastane.state.unit_optimizer_check import UndividedOptimizerError, check_divided

__all__ = ["NamedParameters", "OptimizerConstructor", "UndividedOptimizerError", "UnitOptimizer"]


class NamedParameters(list[nn.Parameter]):
    """All parameters of a model in stock order; the argument of an optimizer's constructor.

    A script whose groups depend on names uses `named()`.
    """

    def __init__(self, named: Iterable[tuple[str, nn.Parameter]]) -> None:
        pairs = list(named)
        super().__init__(parameter for _, parameter in pairs)
        self._names = [name for name, _ in pairs]

    def named(self) -> list[tuple[str, nn.Parameter]]:
        """Return pairs of stock name and parameter, like `named_parameters` of the stock model."""
        return list(zip(self._names, self, strict=True))


OptimizerConstructor = Callable[[NamedParameters], Optimizer]


@dataclass(frozen=True)
class _Full:
    """All parameters of a group in the constructor's order, as places in the units' list."""

    places: tuple[int, ...]
    names: tuple[str, ...] | None


class UnitOptimizer:
    """The script's optimizer, divided by unit. optimizer: the object that the script steps.

    Built by `build` before any unit is held. Not thread-safe: the script's thread calls it between steps.
    """

    def __init__(self, optimizer: Optimizer, units: ModelUnits) -> None:
        self.optimizer = optimizer
        #: True while the groups contain all parameters of the model, for the script.
        self.shows_all = False
        self._units = units
        self._place_of = {id(parameter): place for place, parameter in enumerate(units.parameters)}
        self._full = [self._full_group(index, group) for index, group in enumerate(optimizer.param_groups)]
        self._group_of = {place: index for index, full in enumerate(self._full) for place in full.places}
        #: Initial state from the constructor, by the parameter's place.
        self._initial = {
            self._place_of[id(parameter)]: {
                name: _Initial.of(value, parameter) for name, value in entry.items()
            }
            for parameter, entry in optimizer.state.items()
            if id(parameter) in self._place_of
        }
        self.hold((), ())

    @classmethod
    def build(cls, units: ModelUnits, constructor: OptimizerConstructor) -> UnitOptimizer:
        """Call the script's constructor with all parameters; called by `prepare_pipeline`, once.

        Raises UndividedOptimizerError if the steps of the returned optimizer cannot be divided by unit.
        """
        if isinstance(constructor, Optimizer) or not callable(constructor):
            raise UndividedOptimizerError(
                f"the optimizer of a pipeline was given as a {type(constructor).__qualname__}",
                hint="give a function of the parameters: lambda parameters: AdamW(parameters, lr=...)",
            )
        names = [spec.name for spec in units.specs]
        optimizer = constructor(NamedParameters(zip(names, units.parameters, strict=True)))
        if not isinstance(optimizer, Optimizer):
            raise UndividedOptimizerError(
                f"the optimizer's constructor returned an object of type {type(optimizer).__qualname__}",
                hint="return one torch.optim.Optimizer",
            )
        check_divided(optimizer)
        return cls(optimizer, units)

    # ------------------------------------------------------------------ held units

    def hold(self, active: Iterable[int], kept: Iterable[int]) -> None:
        """Step only the parameters of `active` units from now on; drop the state of units not in `kept`."""
        self._stepped, kept_places = self._places(active), self._places(kept)
        self._show(self._stepped)
        state = self.optimizer.state
        for parameter in [p for p in state if id(p) in self._place_of]:
            if self._place_of[id(parameter)] not in kept_places:
                del state[parameter]

    def show_all(self) -> None:
        """Put all parameters of the model into the groups, until `show_held`.

        Otherwise a script that sums over a group would get a partial result. Do not step meanwhile.
        """
        if not self.shows_all:
            self._show(range(len(self._units.parameters)))
            self.shows_all = True

    def show_held(self) -> None:
        """Restore the groups to their held parameters."""
        if self.shows_all:
            self._show(self._stepped)

    def initialise(self, unit: int) -> None:
        """Set the initial state from the constructor for the unit's parameters."""
        for place in self._units.owned(unit):
            parameter = self._units.parameters[place]
            self.optimizer.state.pop(parameter, None)
            if place in self._initial:
                self.optimizer.state[parameter] = {
                    name: initial.value(parameter) for name, initial in self._initial[place].items()
                }

    # ------------------------------------------------------------------ export

    def export_unit(self, unit: int) -> dict[str, Any]:
        """Return the state of the unit's parameters by their names in it, by reference."""
        state = self.optimizer.state
        return {
            name: state[parameter]
            for name, parameter in self._units.owned_parameters(unit).items()
            if parameter in state
        }

    def export_groups(self) -> dict[str, Any]:
        """Return the state common to all units, by reference.

        param_groups: as in the state_dict of the whole stock model. parameters: the stock name of each index
        in it. state: entries under keys that are not parameters.
        """
        groups: list[dict[str, Any]] = []
        names: list[str] = []
        for group, full in zip(self.optimizer.param_groups, self._full, strict=True):
            options = {name: value for name, value in group.items() if name not in ("params", "param_names")}
            if full.names is not None:
                options["param_names"] = list(full.names)
            options["params"] = list(range(len(names), len(names) + len(full.places)))
            names += [self._units.specs[place].name for place in full.places]
            groups.append(options)
        state = {key: value for key, value in self.optimizer.state.items() if id(key) not in self._place_of}
        return {"param_groups": groups, "parameters": names, "state": state}

    # ------------------------------------------------------------------ load

    def names(self) -> list[str]:
        """Return the stock name of each index of the whole model's state_dict."""
        return [self._units.specs[place].name for full in self._full for place in full.places]

    def check_groups(self, saved: Any) -> None:
        """Raise StateError unless `saved`, from `export_groups`, fits the script's groups."""
        mine, given = (
            [len(full.places) for full in self._full],
            [len(g["params"]) for g in saved["param_groups"]],
        )
        if mine != given:
            raise StateError(
                f"the state has parameter groups of {given} parameters, the script built {mine}",
                hint="every worker must build the same optimizer",
                found=mine,
                expected=given,
            )
        for one, other in zip(self.names(), saved["parameters"], strict=True):
            if one != other:
                raise StateError(
                    f"the optimizer's groups have {other} in the state where the script has {one}",
                    hint="every worker must build the same optimizer",
                    parameter=one,
                )

    def load_groups(self, saved: Mapping[str, Any], placer: Placer) -> None:
        """Restore the groups' options, in place, and entries under other keys."""
        for group, options, full in zip(
            self.optimizer.param_groups, saved["param_groups"], self._full, strict=True
        ):
            present = group.get("param_names")
            load_group(group, options, placer)
            if full.names is not None:
                group["param_names"] = present
        state = self.optimizer.state
        for key in [key for key in state if id(key) not in self._place_of]:
            del state[key]
        for key, value in saved["state"].items():
            state[key] = placer.tree(value)

    def load_unit(self, unit: int, saved: Mapping[str, Any], placer: Placer) -> None:
        """Restore the state of a held unit's parameters exactly, discarding their previous state."""
        state = self.optimizer.state
        owned = self._units.owned(unit)
        for place, (name, parameter) in zip(owned, self._units.owned_parameters(unit).items(), strict=True):
            old = state.pop(parameter, {})
            if name in saved:
                options = self.optimizer.param_groups[self._group_of[place]]
                state[parameter] = place_entry(saved[name], old, parameter, options, placer)

    def _show(self, chosen: Container[int]) -> None:
        """Put the selected parameters into each group."""
        self.shows_all = False
        for group, full in zip(self.optimizer.param_groups, self._full, strict=True):
            group["params"][:] = [self._units.parameters[place] for place in full.places if place in chosen]
            if full.names is not None:
                pairs = zip(full.places, full.names, strict=True)
                group["param_names"] = [name for place, name in pairs if place in chosen]

    def _places(self, units: Iterable[int]) -> set[int]:
        return {place for unit in units for place in self._units.owned(unit)}

    def _full_group(self, index: int, group: Mapping[str, Any]) -> _Full:
        parameters: Sequence[nn.Parameter] = group["params"]
        if unknown := [p for p in parameters if id(p) not in self._place_of]:
            raise UndividedOptimizerError(
                f"group {index} of the optimizer has {len(unknown)} parameters that belong to no unit, the"
                f" first of shape {list(unknown[0].shape)}",
                hint="build the groups from the parameters that the constructor is given",
            )
        names = group.get("param_names")
        places = tuple(self._place_of[id(parameter)] for parameter in parameters)
        return _Full(places, None if names is None else tuple(names))


@dataclass(frozen=True)
class _Initial:
    """An initial value of a parameter's state; a tensor of equal elements is stored as one element."""

    tensor: torch.Tensor | None
    like_parameter: bool = False
    other: Any = None

    @classmethod
    def of(cls, value: Any, parameter: torch.Tensor) -> _Initial:
        if not isinstance(value, torch.Tensor):
            return cls(None, other=value)
        alike = value.shape == parameter.shape and value.device == parameter.device and value.numel() > 0
        if alike and bool((value == value.flatten()[0]).all()):
            return cls(value.flatten()[0].clone(), like_parameter=True)
        return cls(value.clone())

    def value(self, parameter: nn.Parameter) -> Any:
        if self.tensor is None:
            return self.other
        if not self.like_parameter:
            return self.tensor.clone()
        # As the constructor would create it, with the parameter's strides.
        return torch.full_like(
            parameter, self.tensor.item(), dtype=self.tensor.dtype, memory_format=torch.preserve_format
        ).detach()
