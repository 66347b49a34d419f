"""What the executor needs of a model's units (`units.Units`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import nn


class UnitParameter(Protocol):
    """A parameter of the whole model, as built: it may be released now."""

    @property
    def name(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def stride(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> torch.dtype: ...
    @property
    def requires_grad(self) -> bool: ...


class ModelUnits(Protocol):
    """The units of a model, of which a worker holds some."""

    @property
    def count(self) -> int: ...
    @property
    def names(self) -> Sequence[str]: ...
    @property
    def specs(self) -> Sequence[UnitParameter]:
        """Of all parameters in registration order, each once."""
        ...

    @property
    def parameters(self) -> Sequence[nn.Parameter]:
        """The same parameters; the objects stay for ever."""
        ...

    def module(self, unit: int) -> nn.Module: ...
