"""The norm of all gradients of a model whose parameters are on several workers, as torch computes it of one.

A sum of squares per stage has other bits. So each parameter's own norm is computed where it is, and the norms
are joined in the order in which `torch.nn.utils.clip_grad_norm_` of the whole model joins them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.utils._foreach_utils import _group_tensors_by_device_and_dtype, _has_foreach_support


def norms_of(gradients: Sequence[Tensor], norm_type: float, foreach: bool | None) -> list[Tensor]:
    """Return each gradient's norm, as `torch.nn.utils.get_total_norm` computes it."""
    norms: list[Tensor] = []
    for gradient in gradients:
        if (foreach is None and _has_foreach_support([gradient], gradient.device)) or foreach:
            norms.extend(torch._foreach_norm([gradient], norm_type))
        else:
            norms.append(torch.linalg.vector_norm(gradient, norm_type))
    return norms


def total_norm(norms: Sequence[Tensor], dtypes: Sequence[torch.dtype], norm_type: float) -> Tensor:
    """Return the norm of the norms. All in the order of the model's parameters; dtypes: of the gradients."""
    if not norms:
        return torch.tensor(0.0)
    # Torch orders the norms by a hash of device and dtype.
    stand_ins: list[Tensor | None] = [
        torch.empty(0, dtype=dtype, device=norm.device) for dtype, norm in zip(dtypes, norms, strict=True)
    ]
    grouped = _group_tensors_by_device_and_dtype([stand_ins], with_indices=True)
    ordered = [norms[index] for _, indices in grouped.values() for index in indices]
    return torch.linalg.vector_norm(torch.stack(ordered), norm_type)


def check_finite(total: Tensor, norm_type: float) -> None:
    """Raise torch's own error for a norm that is not finite."""
    if torch.logical_or(total.isnan(), total.isinf()):
        raise RuntimeError(
            f"The total norm of order {norm_type} for gradients from `parameters` is non-finite, so it cannot"
            " be clipped. To disable this error and scale the gradients by the non-finite norm anyway, set"
            " `error_if_nonfinite=False`"
        )


def scale(params: Sequence[Parameter], max_norm: float, total: Tensor, foreach: bool | None) -> None:
    """Scale the gradients, as `torch.nn.utils.clip_grads_with_norm_`."""
    if params:
        torch.nn.utils.clip_grads_with_norm_(params, max_norm, total, foreach)
