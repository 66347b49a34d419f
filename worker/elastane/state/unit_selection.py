"""Extracts selected units from the stream of an ordinary state."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch

from elastane.state.codec import StateFormatError, decode_node, document_of, from_flat_bytes, specs_of
from elastane.state.in_place import same_names
from elastane.state.optimizer_state import StateError
from elastane.state.stream import StreamLayout
from elastane.state.unit_state import Staged, UnitState


class Selection:
    """Units of a state as `TrainState.export` encodes it.

    structure: of the whole state. specs: of all its tensors. ranges: needed bytes [start, end) of the stream.
    Raises StateError with the first difference if it belongs to another model, StateFormatError.
    """

    def __init__(self, structure: bytes, units: frozenset[int], state: UnitState) -> None:
        self.specs = specs_of(structure)
        try:
            self._tree = _tree(document_of(structure)["tree"], units, state, self._form)
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            raise StateFormatError(f"this is not the state of a training run: {error}") from error
        layout = StreamLayout(self.specs)
        self._memory = {
            index: torch.empty(self.specs[index].nbytes, dtype=torch.uint8)
            for index in sorted(_indices(self._tree))
        }
        self._places = [
            (layout.offsets[index], layout.offsets[index] + memory.numel(), memory)
            for index, memory in self._memory.items()
            if memory.numel()
        ]
        self.ranges = [(start, end) for start, end, _ in self._places]

    def take(self, position: int, chunk: bytes) -> None:
        """Keep the needed bytes of a chunk that begins at `position`; may be called from any thread."""
        for start, end, memory in self._places:
            low, high = max(start, position), min(end, position + len(chunk))
            if low < high:
                part = bytearray(chunk[low - position : high - position])
                memory[low - start : high - start] = torch.frombuffer(part, dtype=torch.uint8)

    def staged(self) -> Staged:
        """Return the units, after the whole stream has been processed."""
        tensors = {
            index: from_flat_bytes(memory, self.specs[index]) for index, memory in self._memory.items()
        }
        tree = decode_node(self._tree, tensors)
        devices = {id(tensor): self.specs[index].device for index, tensor in tensors.items()}
        return Staged(tree["units"], tree["common"], devices)

    def _form(self, index: int) -> tuple[torch.dtype, tuple[int, ...]]:
        return self.specs[index].dtype, self.specs[index].shape


def _tree(node: Any, units: frozenset[int], state: UnitState, form: Any) -> Any:
    """Return the encoded tree of `UnitState.export`, built from that of `TrainState.export`."""
    top = _entries(node)
    parameters, buffers, modules = (_entries(top[part]) for part in ("parameters", "buffers", "modules"))
    _check(parameters, state, form)
    model = state.units.as_model()
    known = {
        name for prefix, module in _prefixed(model) for name in (prefix + key for key in module._buffers)
    }
    same_names("buffers", known | set(buffers), known)
    same_names(
        "module states",
        modules,
        [
            name
            for name, module in model.named_modules()
            if type(module).get_extra_state is not torch.nn.Module.get_extra_state
        ],
    )
    optimizers = top["optimizers"]
    if len(optimizers) != 1:
        raise StateError(
            f"the state has {len(optimizers)} optimizers, a pipeline has one",
            hint="use the checkpoint of a job with one optimizer",
        )
    saved = _entries(optimizers[0])
    names = state.optimizer.names()
    entries = dict(_pairs(saved["state"]))
    by_name = {names[key]: value for key, value in entries.items() if type(key) is int and key < len(names)}
    other = [[key, value] for key, value in entries.items() if type(key) is not int]
    found = [[unit, _unit(unit, state, parameters, buffers, modules, by_name)] for unit in sorted(units)]
    form_of_all = [[s.name, _dtype(s.dtype), list(s.shape)] for s in state.units.specs]
    common = {
        "units": list(state.units.names),
        "parameters": form_of_all,
        "aliases": _dict({}),
        "flags": top["flags"],
        "optimizer": _dict(
            {"param_groups": saved["param_groups"], "parameters": names, "state": {"dict": other}}
        ),
        "schedulers": top["schedulers"],
        "extras": top["extras"],
    }
    return _dict({"units": {"dict": found}, "common": _dict(common)})


def _unit(
    unit: int,
    state: UnitState,
    parameters: Mapping[str, Any],
    buffers: Mapping[str, Any],
    modules: Mapping[str, Any],
    optimizer: Mapping[str, Any],
) -> Any:
    units, prefix = state.units, state.units.prefix(unit)
    own = list(units.owned_parameters(unit))
    buffer_names = [name for name, _, _ in units.owned_buffers(unit)]
    module_names = [name for name, _ in units.owned_modules(unit)]
    full = {name: f"{prefix}{name}" if name else prefix.removesuffix(".") for name in module_names}
    return _dict(
        {
            "name": units.names[unit],
            "parameters": _dict({name: parameters[prefix + name] for name in own}),
            "buffers": _dict({name: buffers.get(prefix + name) for name in buffer_names}),
            "modules": _dict({n: modules[full[n]] for n in module_names if full[n] in modules}),
            "optimizer": _dict({n: optimizer[prefix + n] for n in own if prefix + n in optimizer}),
        }
    )


def _check(parameters: Mapping[str, Any], state: UnitState, form: Any) -> None:
    """Raise StateError unless the whole model has the same parameters."""
    model = state.units.as_model()
    same_names("parameters", parameters, dict(model.named_parameters(remove_duplicate=False)))
    for spec in state.units.specs:
        dtype, shape = form(parameters[spec.name]["tensor"])
        if (dtype, shape) != (spec.dtype, spec.shape):
            raise StateError(
                f"parameter {spec.name} is {_words(dtype, shape)} in the state and"
                f" {_words(spec.dtype, spec.shape)} in the script",
                hint="every worker must build the same model",
                parameter=spec.name,
            )


def _prefixed(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module]]:
    for name, module in model.named_modules(remove_duplicate=False):
        yield (f"{name}." if name else ""), module


def _words(dtype: torch.dtype, shape: Iterable[int]) -> str:
    return f"{str(dtype).removeprefix('torch.')}{list(shape)}"


# ------------------------------------------------------------------ nodes of the encoded tree


def _pairs(node: Any) -> list[list[Any]]:
    ((kind, pairs),) = node.items()
    if kind not in ("dict", "ordered"):
        raise ValueError(f"{kind} where a dict should be")
    return list(pairs)


def _entries(node: Any) -> dict[Any, Any]:
    return dict(_pairs(node))


def _dict(entries: Mapping[str, Any]) -> dict[str, Any]:
    return {"dict": [[key, value] for key, value in entries.items()]}


def _dtype(dtype: torch.dtype) -> dict[str, str]:
    return {"dtype": str(dtype).removeprefix("torch.")}


def _indices(node: Any) -> Iterator[int]:
    """Yield the numbers of all tensors below a node."""
    if isinstance(node, list):
        for item in node:
            yield from _indices(item)
    elif isinstance(node, dict):
        ((kind, content),) = node.items()
        if kind == "tensor":
            yield content
        elif kind == "array":
            yield content[3]
        elif kind not in ("int", "float", "bytes", "dtype", "scalar"):
            yield from _indices(content)
