"""The `pipe` object of a script, which runs a step's mini-batches through the units in every mode."""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from elastane.pipeline.units import Units
from elastane.runtime.pipelines.batch import PipelineBatch
from elastane.runtime.pipelines.errors import EvaluationError, PipelineBodyError


class Pipe(abc.ABC):
    """Returned by `Job.prepare_pipeline`.

        for batch in loader:
            loss = pipe(batch)
            optimizer.step()

    losses: of the last step, by EST; with accumulation, those of its last mini-batch. A stock DDP process
    knows only its own. loss_fn: the script's loss function, which `pipe(batch)` calls.
    """

    def __init__(self, units: Units, loss_fn: Callable[[Any, Any], Tensor]) -> None:
        self._units, self.loss_fn = units, loss_fn
        self.losses: list[Tensor] = []

    @abc.abstractmethod
    def __call__(self, batch: PipelineBatch) -> Tensor:
        """Run forward and backward of a step, and average gradients; return the detached loss.

        The loss is the mean over all ESTs, added in rank order; in a stock DDP process it is the rank's own.
        Each EST's own loss is logged as "loss" unless the script logs another value under that name. When the
        returned tensor is passed to `job.log`, each EST's own loss is logged. Raises PipelineBodyError, and a
        unit's own exception, with notes that name EST and unit.
        """

    @abc.abstractmethod
    def clip_grad_norm_(
        self,
        max_norm: float,
        norm_type: float = 2.0,
        error_if_nonfinite: bool = False,
        foreach: bool | None = None,
    ) -> Tensor:
        """Clip the averages like `torch.nn.utils.clip_grad_norm_` of the whole model; return the total norm.

        Called between `pipe(batch)` and `optimizer.step()`, in every worker. Returns NaN if the step is lost
        meanwhile, and will be run again.
        """

    @abc.abstractmethod
    def evaluate(self, batches: Iterable[Any], fn: Callable[[Any, Any], Any]) -> list[Any]:
        """Return `fn(output, batch)` for each mini-batch, in order, with all units in eval mode.

        Called between epochs. batches: split into input and target like those of the training loader. fn: a
        function of the model's output and the mini-batch, without side effects; its results (numbers,
        tensors, tuples, lists and dicts of them) are sent to all workers that call `evaluate`. Generators
        advance only by what iterating over `batches` draws. Raises EvaluationError.
        """

    @property
    def held(self) -> frozenset[int]:
        """Units whose values are in this process now."""
        return self._units.held

    @abc.abstractmethod
    def state_dict(self) -> dict[str, Tensor]:
        """Return the parameters and persistent buffers of the whole model, by stock's names.

        Called between epochs, by any of the workers; the others send the units that they hold. After the last
        epoch it works in the leader only. The tensors are copies on the CPU; in a stock DDP process they are
        the model's own. Raises EvaluationError.
        """

    def held_state_dict(self) -> dict[str, Tensor]:
        """Return parameters and persistent buffers of the units held in this process, on their device."""
        found: dict[str, Tensor] = {}
        for unit in sorted(self._units.held):
            found |= self._units.module(unit).state_dict(prefix=self._units.prefix(unit))
        return found


def check_batch(batch: Any) -> PipelineBatch:
    """Raise PipelineBodyError for anything but what the prepared loader yields."""
    if isinstance(batch, PipelineBatch):
        return batch
    raise PipelineBodyError(
        f"pipe was called with a {type(batch).__name__}",
        hint="iterate over the loader that prepare_pipeline returned, and pass on what it yields",
    )


def check_place(call: str, refusal: str) -> None:
    """Raise EvaluationError for a call that is not allowed now. refusal: the reason; empty if allowed."""
    if refusal:
        raise EvaluationError(
            f"{call} was called {refusal}",
            hint="call it in the loop over job.epochs, before or after the loop over the loader"
            + (
                "; after that loop, only the worker with job.is_leader has the weights"
                if call.endswith("dict")
                else ""
            ),
        )


def mean_of(losses: list[Tensor]) -> Tensor:
    """Return the mean of the ESTs' losses, added in their order."""
    total = losses[0].detach().clone()
    for loss in losses[1:]:
        total += loss.detach()
    return total / len(losses)


class EvalMode:
    """Context manager that puts all modules into eval mode and turns autograd off."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model
        self._training: list[torch.nn.Module] = []
        self._no_grad = torch.no_grad()

    def __enter__(self) -> None:
        self._training = [module for module in self._model.modules() if module.training]
        self._model.eval()
        self._no_grad.__enter__()

    def __exit__(self, *raised: Any) -> None:
        self._no_grad.__exit__(*raised)
        for module in self._training:
            module.training = True
