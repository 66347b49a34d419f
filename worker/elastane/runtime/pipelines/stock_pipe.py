"""The pipe of a process with one rank: all units in one stock model, under DDP or alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import torch
from torch import Tensor

from elastane.pipeline.stage_run import forget_casts, no_autocast
from elastane.rng import Generators
from elastane.runtime.accumulation import LocalCalls
from elastane.runtime.pipelines.batch import PipelineBatch, steps
from elastane.runtime.pipelines.clips import stock_clip_grad_norm
from elastane.runtime.pipelines.pipe import EvalMode, Pipe, check_batch, check_place
from elastane.runtime.pipelines.prepared import PreparedPipeline
from elastane.runtime.pipelines.scaling import scale_of

ENDED: Final = "after the last epoch"
"""Reason to refuse an evaluation at that point: the other workers may be gone."""


class StockPipe(Pipe):
    """Runs the mini-batches of one rank through the whole model.

    model: the units' nn.Sequential, possibly wrapped by DistributedDataParallel. calls: the job's step calls.
    log: stores values of the step unless they are set already. refusal: returns why the script may not
    evaluate now; "" if it may. leads: True on rank 0.
    """

    def __init__(
        self,
        prepared: PreparedPipeline,
        model: torch.nn.Module,
        calls: LocalCalls,
        log: Callable[[str, Tensor], object],
        refusal: Callable[[], str] = lambda: "",
        *,
        leads: bool = True,
    ) -> None:
        super().__init__(prepared.units, prepared.options.loss_fn)
        self._options, self._module = prepared.options, prepared.objects.model
        self._model, self._calls, self._log = model, calls, log
        self._refusal, self._leads = refusal, leads
        self._scale = scale_of(prepared.objects.scalers)

    def __call__(self, batch: PipelineBatch) -> Tensor:
        check_batch(batch).use()
        self._model.zero_grad(set_to_none=True)
        mini_batch = batch.first
        while True:
            given, target = self._options.split(mini_batch)
            forget_casts()
            loss = self._options.loss_fn(self._model(given), target)
            with no_autocast():
                (loss if self._scale is None else self._scale(loss)).backward()
            if self._calls.sync:
                break
            mini_batch = next(batch.others)
        loss = loss.detach()
        self.losses = [loss]
        self._log("loss", loss)
        return loss

    def clip_grad_norm_(
        self,
        max_norm: float,
        norm_type: float = 2.0,
        error_if_nonfinite: bool = False,
        foreach: bool | None = None,
    ) -> Tensor:
        return stock_clip_grad_norm(
            self._module.parameters(), max_norm, norm_type, error_if_nonfinite, foreach
        )

    def state_dict(self) -> dict[str, Tensor]:
        refusal = self._refusal()
        check_place("pipe.state_dict", "" if refusal == ENDED and self._leads else refusal)
        return self.held_state_dict()

    def evaluate(self, batches: Iterable[Any], fn: Callable[[Any, Any], Any]) -> list[Any]:
        check_place("pipe.evaluate", self._refusal())
        generators = Generators(next(self._module.parameters()).device)
        found = []
        with EvalMode(self._module):
            for batch in batches:
                given, _ = self._options.split(batch)
                before = generators.capture()
                found.append(fn(self._module(given), batch))
                generators.restore(before)
        return found


class StockPipelineLoader:
    """Loader of a stock process: yields one batch per global step. Other attributes are the DataLoader's.

    mini_batches: a loader that counts an epoch's mini-batches. step: returns the global step now running.
    """

    def __init__(self, mini_batches: Any, steps_per_epoch: int, step: Callable[[], int]) -> None:
        self._mini_batches, self._steps_per_epoch, self._step = mini_batches, steps_per_epoch, step

    def __iter__(self) -> Iterator[PipelineBatch]:
        return steps(iter(self._mini_batches), self._step)

    def __len__(self) -> int:
        return self._steps_per_epoch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._mini_batches, name)
