"""Gradient clipping during accumulation takes effect once a step, like `optimizer.step()` and `zero_grad()`.

With `accumulation_steps` the loop body stays as it is, so it clips in every mini-batch. A script written for
DDP clips once, before the optimizer steps. So `clip_grad_norm_` and `clip_grad_value_` leave gradients of the
prepared model alone in all mini-batches of a step but the last; `clip_grad_norm_` returns the norm
accumulated so far.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import clip_grad

from elastane.runtime.replaced_functions import replace_functions

Clip = Callable[..., Any]

#: The job's parameters by id, and a callable that is True unless the mini-batch is the last of its step.
_job: tuple[dict[int, Tensor], Callable[[], bool]] = {}, lambda: False


def count_clips_once(model: torch.nn.Module, adding: Callable[[], bool]) -> None:
    """Make clipping take effect once a step.

    adding: True while gradients only accumulate in this mini-batch.
    """
    global _job
    _job = {id(parameter): parameter for parameter in model.parameters()}, adding
    if hasattr(clip_grad.clip_grad_norm_, "_elastane"):
        return
    norm, value = clip_grad.clip_grad_norm_, clip_grad.clip_grad_value_
    replace_functions({norm: _once(norm, _norm), value: _once(value, lambda gradients, *_, **__: None)})


def _once(original: Clip, instead: Clip) -> Clip:
    @functools.wraps(original)
    def clip(parameters: Tensor | Iterable[Tensor], *args: Any, **kwargs: Any) -> Any:
        given = [parameters] if isinstance(parameters, Tensor) else list(parameters)
        own, adding = _job
        if adding() and any(id(parameter) in own for parameter in given):
            return instead([p.grad for p in given if p.grad is not None], *args, **kwargs)
        return original(given, *args, **kwargs)

    clip._elastane = True  # type: ignore[attr-defined]
    return clip


def _norm(
    gradients: list[Tensor],
    max_norm: float = 0.0,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:
    """Return the norm like `clip_grad_norm_`, without changing gradients.

    Infinite and NaN values raise no error here: the complete sum is checked in the step's last mini-batch.
    """
    return torch.nn.utils.get_total_norm(gradients, norm_type, False, foreach)
