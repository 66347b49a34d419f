"""Torch's functions that clip gradients are refused where rows are remote: they see the dense ones alone.

Scripts import the functions by name, so they are replaced in every module that holds them.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable
from typing import Any, Final

from torch import Tensor
from torch.nn.utils import clip_grad

from elastane.runtime.slots.errors import PsOptimizerError

_NAMES: Final = ("clip_grad_norm_", "clip_grad_value_", "_clip_grads_with_norm_")  # the last since 2.6
#: Parameters of the model, by id; kept, so that no other object gets the id of one.
_refused: dict[int, Tensor] = {}


def refuse_clips(parameters: Iterable[Tensor]) -> None:
    """Refuse them for these parameters from now on."""
    _refused.clear()
    _refused.update((id(parameter), parameter) for parameter in parameters)
    for original in [getattr(clip_grad, name) for name in _NAMES if hasattr(clip_grad, name)]:
        if hasattr(original, "_elastane_rows"):
            continue
        replaced = _checked(original)
        for module in list(sys.modules.values()):
            for name, value in list(getattr(module, "__dict__", {}).items()):
                if value is original:
                    setattr(module, name, replaced)


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
