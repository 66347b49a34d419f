"""All state that a worker needs besides EST contexts to continue training: exported, and loaded in place.

1. `export()` refers to every parameter, buffer, optimizer and scheduler state and extra object:
   between two steps nothing changes them, so nothing needs to be copied.
2. The export is sent (hand-over) or written (checkpoint).
3. `load()` first compares it with the script's objects, then fills them in place: the script, the
   reducer and the optimizer keep their tensors.

Gradients are not included: at a step boundary none are pending. Frozen parameters and the modules' training
mode (`requires_grad`, `training`) are included: a script may set them only once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Protocol

import torch
from torch import nn
from torch.optim import Optimizer

from elastane.state.codec import Exported, StateFormatError, decode, encode
from elastane.state.fingerprint import fingerprint
from elastane.state.in_place import check_parameters, fill_buffers, fill_parameters, same_names
from elastane.state.optimizer_state import Placer, StateError, check_optimizer, load_optimizer

__all__ = ["StateError", "Stateful", "TrainState", "fingerprint"]

#: Name prefix of the runtime's own extras; stock training has no such state.
RUNTIME_PREFIX: Final = "elastane."

_SECTIONS = ("parameters", "buffers", "flags", "modules", "optimizers", "schedulers", "extras")


class Stateful(Protocol):
    """A scheduler, a GradScaler, an averaged model, or a user's object."""

    def state_dict(self) -> Any: ...
    def load_state_dict(self, state_dict: Any) -> Any: ...


class TrainState:
    """The objects a script trains with, as one state.

    model: the module itself, not a wrapper. optimizers: torch's, unwrapped. schedulers: in the order in which
    every worker builds them. extras: by name, any object with state_dict and load_state_dict.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizers: Sequence[Optimizer] = (),
        schedulers: Sequence[Stateful] = (),
        extras: Mapping[str, Stateful] | None = None,
    ) -> None:
        self.model = model
        self.optimizers = list(optimizers)
        self.schedulers = list(schedulers)
        self.extras = dict(extras or {})

    def export(self) -> Exported:
        """Return the state by reference; valid until the next step begins.

        Raises StateNotCarriedError that names the item, e.g. "extras.tracker.file: object of type ...".
        """
        state = {
            "parameters": dict(self.model.named_parameters(remove_duplicate=False)),
            "buffers": dict(self.model.named_buffers(remove_duplicate=False)),
            "flags": {
                "frozen": [name for name, p in self.model.named_parameters() if not p.requires_grad],
                "evaluating": [name for name, module in self.model.named_modules() if not module.training],
            },
            "modules": {name: module.get_extra_state() for name, module in self._modules_with_state()},
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "schedulers": [scheduler.state_dict() for scheduler in self.schedulers],
            "extras": {name: extra.state_dict() for name, extra in self.extras.items()},
        }
        return encode(state)

    def load(self, exported: Exported) -> None:
        """Fill the objects in place with the exported state, bit for bit.

        Parameters keep their identity and their memory (`data_ptr`). Raises StateError or StateFormatError
        before anything is changed if the state does not fit the objects.
        """
        state = decode(exported)
        self._check(state)
        placer = self._placer(exported, state)
        with torch.no_grad():
            fill_parameters(dict(self.model.named_parameters(remove_duplicate=False)), state["parameters"])
            fill_buffers(self._modules(), state["buffers"], placer, self._device())
        self._load_flags(state["flags"])
        modules = dict(self._modules_with_state())
        for name, value in state["modules"].items():
            modules[name].set_extra_state(placer.tree(value))
        # Schedulers first: some write the learning rate into the optimizer when they are loaded.
        for scheduler, value in zip(self.schedulers, state["schedulers"], strict=True):
            scheduler.load_state_dict(placer.tree(value))
        for optimizer, value in zip(self.optimizers, state["optimizers"], strict=True):
            load_optimizer(optimizer, value, placer)
        for name, value in state["extras"].items():
            # The runtime's own extras differ between jobs with and without a pipeline.
            if name in self.extras:
                self.extras[name].load_state_dict(placer.tree(value))

    def fingerprint(self) -> dict[str, str]:
        """Return sha256 of "weights", "optimizer", "buffers" and "extras".

        See `elastane.state.fingerprint`.
        """
        own = [extra for name, extra in self.extras.items() if not name.startswith(RUNTIME_PREFIX)]
        return fingerprint(self.model, self.optimizers, [*self.schedulers, *own])

    # ------------------------------------------------------------------ checks before any change

    def _check(self, state: Any) -> None:
        if not isinstance(state, dict) or sorted(state) != sorted(_SECTIONS):
            raise StateFormatError("this is not the state of a training run")
        check_parameters(dict(self.model.named_parameters(remove_duplicate=False)), state["parameters"])
        same_names("module states", state["modules"], dict(self._modules_with_state()))
        same_names("extras", scripts_names(state["extras"]), scripts_names(self.extras))
        known = {f"{prefix}{name}" for prefix, module in self._modules() for name in module._buffers}
        same_names("buffers", known | set(state["buffers"]), known)
        for kind, mine in (("optimizers", self.optimizers), ("schedulers", self.schedulers)):
            if len(state[kind]) != len(mine):
                raise StateError(
                    f"the state has {len(state[kind])} {kind}, the script gave {len(mine)}",
                    hint=f"every worker must prepare the same {kind}",
                )
        for index, (optimizer, value) in enumerate(zip(self.optimizers, state["optimizers"], strict=True)):
            if type(optimizer).load_state_dict is Optimizer.load_state_dict:
                check_optimizer(optimizer, value, f"optimizer {index}")

    # ------------------------------------------------------------------ in place

    def _placer(self, exported: Exported, state: Any) -> Placer:
        kinds = {id(t): spec.device for t, spec in zip(exported.tensors, exported.specs, strict=True)}
        # The parameters' kind of device in the donor, which may differ from this worker's.
        model_kind = next((kinds[id(value)] for value in state["parameters"].values()), "cpu")
        return Placer(kinds, model_kind, self._device())

    def _device(self) -> torch.device:
        return next((parameter.device for parameter in self.model.parameters()), torch.device("cpu"))

    def _load_flags(self, flags: Mapping[str, list[str]]) -> None:
        frozen, evaluating = set(flags["frozen"]), set(flags["evaluating"])
        for name, parameter in self.model.named_parameters():
            parameter.requires_grad_(name not in frozen)
        for name, module in self.model.named_modules():
            module.training = name not in evaluating

    def _modules(self) -> Iterator[tuple[str, nn.Module]]:
        for name, module in self.model.named_modules(remove_duplicate=False):
            yield (f"{name}." if name else ""), module

    def _modules_with_state(self) -> Iterator[tuple[str, nn.Module]]:
        for name, module in self.model.named_modules():
            if type(module).get_extra_state is not nn.Module.get_extra_state:
                yield name, module


def scripts_names(extras: Iterable[str]) -> list[str]:
    """Return the names of the script's extras, without the runtime's."""
    return [name for name in extras if not name.startswith(RUNTIME_PREFIX)]
