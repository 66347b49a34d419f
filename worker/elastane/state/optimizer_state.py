"""Restore optimizer state with the same bits.

`torch.optim.Optimizer.load_state_dict` casts state to the dtype of its parameter (float32 moments of a
bfloat16 parameter lose half their bits), copies everything and replaces `param_groups`. Here the state is
restored unchanged: dtype, stride, aliasing, Python floats; and in place where possible, so that references
held by the script or a CUDA graph stay valid.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.optim import Optimizer

from elastane_common.errors import EXIT_REFUSED, ElastaneError


class StateError(ElastaneError):
    """The state to load does not belong to these objects; nothing was changed."""

    code = "ELA308"
    exit_code = EXIT_REFUSED


class Placer:
    """Moves loaded tensors to their final memory: a copy, or an existing tensor filled in place.

    The loaded ones are in staging memory that will be freed. One Placer serves one load: two places that
    shared a tensor share one again, and an existing tensor is filled for one place only.

    kinds: kind of device that a loaded tensor (by id) came from. model_kind: that of the parameters. device:
    of the parameters in this process.
    """

    def __init__(self, kinds: Mapping[int, str], model_kind: str, device: torch.device) -> None:
        self._kinds = kinds
        self._model_kind = model_kind
        self._device = device
        self._placed: dict[int, torch.Tensor] = {}
        self._filled: set[tuple[torch.device, int]] = set()

    def came_from_cpu(self, source: torch.Tensor) -> bool:
        return self._kinds.get(id(source), source.device.type) == "cpu"

    def tensor(
        self, source: torch.Tensor, existing: object = None, device: torch.device | None = None
    ) -> torch.Tensor:
        """Return the final tensor for `source`.

        device: its owner's; a tensor kept on the CPU by a model on another device stays on the CPU. None:
        there is no such owner; tensors from the CPU go to the CPU, the rest to the model's device.
        """
        if id(source) in self._placed:
            return self._placed[id(source)]
        # If the donor's model was on the CPU too, the kind of device says nothing about the tensor.
        apart = self.came_from_cpu(source) and (device is None or self._model_kind != "cpu")
        target = torch.device("cpu") if apart else device or self._device
        if isinstance(existing, torch.Tensor) and self._fits(existing, source, target):
            home = existing
        else:
            shape, stride = tuple(source.shape), tuple(source.stride())
            home = torch.empty_strided(shape, stride, dtype=source.dtype, device=target)
        if home.data_ptr() != source.data_ptr():
            with torch.no_grad():
                home.copy_(source)
        self._placed[id(source)] = home
        self._filled.add((home.device, home.data_ptr()))
        return home

    def tree(self, value: Any, existing: Any = None, device: torch.device | None = None) -> Any:
        """Apply `tensor` to every tensor of a nested value; containers are new."""
        if isinstance(value, torch.Tensor):
            return self.tensor(value, existing, device)
        if isinstance(value, dict):
            inner = existing if isinstance(existing, dict) else {}
            copy = type(value)()
            for key, item in value.items():
                copy[key] = self.tree(item, inner.get(key), device)
            return copy
        if isinstance(value, list | tuple):
            old = existing if isinstance(existing, list | tuple) and len(existing) == len(value) else None
            items = [self.tree(item, old[i] if old else None, device) for i, item in enumerate(value)]
            return type(value)(items)
        return value

    def _fits(self, existing: torch.Tensor, source: torch.Tensor, device: torch.device) -> bool:
        return (
            type(existing) is torch.Tensor
            and existing.dtype == source.dtype
            and existing.shape == source.shape
            and existing.stride() == source.stride()
            and existing.device == device
            and not existing.requires_grad
            and (existing.device, existing.data_ptr()) not in self._filled
        )


def check_optimizer(optimizer: Optimizer, state: Any, name: str) -> None:
    """Raise StateError unless `state` (a decoded state_dict) fits the optimizer's parameter groups."""
    groups, saved = optimizer.param_groups, state["param_groups"]
    sizes, saved_sizes = [len(g["params"]) for g in groups], [len(g["params"]) for g in saved]
    if sizes != saved_sizes:
        raise StateError(
            f"{name}: the state has parameter groups of {saved_sizes} parameters, the script built {sizes}",
            hint="every worker must build the same optimizer",
            found=sizes,
            expected=saved_sizes,
        )


def load_optimizer(optimizer: Optimizer, state: Any, placer: Placer) -> None:
    """Restore a decoded state_dict exactly, discarding the optimizer's previous state.

    A class with its own `load_state_dict` gets the state through that. Hooks run as torch runs them.
    Per-parameter state goes to the device of its parameter, "step" as torch places it.
    """
    if type(optimizer).load_state_dict is not Optimizer.load_state_dict:
        optimizer.load_state_dict(placer.tree(state))
        return
    for hook in list(optimizer._optimizer_load_state_dict_pre_hooks.values()):
        replaced = hook(optimizer, state)
        state = state if replaced is None else replaced
    # Previous tensors are reused where they fit, because CUDA graphs refer to their addresses.
    old = dict(optimizer.state)
    loaded: dict[Any, Any] = {}  # in the order of the state, i.e. of the parameters' first use
    owners = {index: (group, p) for group, index, p in _parameters(optimizer, state["param_groups"])}
    for key, value in state["state"].items():
        if key in owners:
            group, parameter = owners[key]
            loaded[parameter] = place_entry(value, old.get(parameter, {}), parameter, group, placer)
        else:
            loaded[key] = placer.tree(value, old.get(key))
    optimizer.state.clear()
    optimizer.state.update(loaded)
    for group, saved in zip(optimizer.param_groups, state["param_groups"], strict=True):
        load_group(group, saved, placer)
    for post_hook in list(optimizer._optimizer_load_state_dict_post_hooks.values()):
        post_hook(optimizer)


def _parameters(
    optimizer: Optimizer, saved_groups: list[dict[str, Any]]
) -> Iterator[tuple[dict[str, Any], int, torch.Tensor]]:
    """Yield (saved group, index in the state_dict, the optimizer's parameter) for every parameter."""
    for group, saved in zip(optimizer.param_groups, saved_groups, strict=True):
        for parameter, index in zip(group["params"], saved["params"], strict=True):
            yield saved, index, parameter


def place_entry(entry: Any, old: Any, parameter: torch.Tensor, group: dict[str, Any], placer: Placer) -> Any:
    """Return a parameter's state in its final memory. old: the present one. group: its options."""
    if not isinstance(entry, dict):
        return placer.tree(entry, old, parameter.device)
    on_device = bool(group.get("capturable") or group.get("fused"))
    placed = type(entry)()
    for key, value in entry.items():
        before = old.get(key) if isinstance(old, dict) else None
        is_host_step = key == "step" and isinstance(value, torch.Tensor) and placer.came_from_cpu(value)
        device = torch.device("cpu") if is_host_step and not on_device else parameter.device
        placed[key] = placer.tree(value, before, device)
    return placed


def load_group(group: dict[str, Any], saved: dict[str, Any], placer: Placer) -> None:
    """Restore options in place: the dict stays the same object, a tensor lr the same tensor."""
    fresh = {}
    for key, value in saved.items():
        if key != "params":
            old = group.get(key)
            fresh[key] = placer.tree(value, old, old.device if isinstance(old, torch.Tensor) else None)
    if "param_names" in group:
        fresh.setdefault("param_names", group["param_names"])
    parameters = group["params"]
    group.clear()
    group["params"] = parameters
    group.update(fresh)
