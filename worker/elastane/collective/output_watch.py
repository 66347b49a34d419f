"""The model's forward hook, through which the reducer sees the outputs."""

from __future__ import annotations

from typing import Any

import torch

from elastane.collective.reducer import Reducer


class OutputWatch:
    """Forward hook of the model (`Reducer.watch_outputs`).

    Copies and pickles of the model have an inert one.
    """

    def __init__(self, reducer: Reducer | None) -> None:
        self._reducer = reducer

    def __call__(self, module: torch.nn.Module, inputs: Any, outputs: Any) -> None:
        if self._reducer is not None:
            self._reducer.watch_outputs(module, inputs, outputs)

    def __deepcopy__(self, memo: dict[int, Any]) -> OutputWatch:
        return OutputWatch(None)

    def __reduce__(self) -> tuple[type[OutputWatch], tuple[None]]:
        return OutputWatch, (None,)
