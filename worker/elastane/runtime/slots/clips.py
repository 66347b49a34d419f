"""Refuses torch's gradient clipping for models with remote rows: it sees the dense gradients alone."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any, Final

from torch import Tensor
from torch.nn.utils import clip_grad

from elastane.runtime.replaced_functions import replace_functions
from elastane.runtime.slots.errors import PsOptimizerError

_NAMES: Final = ("clip_grad_norm_", "clip_grad_value_", "_clip_grads_with_norm_")  # the last since 2.6
#: The model's parameters by id. They are referenced so that no other object can get the same id.
_refused: dict[int, Tensor] = {}


def refuse_clips(parameters: Iterable[Tensor]) -> None:
    """Refuse the functions for these parameters from now on."""
    _refused.clear()
    _refused.update((id(parameter), parameter) for parameter in parameters)
    originals = [getattr(clip_grad, name) for name in _NAMES if hasattr(clip_grad, name)]
    replace_functions({one: _checked(one) for one in originals if not hasattr(one, "_elastane_rows")})


def _checked(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def clip(parameters: Tensor | Iterable[Tensor], *args: Any, **kwargs: Any) -> Any:
        given = [parameters] if isinstance(parameters, Tensor) else list(parameters)
        if any(id(parameter) in _refused for parameter in given):
            raise PsOptimizerError(
                f"{original.__name__.removeprefix('_')} was called for a model whose embeddings are at"
                " parameter servers: it would clip by the dense gradients alone",
                hint="clip in the loss or in a hook, or use sparse=False: then it sees all gradients",
            )
        return original(given, *args, **kwargs)

    clip._elastane_rows = True  # type: ignore[attr-defined]
    return clip
