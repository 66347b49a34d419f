"""Computes the results of `job.gather` and `job.reduce` from a registered object's states in all ranks.

A reduction has the bits of stock DDP's: gloo's `all_reduce` of each tensor, and torchmetrics' own
synchronization.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

from elastane.collective.order import RingOrder
from elastane_common.errors import StepError

AllReduce = Callable[[Sequence[torch.Tensor], str], torch.Tensor]
"""Function of a tensor of each rank and of "sum", "max" or "min" that returns their reduction."""

OPERATIONS: Final = ("sum", "mean", "max", "min")
_COMBINE: Final[dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]]] = {
    "sum": torch.add,
    "max": torch.maximum,
    "min": torch.minimum,
}


def all_reduced(tensors: Sequence[torch.Tensor], operation: str) -> torch.Tensor:
    """Reduce a tensor of each rank in the order of gloo's ring all-reduce. Raises StepError for other shapes.

    tensors: by rank. operation: "sum", "max" or "min".
    """
    first = tensors[0]
    if any((one.shape, one.dtype) != (first.shape, first.dtype) for one in tensors):
        shapes = sorted({f"{one.dtype} {tuple(one.shape)}" for one in tensors})
        raise StepError(
            f"job.reduce was given tensors that differ from rank to rank: {', '.join(shapes)}",
            hint="job.gather returns them as they are",
        )
    result = first.clone()
    if len(tensors) == 1 or not first.numel():
        return result
    flat, into = [one.reshape(-1) for one in tensors], result.view(-1)
    order = RingOrder(first.numel(), first.element_size(), [(0, len(tensors))], first.numel())
    for segment in order.local_segments():
        start, *others = segment.ranks
        total = flat[start][segment.low : segment.high].clone()
        for rank in others:
            total = _COMBINE[operation](flat[rank][segment.low : segment.high], total)
        into[segment.low : segment.high] = total
    return result


def reduce_states(states: Sequence[Any], operation: str, all_reduce: AllReduce = all_reduced) -> Any:
    """Reduce tensors, numbers, or dicts of them, each value by itself.

    states: of each rank. operation: one of OPERATIONS. Raises StepError for values of other types, and for
    dicts with other names.
    """
    if operation not in OPERATIONS:
        raise StepError(f"job.reduce was given {operation!r}", hint=f"one of {', '.join(OPERATIONS)}")
    first = states[0]
    if isinstance(first, dict):
        if any(one.keys() != first.keys() for one in states):
            raise StepError(
                "job.reduce was given dicts that have other names in other ranks",
                hint="give each name a value before the loop",
            )
        return {name: reduce_states([one[name] for one in states], operation, all_reduce) for name in first}
    if isinstance(first, torch.Tensor):
        if operation == "mean":
            return all_reduce(states, "sum") / len(states)
        return all_reduce(states, operation)
    if not isinstance(first, int | float):
        raise StepError(
            f"job.reduce was given a {type(first).__name__}",
            hint="it reduces tensors, numbers and dicts of them; job.gather returns the state of each rank",
        )
    dtype = torch.float64 if any(isinstance(one, float) for one in states) else torch.int64
    numbers = [torch.tensor(one, dtype=dtype) for one in states]
    return reduce_states(numbers, operation, all_reduce).item()


def synchronize_by(metric: Any, states_of_ranks: Callable[[], Sequence[dict[str, Any]]]) -> None:
    """Let `compute()` of a torchmetrics Metric synchronize as it does under DDP, with states that are given.

    states_of_ranks: returns the state of each rank, as it is registered. Raises StepError
    for a metric that synchronizes in every step.
    """
    if metric.dist_sync_on_step:
        raise StepError(
            f"the {type(metric).__name__} has dist_sync_on_step=True: inside a step there is no state of all"
            " ranks",
            hint="leave it out, and call compute() between epochs or under `if job.stepped:`",
        )
    metric.distributed_available_fn = lambda: True
    metric._sync_dist = lambda *args, **kwargs: _synchronize(metric, states_of_ranks())


def _synchronize(metric: Any, states: Sequence[dict[str, Any]]) -> None:
    """Carry out torchmetrics' own `Metric._sync_dist`, with what its `all_gather` calls would return."""
    parts = [_sent(metric, state["states"]) for state in states]
    gathered = zip(*parts, strict=True)
    type(metric)._sync_dist(metric, lambda tensor, group=None: list(next(gathered)))


def _sent(metric: Any, states: dict[str, Any]) -> list[torch.Tensor]:
    """Return the tensors that a rank with these states would send, in order."""
    rank, sent = copy.copy(metric), []
    for name, value in states.items():
        setattr(rank, name, value)

    def send(tensor: torch.Tensor, group: Any = None) -> list[torch.Tensor]:
        sent.append(tensor)
        return [tensor]

    type(metric)._sync_dist(rank, send)
    return sent
