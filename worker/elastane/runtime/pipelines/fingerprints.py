"""Fingerprints of the state that all workers of a pipeline have in common.

This is hyperparameters, schedulers, extras, carried values, which parameters are frozen and which units are
in eval mode. Weights and optimizer state are divided among workers, so they are not compared.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from torch import nn

from elastane.runtime.fingerprints import Fingerprints
from elastane.state.unit_state import UnitState

_DIVIDED = ("params", "param_names")
"""Keys of a param_group that differ between workers, because they cover only the local units."""


class CommonFingerprints(Fingerprints):
    """Digests of the part of the state that is the same in all workers. steps: see `Fingerprints`."""

    def __init__(self, state: UnitState, steps: int) -> None:
        extras = _Extras(state.extras, _Flags(state.units.as_model()))
        common = SimpleNamespace(
            model=nn.Module(),
            optimizers=[_Groups(state.optimizer.optimizer)],
            schedulers=state.schedulers,
            extras=extras,
        )
        super().__init__(common, lambda: (), steps)  # type: ignore[arg-type]

    def whole(self, *, modes: bool = True) -> int | None:
        """Return None: no digest of the final state is the same in all workers."""
        return None


class _Groups:
    """Interface of an optimizer that holds no parameters."""

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = optimizer
        self.state: dict[Any, Any] = {}

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return [
            {"params": (), **{name: value for name, value in group.items() if name not in _DIVIDED}}
            for group in self._optimizer.param_groups
        ]


class _Flags:
    """Names of the whole model, which every worker has."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model

    def state_dict(self) -> dict[str, str]:
        frozen = [name for name, p in self._model.named_parameters() if not p.requires_grad]
        resting = [name for name, module in self._model.named_modules() if not module.training]
        return {"frozen parameters": ", ".join(frozen), "modules in eval()": ", ".join(resting)}


class _Extras:
    """A state's extras, read when they are requested, and the flags."""

    def __init__(self, extras: dict[str, Any], flags: _Flags) -> None:
        self._extras, self._flags = extras, flags

    def items(self) -> list[tuple[str, Any]]:
        return [*self._extras.items(), ("model", self._flags)]

    def values(self) -> list[Any]:
        return [value for _, value in self.items()]
