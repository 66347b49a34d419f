"""The pipe of an elastic worker."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor

from elastane.pipeline.units import Units
from elastane.runtime.pipelines.batch import PipelineBatch
from elastane.runtime.pipelines.errors import PipelineBodyError
from elastane.runtime.pipelines.evaluation import Evaluation
from elastane.runtime.pipelines.pipe import Pipe, check_batch
from elastane.runtime.pipelines.runner import PipelineRunner


class ElasticPipe(Pipe):
    """Runs steps in the stages of the ring's plan."""

    def __init__(
        self,
        units: Units,
        runner: PipelineRunner,
        evaluation: Evaluation,
        loss_fn: Callable[[Any, Any], Tensor],
    ) -> None:
        super().__init__(units, loss_fn)
        self._runner, self._evaluation = runner, evaluation

    def __call__(self, batch: PipelineBatch) -> Tensor:
        mean = self._runner.compute(check_batch(batch))
        self.losses = list(self._runner.losses)
        return mean

    def clip_grad_norm_(
        self,
        max_norm: float,
        norm_type: float = 2.0,
        error_if_nonfinite: bool = False,
        foreach: bool | None = None,
    ) -> Tensor:
        return self._runner.clip(max_norm, norm_type, error_if_nonfinite, foreach)

    @property
    def held(self) -> frozenset[int]:
        self._check_turn("pipe.held")
        return super().held

    def held_state_dict(self) -> dict[str, Tensor]:
        self._check_turn("pipe.held_state_dict()")
        return super().held_state_dict()

    def _check_turn(self, what: str) -> None:
        """Raise PipelineBodyError inside the loop body, where the answer would depend on the plan."""
        if self._runner.est_step is not None:
            raise PipelineBodyError(
                f"the loop body reads {what}, which differs from worker to worker and from plan to plan",
                hint="treat all units alike; which worker has which of them, `elastane plan JOB` shows, and"
                " between epochs pipe.held",
            )

    def state_dict(self) -> dict[str, Tensor]:
        return self._evaluation.weights()

    def evaluate(self, batches: Iterable[Any], fn: Callable[[Any, Any], Any]) -> list[Any]:
        return self._evaluation.run(batches, fn)
