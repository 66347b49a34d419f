"""Calls in the loop body of a pipeline that take effect once a global step."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from elastane.runtime.pipelines.runner import PipelineRunner
from elastane.runtime.step_calls import ElasticCalls

if TYPE_CHECKING:
    from elastane.runtime.trainer import Trainer


class PipelineCalls(ElasticCalls):
    """`StepCalls` of a worker in a pipeline's ring."""

    def __init__(self, trainer: Trainer, runner: PipelineRunner) -> None:
        super().__init__(trainer)
        self._runner = runner

    def optimizer_step(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        with self._runner.stepping():
            return super().optimizer_step(original, *args, **kwargs)

    def unscale(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """`scaler.unscale_`, before the step is reported: the script may clip after it, which needs all."""
        if self._runner.has_averages("scaler.unscale_", applying=True):
            with self._runner.stepping():
                return original(*args, **kwargs)
        return None
