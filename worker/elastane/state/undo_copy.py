"""A copy of everything that an optimizer step and the script after it change, to undo a step exactly.

Tensors are copied into memory that is kept from step to step, and copied back in place: the script, the
reducer and the optimizer keep their tensors. Everything else is small: options, schedulers, counters.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim import optimizer as shared

from elastane.state.repeated_steps import why_not_repeated
from elastane.state.train_state import RUNTIME_PREFIX, TrainState

_PLAIN: Final = (int, float, complex, str, bytes, bool, type(None))


class UndoCopy:
    """Copy of one worker's state before the step in flight. Used by the script's thread.

    buffers: returns the model's buffers at the start of the step. gradients: says which parameters had a
    gradient then (`ScriptGradients`).
    """

    def __init__(self, state: TrainState, buffers: Callable[[], Sequence[Tensor]], gradients: Any) -> None:
        self._state, self._buffers, self._gradients = state, buffers, gradients
        self._live: list[Tensor] = []
        self._copies: list[Tensor] = []
        self._forms: list[tuple[Any, ...]] = []
        self._options: list[list[dict[str, Any]]] = []
        self._entries: list[dict[Tensor, dict[str, Any]]] = []
        self._schedulers: list[Any] = []
        self._defined: Any = None
        self._buffer_copies: list[Tensor] = []

    def why_not(self) -> str:
        """Return why a step cannot be undone; empty if it can. Cheap enough for every step."""
        state = self._state
        if why := why_not_repeated(state):
            return why
        if any((shared._global_optimizer_pre_hooks, shared._global_optimizer_post_hooks)):
            return "all optimizers have hooks"
        for scheduler in state.schedulers:
            if not type(scheduler).__module__.startswith("torch.optim."):
                return f"it is not known what a step of {type(scheduler).__name__} changes"
        for module in (part for whole in (state.model, *self._modules()) for part in whole.modules()):
            if type(module).get_extra_state is not nn.Module.get_extra_state:
                return f"{type(module).__name__} has a state of its own"
        for name, extra in state.extras.items():
            if why := _why_not_extra(name, extra):
                return why
        return ""

    @property
    def size_bytes(self) -> int:
        """Size of the copy."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self._tensors())

    def take(self) -> None:
        """Copy the state as it is now."""
        state = self._state
        self._options = [[dict(group) for group in one.param_groups] for one in state.optimizers]
        self._entries = [{p: dict(entry) for p, entry in one.state.items()} for one in state.optimizers]
        self._schedulers = [copy.deepcopy(scheduler.state_dict()) for scheduler in state.schedulers]
        self._defined = self._gradients.state_dict()
        self._live = list(self._tensors())
        forms = [(tensor.shape, tensor.stride(), tensor.dtype, tensor.device) for tensor in self._live]
        if forms != self._forms:
            self._copies = [torch.empty_like(tensor, requires_grad=False) for tensor in self._live]
            self._forms = forms
        _copy(self._copies, self._live)
        count = len(self._buffers())
        self._buffer_copies = self._copies[len(self._copies) - count :]

    def restore(self) -> list[Tensor]:
        """Put the state back in place; return the model's buffers as of then, which the caller puts back."""
        buffers = [one.clone() for one in self._buffer_copies]
        kept = len(self._live) - len(buffers)
        _copy(self._live[:kept], self._copies[:kept])
        # Schedulers first: some write the learning rate into the optimizer when they are loaded.
        for scheduler, value in zip(self._state.schedulers, self._schedulers, strict=True):
            scheduler.load_state_dict(copy.deepcopy(value))
        for optimizer, groups, entries in zip(
            self._state.optimizers, self._options, self._entries, strict=True
        ):
            for group, values in zip(optimizer.param_groups, groups, strict=True):
                _fill(group, values)
            _fill_entries(optimizer, entries)
        self._gradients.load_state_dict(self._defined)
        return buffers

    def _tensors(self) -> Iterator[Tensor]:
        """Yield the tensors to copy; the buffers are the last."""
        for optimizer in self._state.optimizers:
            for group in optimizer.param_groups:
                # Not detached: a script may give a parameter other memory, which is then written to.
                yield from group["params"]
                yield from (value for value in group.values() if isinstance(value, Tensor))
            for entry in optimizer.state.values():
                yield from (value for value in entry.values() if isinstance(value, Tensor))
        for module in self._modules():
            yield from module.parameters()
            yield from module.buffers()
        yield from self._buffers()

    def _modules(self) -> list[nn.Module]:
        """Return the averages and copies of the model that travel with the weights."""
        return [extra for extra in self._state.extras.values() if isinstance(extra, nn.Module)]


def _why_not_extra(name: str, extra: Any) -> str:
    """Return why changes of an object that travels with the weights cannot be undone; empty if they can."""
    if name == f"{RUNTIME_PREFIX}carried":
        values = extra.state_dict()
        changing = [key for key, value in values.items() if not isinstance(value, _PLAIN)]
        return f"the carried value {changing[0]} may be changed in place" if changing else ""
    if name.startswith(RUNTIME_PREFIX) or isinstance(extra, nn.Module):
        return ""
    if isinstance(extra, torch.amp.GradScaler):
        return "a GradScaler waits for the gradients" if extra.is_enabled() else ""
    return f"it is not known what changes {type(extra).__name__}"


def _copy(to: Sequence[Tensor], of: Sequence[Tensor]) -> None:
    """Copy tensors, those of each device at once."""
    with torch.no_grad():
        for device in {tensor.device for tensor in of}:
            pairs = [(a, b) for a, b in zip(to, of, strict=True) if b.device == device]
            torch._foreach_copy_([a for a, _ in pairs], [b for _, b in pairs])


def _fill(place: dict[str, Any], values: dict[str, Any]) -> None:
    place.clear()
    place.update(values)


def _fill_entries(optimizer: Optimizer, entries: dict[Tensor, dict[str, Any]]) -> None:
    """Put an optimizer's own state back: the same tensors, whose contents have been copied back."""
    for parameter in [one for one in optimizer.state if one not in entries]:
        del optimizer.state[parameter]
    for parameter, entry in entries.items():
        _fill(optimizer.state[parameter], entry)
