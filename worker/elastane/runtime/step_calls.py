"""What the calls of an elastic loop body do: each counts once a global step, on the worker's last turn.

On all other turns, and on one whose step is lost, they do nothing; the script does not notice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from elastane.errors import StepError
from elastane.runtime.accumulation import zeroing_counts

if TYPE_CHECKING:
    from elastane.runtime.trainer import Trainer


class ElasticCalls:
    """`StepCalls` of a worker in a ring."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer

    def optimizer_step(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        try:
            return original(*args, **kwargs) if self._trainer.claim() else None
        finally:
            self._trainer.gradients_used()

    def once(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        turn = self._trainer.turn
        if turn is None:
            # Between epochs. The state may have come from a worker that has passed here already.
            return None if self._trainer.epoch_is_closed else original(*args, **kwargs)
        return original(*args, **kwargs) if turn.applied else None

    def scheduler_step(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        turn = self._trainer.turn
        if turn is not None and turn.last and not (turn.applied or turn.lost or self._trainer.failed):
            raise StepError(
                "scheduler.step() came before optimizer.step()",
                hint="step the optimizer first, as in stock PyTorch",
            )
        return self.once(original, *args, **kwargs)

    def zero_grad(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        turn = self._trainer.turn
        counts = turn is None or zeroing_counts(
            first=turn.micro == 0, sync=turn.sync, backward_done=self._trainer.backward_done
        )
        return original(*args, **kwargs) if counts else None
