"""The forward hook that tells the reducer of the model's outputs."""

from __future__ import annotations

from typing import Any

import torch

from elastane.collective.reducer import Reducer


class OutputWatch:
    """The model's forward hook (`Reducer.watch_outputs`). Copies and files of the model go without it."""

    def __init__(self, reducer: Reducer | None) -> None:
        self._reducer = reducer

    def __call__(self, module: torch.nn.Module, inputs: Any, outputs: Any) -> None:
        if self._reducer is not None:
            self._reducer.watch_outputs(module, inputs, outputs)

    def __deepcopy__(self, memo: dict[int, Any]) -> OutputWatch:
        return OutputWatch(None)

    def __reduce__(self) -> tuple[type[OutputWatch], tuple[None]]:
        return OutputWatch, (None,)
