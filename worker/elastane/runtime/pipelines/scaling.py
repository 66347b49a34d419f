"""GradScaler in a pipeline: no worker has all gradients, so an overflow found by any worker counts for all.

    pipe(batch)        scales each EST's loss; after the sums all members exchange whether theirs are finite
    scaler.unscale_    divides the averages held here; found_inf is the result of all members
    scaler.step        as in any job: all members make the step, or all skip it

The exchange is complete before the step is reported: after that, no member may depend on another.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.amp.grad_scaler import OptState

from elastane.pipeline.executor import StepExecutor
from elastane.runtime.pipelines.errors import PipelineOptionError
from elastane.runtime.prepared_objects import replace_method


def check_scalers(scalers: Sequence[torch.amp.GradScaler]) -> None:
    """Raise PipelineOptionError for more than one: there is one loss to scale."""
    if len(scalers) > 1:
        raise PipelineOptionError(
            f"{len(scalers)} GradScalers were prepared", hint="pipe(batch) scales one loss: give one"
        )


def scale_of(scalers: Sequence[torch.amp.GradScaler]) -> Callable[[Tensor], Tensor] | None:
    """Return the factor by which a loss is scaled before backward; None: it is not scaled."""
    return next((scaler.scale for scaler in scalers if scaler.is_enabled()), None)


class JoinedScaler:
    """The script's GradScaler, if there is one that is enabled; called by the script's thread.

    device: of the units.
    """

    def __init__(self, scalers: Sequence[torch.amp.GradScaler], device: torch.device) -> None:
        self._scaler = next((scaler for scaler in scalers if scaler.is_enabled()), None)
        self._device = device
        self._found_inf = False
        if self._scaler is not None:
            # `unscale_` and fused optimizers both use it to check for values that are not finite.
            replace_method(self._scaler, "_unscale_grads_", self._unscale)

    def begin_step(self) -> None:
        """Begin a step, or begin it again: gradients unscaled by a lost step have been discarded."""
        scaler = self._scaler
        if scaler is None:
            return
        if scaler._scale is None:  # torch creates it where a loss is scaled, which is only on the last stage
            scaler._lazy_init_scale_growth_tracker(self._device)
        if any(one["stage"] is OptState.UNSCALED for one in scaler._per_optimizer_states.values()):
            scaler._per_optimizer_states.clear()

    def join(self, executor: StepExecutor) -> None:
        """Determine with all members whether any average of the model is not finite. Called after the sums.

        Raises RingAborted, RingBroken.
        """
        if self._scaler is not None:
            self._found_inf = executor.found_inf()

    def _unscale(self, original: Callable[..., Any], *arguments: Any) -> dict[torch.device, Tensor]:
        original(*arguments)
        found = torch.full((), float(self._found_inf), dtype=torch.float32, device=self._device)
        return {self._device: found}
