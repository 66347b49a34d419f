"""Converts a pipeline's state to that of a job without one, as `TrainState.export` of the stock model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from elastane.state.codec import Exported, StateFormatError, decode, encode
from elastane.state.unit_shard import COMMON_SECTION


def merged(sections: Mapping[int, Exported]) -> Exported:
    """Return the complete state, by reference. sections: of all units and the common part.

    Raises StateFormatError.
    """
    units: dict[int, Any] = {}
    common: Any = None
    for number, exported in sections.items():
        tree = decode(exported)
        if number == COMMON_SECTION:
            common = tree["common"]
        else:
            units[number] = tree["units"][number]
    try:
        whole = encode(_merged([units[number] for number in sorted(units)], common))
    except (KeyError, TypeError) as error:
        raise StateFormatError(f"the state of a unit is incomplete: {error}") from error
    # The tensors are on the CPU now; the specs have their original devices.
    kinds = {
        tensor.data_ptr(): spec.device
        for exported in sections.values()
        for tensor, spec in zip(exported.tensors, exported.specs, strict=True)
    }
    whole.specs = [
        replace(spec, device=kinds.get(tensor.data_ptr(), spec.device))
        for tensor, spec in zip(whole.tensors, whole.specs, strict=True)
    ]
    return whole


def _merged(units: list[Any], common: Any) -> dict[str, Any]:
    state: dict[str, Any] = {"parameters": {}, "buffers": {}, "modules": {}}
    saved = common["optimizer"]
    index_of = {name: index for index, name in enumerate(saved["parameters"])}
    entries: dict[Any, Any] = {}
    for unit in units:
        for kind, values in state.items():
            named = {_full(unit["name"], name): value for name, value in unit[kind].items()}
            values |= {name: value for name, value in named.items() if value is not None}
        for name, entry in unit["optimizer"].items():
            entries[index_of[_full(unit["name"], name)]] = entry
    for alias, name in common["aliases"].items():
        for kind in ("parameters", "buffers"):
            if name in state[kind]:
                state[kind][alias] = state[kind][name]
    state["flags"] = common["flags"]
    optimizer_state = dict(sorted(entries.items())) | saved["state"]
    state["optimizers"] = [{"state": optimizer_state, "param_groups": saved["param_groups"]}]
    return state | {"schedulers": common["schedulers"], "extras": common["extras"]}


def _full(unit: str, name: str) -> str:
    """Return the stock name. name: within the unit; empty for the unit's module itself."""
    return ".".join(part for part in (unit, name) if part)
