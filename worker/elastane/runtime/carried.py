"""Named Python values that are part of the job's state: `job.carry`.

A joining worker lacks the script's variables that live across epochs (the best metric so far, a patience
counter). Carried values travel with the weights, to joining workers and into checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from elastane.state.codec import encode
from elastane.state.optimizer_state import StateError
from elastane_common.errors import StepError


class CarriedValues:
    """All values that a script carries, as a state object for `TrainState`."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        #: False if the received state already contains the result of an assignment, which is then ignored.
        #: May raise.
        self.writes: Callable[[str], bool] = lambda name: True

    def add(self, values: Mapping[str, Any]) -> Carried:
        """Add values by name.

        Raises StepError for a duplicate name, StateNotCarriedError for a value that cannot be encoded.
        """
        for name, value in values.items():
            if name in self.values:
                raise StepError(
                    f"job.carry({name}=...) was called twice", hint="give each value a different name"
                )
            check(name, value)
        self.values |= values
        return Carried(self, frozenset(values))

    def state_dict(self) -> dict[str, Any]:
        return dict(self.values)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if sorted(state) != sorted(self.values):
            raise StateError(
                f"carried values differ: the state has {', '.join(sorted(state)) or '(none)'}, the script "
                f"{', '.join(sorted(self.values)) or '(none)'}",
                hint="every worker must call job.carry with the same names",
            )
        # Tensors may be views of the buffer they were received in.
        self.values = {
            name: value.clone() if isinstance(value, torch.Tensor) else value for name, value in state.items()
        }


class Carried:
    """Return value of `job.carry`: the carried values as attributes."""

    __slots__ = ("_all", "_names")

    def __init__(self, values: CarriedValues, names: frozenset[str]) -> None:
        object.__setattr__(self, "_all", values)
        object.__setattr__(self, "_names", names)

    def __getattr__(self, name: str) -> Any:
        if name in self._names:
            return self._all.values[name]
        raise AttributeError(f"job.carry was not given {name!r}")

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in self._names:
            raise StepError(
                f"{name!r} was set on the object that job.carry returned, but was not given to job.carry",
                hint=f"declare it with its initial value: job.carry({name}=...)",
            )
        check(name, value)
        if self._all.writes(name):
            self._all.values[name] = value

    def __dir__(self) -> list[str]:
        return sorted(self._names)

    def __repr__(self) -> str:
        return f"carry({', '.join(f'{name}={self._all.values[name]!r}' for name in sorted(self._names))})"


def check(name: str, value: Any) -> None:
    """Raise StateNotCarriedError, naming the part, if the value cannot be encoded."""
    encode(value, path=f"job.carry, {name}")
