"""Calls in an elastic loop body that take effect once a global step, on the worker's last turn.

On all other turns, and on one whose step is lost, they do nothing; the script does not notice.
`prepared_objects.intercept` puts them in the place of the script's `optimizer.step()` and the others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from elastane.runtime.accumulation import zeroing_counts
from elastane.runtime.prepared_objects import set_to_none
from elastane_common.errors import StepError

if TYPE_CHECKING:
    from elastane.runtime.trainer import Trainer


class ElasticCalls:
    """`StepCalls` of a worker in a ring."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer, self._steps = trainer, trainer.steps

    def adding(self) -> bool:
        est_step = self._steps.est_step
        return est_step is not None and not est_step.sync

    def optimizer_step(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        steps, optimizer = self._steps, _optimizer_of(original, args)
        if steps.est_step is not None and optimizer is not None:
            steps.watch.used(steps.est_step, optimizer)
        try:
            if not steps.begin_apply():
                return None
            steps.before_optimizer(original, *args, *kwargs.values())
            result = original(*args, **kwargs)
            steps.watch.after_step()
            steps.after_optimizer()
            return result
        finally:
            steps.gradients_used()

    def unscale(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return self.optimizer_step(original, *args, **kwargs)

    def once(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        est_step = self._steps.est_step
        if est_step is None:
            # Between epochs. The received state may already contain this call's effect.
            return None if self._trainer.epoch_is_closed else original(*args, **kwargs)
        if not est_step.applied:
            return None
        result = original(*args, **kwargs)
        self._steps.watch.after_step()
        return result

    def scheduler_step(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        est_step = self._steps.est_step
        if (
            est_step is not None
            and est_step.last
            and est_step.state.in_flight
            and not (est_step.applied or self._steps.failed)
        ):
            raise StepError(
                "scheduler.step() came before optimizer.step()",
                hint="call optimizer.step() first, as in stock PyTorch",
            )
        return self.once(original, *args, **kwargs)

    def zero_grad(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        est_step = self._steps.est_step
        counts = est_step is None or zeroing_counts(
            first=est_step.micro == 0, sync=est_step.sync, backward_done=self._steps.backward_done
        )
        return set_to_none(original, *args, **kwargs) if counts else None


def _optimizer_of(original: Callable[..., Any], arguments: tuple[Any, ...]) -> torch.optim.Optimizer | None:
    """Return the optimizer that steps: the method's owner, or the argument of `scaler.step`."""
    owner = getattr(original, "__self__", None)
    if isinstance(owner, torch.optim.Optimizer):
        return owner
    given = arguments[0] if arguments and getattr(original, "__name__", "") == "step" else None
    return given if isinstance(given, torch.optim.Optimizer) else None
