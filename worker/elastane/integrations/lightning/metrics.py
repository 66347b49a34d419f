"""Values of `self.log`: sums by rank, and their reduction over all ranks with the bits of gloo.

Each DDP rank has a `_ResultCollection` of its own. A worker uses one for several ranks in turn, so each
rank's sums are kept here between its turns: in training as part of the rank's context, in validation until
all ranks are done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import torch
from lightning.pytorch import LightningModule
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities import dim_zero_cat

from elastane.collective.order import canonical_order
from elastane.integrations.lightning.refusals import refused

_COMBINE: Final[dict[str, Callable[[Tensor, Tensor], Tensor]]] = {
    "mean": torch.add,
    "sum": torch.add,
    "max": torch.maximum,
    "min": torch.minimum,
}
Sum = tuple[Tensor, Tensor | None]
"""A rank's sum of a value, and of the batch sizes if it is a mean."""


def reduced(values: Sequence[Tensor], op: str) -> Tensor:
    """Reduce one number of every rank as Lightning's `sync_dist` does over gloo (PyTorch's ring all-reduce).

    values: one per rank, in rank order. op: mean, sum, max or min.
    """
    first, *others = canonical_order(0, len(values))
    result = values[first].clone()
    for rank in others:
        result = _COMBINE[op](values[rank], result)
    if op != "mean":
        return result
    if not result.is_floating_point():
        return result.copy_(result / len(values))
    return result.div_(len(values))


def names_of(metric: Any) -> set[str]:
    """Return the names by which callbacks may monitor a value of `self.log`."""
    meta = metric.meta
    return {meta.name, meta.forked_name(True), meta.forked_name(False)}


def monitored(trainer: Any) -> set[str]:
    """Return the names that callbacks (`monitor`) and schedulers act on."""
    by_callbacks = {getattr(callback, "monitor", None) for callback in trainer.callbacks}
    by_schedulers = {config.monitor for config in trainer.lr_scheduler_configs if config.reduce_on_plateau}
    return {name for name in by_callbacks | by_schedulers if name}


class TrainingSums:
    """One rank's sums in an epoch of training; registered with the job as an item of the rank's context.

    The worker's collection is emptied before each turn. What the turn adds is moved here before backward(),
    where the rank's context is captured.
    """

    def __init__(self) -> None:
        self._epoch = -1
        self._sums: dict[str, list[Tensor]] = {}

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self._epoch, "sums": self._sums}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._epoch, self._sums = state["epoch"], state["sums"]

    def begin(self, results: Any) -> None:
        """Empty the collection before a turn."""
        for metric in _of_training(results):
            metric.reset()

    def take(self, results: Any, epoch: int) -> None:
        """Add the values logged in the turn."""
        sums = {} if epoch != self._epoch else self._sums
        found = dict(sums)
        for metric in _of_training(results):
            if not metric.meta.on_epoch or metric.has_reset:
                continue
            key, (value, size) = f"{metric.meta.fx}.{metric.meta.name}", _sum_of(metric)
            if key in sums:
                value = _COMBINE[metric.meta.reduce_fx.__name__](sums[key][0], value)
                size = None if size is None else sums[key][1] + size
            found[key] = [value] if size is None else [value, size]
        self._epoch, self._sums = epoch, found

    def put(self, results: Any, epoch: int) -> None:
        """Restore the current rank's sums of the epoch into the collection, at the end of its loop."""
        for metric in _of_training(results):
            key = f"{metric.meta.fx}.{metric.meta.name}"
            if epoch == self._epoch and key in self._sums:
                _set(metric, self._sums[key])


def _of_training(results: Any) -> list[Any]:
    return [one for one in results.values() if one.is_tensor and one.meta.fx == "training_step"]


def _sum_of(metric: Any) -> Sum:
    return metric.value, metric.cumulated_batch_size if metric.meta.is_mean_reduction else None


def _set(metric: Any, total: Sequence[Tensor | None]) -> None:
    metric.value = total[0]
    if metric.meta.is_mean_reduction:
        metric.cumulated_batch_size = total[1]
    metric._update_count = 1
    metric._computed, metric.has_reset = None, False


class RankSums:
    """Every rank's sums in one validation, and the states of its torchmetrics.

    results: the validation loop's collection. module: its torchmetrics are reduced as torchmetrics does.
    """

    def __init__(self, results: Any, module: LightningModule) -> None:
        self._results = results
        self._metrics = [part for part in module.modules() if isinstance(part, Metric)]
        self._used = {id(metric) for metric in self._metrics if metric._update_count}
        self._ranks: list[dict[str, Sum]] = []
        self._states: list[dict[int, dict[str, Any]]] = []

    def end_rank(self) -> None:
        """Save the rank's sums and metric states, and reset both for the next rank.

        Raises LightningError for a torchmetric that was not reset before the validation.
        """
        logged = [(key, one) for key, one in self._results.items() if one.is_tensor and not one.has_reset]
        self._ranks.append({key: _sum_of(one) for key, one in logged})
        for _, one in logged:
            one.reset()
        states: dict[int, dict[str, Any]] = {}
        for metric in self._metrics:
            if not metric._update_count:
                continue
            if id(metric) in self._used:
                raise refused(
                    f"{type(metric).__name__} was not reset before validation: its state is not a rank's own",
                    "log the metric itself, self.log(name, self.metric), or reset it after compute()",
                )
            found = {name: getattr(metric, name) for name in metric._defaults}
            # reset() empties lists in place
            states[id(metric)] = {k: list(v) if isinstance(v, list) else v for k, v in found.items()}
            metric.reset()
        self._states.append(states)

    def reduce(self, decides: set[str]) -> None:
        """Store the reduced values in the collection; values that DDP does not reduce are rank 0's.

        decides: names that callbacks and schedulers monitor. Raises LightningError if one of them differs
        between ranks.
        """
        ranks, self._ranks = self._ranks, []
        for key in {key for rank in ranks for key in rank}:
            metric, sums = self._results[key], [rank[key] for rank in ranks if key in rank]
            meta = metric.meta
            if meta.sync.should and not meta.sync.rank_zero_only and len(sums) == len(ranks):
                _set(metric, _reduced_sum(sums, meta.reduce_fx.__name__))
            elif names_of(metric) & decides:
                raise unequal(meta.name)
            else:
                _set(metric, sums[0])
            value, size = _sum_of(metric)
            metric._computed = value / size if size is not None else value
        for metric in self._metrics:
            states = [rank[id(metric)] for rank in self._states if id(metric) in rank]
            if states:
                _put_states(metric, states)
        self._states = []


def unequal(name: str) -> Exception:
    """Return the error for a monitored value that differs between ranks."""
    return refused(
        f"{name!r} is monitored, and each rank has its own value",
        f"self.log({name!r}, ..., sync_dist=True) in validation_step",
    )


def _reduced_sum(sums: Sequence[Sum], op: str) -> Sum:
    sizes = [size for _, size in sums if size is not None]
    return reduced([value for value, _ in sums], op), reduced(sizes, "mean") if sizes else None


def _put_states(metric: Metric, states: Sequence[dict[str, Any]]) -> None:
    """Set a metric's state to what `Metric.sync` yields on every rank."""
    for name, reduction in metric._reductions.items():
        by_rank: list[Any] = [state[name] for state in states]
        if isinstance(metric._defaults[name], list):
            if reduction is dim_zero_cat:
                value: Any = [dim_zero_cat([one for found in by_rank for one in found])]
            else:
                value = [one for found in zip(*by_rank, strict=True) for one in found]
        else:
            value = torch.stack(by_rank)
        if reduction is not None and reduction is not dim_zero_cat:
            value = reduction(value)
        setattr(metric, name, value)
    metric._update_count, metric._computed = len(states), None


def step_values(results: Iterable[Any]) -> dict[str, Tensor]:
    """Return the values that a turn logged with on_step, by name."""
    return {
        one.meta.name: one._forward_cache
        for one in results
        if one.is_tensor and one.meta.on_step and not one.has_reset and isinstance(one._forward_cache, Tensor)
    }
