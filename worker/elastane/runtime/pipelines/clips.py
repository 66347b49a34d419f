"""Refuses `torch.nn.utils.clip_grad_norm_` for a pipeline's parameters.

A worker has the gradients of its own units only, so each worker would clip by a different norm, and none by
the model's.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn.utils import clip_grad

from elastane.runtime.pipelines.errors import PipelineBodyError
from elastane.runtime.replaced_functions import replace_functions

#: Torch's function, for processes with the whole model. Kept in an object so that it is not replaced here.
stock_clip_grad_norm: Final = functools.partial(clip_grad.clip_grad_norm_)

#: The pipeline's parameters by id.
_refused: dict[int, Tensor] = {}


def refuse_clips(model: torch.nn.Module) -> None:
    """Refuse the function from now on. model: all units. Called by `prepare_pipeline`, in every mode."""
    _refused.clear()
    _refused.update((id(parameter), parameter) for parameter in model.parameters())
    original = clip_grad.clip_grad_norm_
    if not hasattr(original, "_elastane_refuses"):
        replace_functions({original: _checked(original)})


def _checked(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    @functools.wraps(original)
    def clip(parameters: Tensor | Iterable[Tensor], *args: Any, **kwargs: Any) -> Tensor:
        given = [parameters] if isinstance(parameters, Tensor) else list(parameters)
        if any(id(parameter) in _refused for parameter in given):
            raise PipelineBodyError(
                "torch's clip_grad_norm_ was called for a pipeline's parameters, of which a worker has"
                " gradients of some units alone",
                hint="write pipe.clip_grad_norm_(max_norm): the norm is that of the whole model",
            )
        return original(given, *args, **kwargs)

    clip._elastane_refuses = True  # type: ignore[attr-defined]
    return clip
