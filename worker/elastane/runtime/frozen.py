"""Parameters that do not require a gradient when the job is prepared, and must not later."""

from __future__ import annotations

import torch

from elastane_common.errors import UnsupportedError


class FrozenParameters:
    """The frozen parameters of the model: they are in no bucket. pipeline: of its units."""

    def __init__(self, model: torch.nn.Module, *, pipeline: bool = False) -> None:
        self._pipeline = pipeline
        self._named = [(name, p) for name, p in model.named_parameters() if not p.requires_grad]

    def check(self) -> None:
        """Raise UnsupportedError for a parameter that was unfrozen after prepare."""
        hint = (
            "let every parameter that will be trained require gradients at prepare, freeze it after that, and"
            " pass find_unused_parameters=True"
        )
        if self._pipeline:
            hint = (
                "let parameters that are trained later require gradients at prepare_pipeline, in a group with"
                " lr=0 until then"
            )
        for name, param in self._named:
            if param.requires_grad:
                raise UnsupportedError(
                    f"parameter {name} did not require a gradient at prepare and does now",
                    hint=hint,
                    parameter=name,
                )
