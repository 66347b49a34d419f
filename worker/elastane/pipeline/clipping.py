"""Gradient clipping across the workers of a pipeline, with the bits of `torch.nn.utils.clip_grad_norm_`.

Adding up a sum of squares per stage would give other bits. So each parameter's norm is computed where the
parameter is held, and the norms are combined in the order that torch uses for the whole model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.utils._foreach_utils import _group_tensors_by_device_and_dtype, _has_foreach_support

from elastane.pipeline.frames import FrameKey, Kind
from elastane.pipeline.messages import Messages, Step


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
    """Return the total norm. norms, dtypes (of the gradients): in the order of the model's parameters."""
    if not norms:
        return torch.tensor(0.0)
    # Torch groups the norms by a hash of device and dtype.
    stand_ins: list[Tensor | None] = [
        torch.empty(0, dtype=dtype, device=norm.device) for dtype, norm in zip(dtypes, norms, strict=True)
    ]
    grouped = _group_tensors_by_device_and_dtype([stand_ins], with_indices=True)
    ordered = [norms[index] for _, indices in grouped.values() for index in indices]
    return torch.linalg.vector_norm(torch.stack(ordered), norm_type)


def check_finite(total: Tensor, norm_type: float) -> None:
    """Raise torch's RuntimeError for a norm that is not finite."""
    if torch.logical_or(total.isnan(), total.isinf()):
        raise RuntimeError(
            f"The total norm of order {norm_type} for gradients from `parameters` is non-finite, so it cannot"
            " be clipped. To disable this error and scale the gradients by the non-finite norm anyway, set"
            " `error_if_nonfinite=False`"
        )


def scale(params: Sequence[Parameter], max_norm: float, total: Tensor, foreach: bool | None) -> None:
    """Scale the gradients in place, like `torch.nn.utils.clip_grads_with_norm_`."""
    if params:
        torch.nn.utils.clip_grads_with_norm_(params, max_norm, total, foreach)


def clip(
    messages: Messages,
    held: Mapping[int, Mapping[int, Parameter]],
    dtypes: Sequence[torch.dtype],
    max_norm: float,
    norm_type: float,
    error_if_nonfinite: bool,
    foreach: bool | None,
) -> Step:
    """Clip the gradients of held parameters by the whole model's norm, and return it. Collective.

    held: trainable parameters held here, by stage and index. dtypes: of all trainable parameters of the
    model. Each stage's first replica sends its norms to all members.
    """
    number, norm_type = messages.number(), float(norm_type)
    givers = {stage: one.devices[0] for stage, one in enumerate(messages.ring.plan.stages)}
    for stage, giver in givers.items():
        key = FrameKey(Kind.NORMS, stage, 0, number)
        messages.expect(key, giver)
        if giver == messages.me:
            shown = {index: p.grad for index, p in held[stage].items() if p.grad is not None}
            norms = norms_of(list(shown.values()), norm_type, foreach)
            for member in range(messages.ring.members):
                messages.send(key, member, (list(shown), norms))
    by_index: dict[int, Tensor] = {}
    for stage, giver in givers.items():
        frame = yield from messages.receive(FrameKey(Kind.NORMS, stage, 0, number), giver)
        by_index.update(zip(*frame.value, strict=True))
    order = sorted(by_index)
    total = total_norm([by_index[index] for index in order], [dtypes[index] for index in order], norm_type)
    if error_if_nonfinite:
        check_finite(total, norm_type)
    own = {index: param for params in held.values() for index, param in params.items()}
    scale([own[index] for index in sorted(own)], max_norm, total, foreach)
    return total
