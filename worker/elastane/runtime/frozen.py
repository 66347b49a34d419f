"""Parameters that do not require a gradient when the job is prepared, and must not later."""

from __future__ import annotations

import torch

from elastane_common.errors import UnsupportedError


class FrozenParameters:
    """The frozen parameters of the model: they are in no bucket."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._named = [(name, p) for name, p in model.named_parameters() if not p.requires_grad]

    def check(self) -> None:
        """Raise UnsupportedError for a parameter that was unfrozen after prepare."""
        for name, param in self._named:
            if param.requires_grad:
                raise UnsupportedError(
                    f"parameter {name} did not require a gradient at prepare and does now",
                    hint=(
                        "let every parameter that will be trained require gradients at prepare, freeze it "
                        "after that, and pass find_unused_parameters=True"
                    ),
                    parameter=name,
                )
