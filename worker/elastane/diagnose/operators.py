"""Operators without a deterministic kernel: those that warn on this device, and those that would on a GPU.

For the device in use torch itself reports them: with `use_deterministic_algorithms(True, warn_only=True)`
such an operator warns, and in training, without warn_only, it raises. A script that is examined on a CPU may
be trained on a GPU, whose list is longer: `CUDA_RAISES` is that list as documented for torch 2.13, and
`OperatorWatch` detects which of them the loop body calls.
"""

from __future__ import annotations

import contextlib
import sys
import types
import warnings
from collections.abc import Callable
from typing import Any, Final

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from elastane.script_source.places import place_of, script_frame

#: aten operators for which CUDA has no deterministic kernel, with the calls in a script that use them. Not
#: included: bilinear and trilinear interpolation and ReplicationPad, which torch composes of others on CUDA.
CUDA_RAISES: Final[dict[str, str]] = {
    "_adaptive_avg_pool2d_backward": "the gradient of AdaptiveAvgPool2d (not of output size 1)",
    "_adaptive_avg_pool3d_backward": "the gradient of AdaptiveAvgPool3d",
    "adaptive_max_pool2d_backward": "the gradient of AdaptiveMaxPool2d",
    "avg_pool3d_backward": "the gradient of AvgPool3d",
    "fractional_max_pool2d_backward": "the gradient of FractionalMaxPool2d",
    "fractional_max_pool3d_backward": "the gradient of FractionalMaxPool3d",
    "max_unpool2d": "MaxUnpool1d and MaxUnpool2d",
    "max_unpool3d": "MaxUnpool3d",
    "upsample_linear1d_backward": "the gradient of interpolate(mode='linear')",
    "_upsample_bilinear2d_aa_backward": "the gradient of interpolate(mode='bilinear', antialias=True)",
    "upsample_bicubic2d_backward": "the gradient of interpolate(mode='bicubic')",
    "_upsample_bicubic2d_aa_backward": "the gradient of interpolate(mode='bicubic', antialias=True)",
    "reflection_pad1d_backward": "the gradient of ReflectionPad1d",
    "reflection_pad2d_backward": "the gradient of ReflectionPad2d",
    "reflection_pad3d_backward": "the gradient of ReflectionPad3d",
    "nll_loss2d_forward": "NLLLoss and cross_entropy on images",
    "_ctc_loss_backward": "the gradient of CTCLoss",
    "grid_sampler_2d_backward": "the gradient of grid_sample",
    "grid_sampler_3d_backward": "the gradient of grid_sample",
    "put_": "Tensor.put_",
    "put": "Tensor.put",
    "histc": "torch.histc",
}

#: The same for some calls of an operator only: (condition on the arguments, text).
_CUDA_RAISES_IF: Final[dict[str, tuple[Callable[[tuple[Any, ...], dict[str, Any]], bool], str]]] = {
    "cumsum": (lambda args, _: _is_floating(args[0]), "torch.cumsum of floating point numbers"),
    "bincount": (
        lambda args, kwargs: len(args) > 1 or kwargs.get("weights") is not None,
        "torch.bincount with weights",
    ),
    "median": (
        lambda args, kwargs: len(args) > 1 or "dim" in kwargs,
        "torch.median with indices (give no dim)",
    ),
    "_embedding_bag_backward": (
        lambda args, kwargs: (args[8] if len(args) > 8 else kwargs.get("mode")) == 2,
        "the gradient of EmbeddingBag(mode='max')",
    ),
    "scatter_reduce": (lambda args, kwargs: _is_product(args, kwargs), "scatter_reduce(reduce='prod')"),
    "scatter_reduce_": (lambda args, kwargs: _is_product(args, kwargs), "scatter_reduce_(reduce='prod')"),
}


def raises_on_cuda(name: str, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> str | None:
    """Return the calls in a script that use operator `name` (without "aten::"), if CUDA refuses it."""
    if name in CUDA_RAISES:
        return CUDA_RAISES[name]
    if name in _CUDA_RAISES_IF:
        condition, words = _CUDA_RAISES_IF[name]
        return words if condition(args, kwargs or {}) else None
    return None


class OperatorWatch(TorchDispatchMode):
    """Looks up every operator that runs inside in the tables; `found` maps texts to the script's line.

    count: operators that ran. Composed kernels run as their parts; compiled ones are not seen.
    """

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, str] = {}
        self.count = 0

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        self.count += 1
        packet = getattr(func, "overloadpacket", None)
        words = raises_on_cuda(getattr(packet, "__name__", ""), args, kwargs)
        if words is not None and words not in self.found:
            self.found[words] = script_line(sys._getframe(1))
        return func(*args, **(kwargs or {}))


class DeterminismWarnings:
    """Intercepts torch's warnings of operators without a deterministic kernel; passes other warnings on.

    heard(operator, where): called once for each operator and line of the script.
    """

    def __init__(self, heard: Callable[[str, str], None]) -> None:
        self._heard = heard
        self._known: set[tuple[str, str]] = set()
        self._show = warnings.showwarning

    def install(self) -> None:
        """Make the process's algorithms deterministic where possible, and let other operators warn."""
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.set_warn_always(True)
        warnings.filterwarnings("always", message=".*does not have a deterministic implementation.*")
        warnings.filterwarnings("always", message="Deterministic behavior was enabled.*")
        warnings.showwarning = self._on_warning

    def _on_warning(self, message: Any, *rest: Any, **options: Any) -> None:
        text = str(message)
        if "does not have a deterministic implementation" not in text and not text.startswith(
            "Deterministic behavior was enabled"
        ):
            self._show(message, *rest, **options)
            return
        operator = text.partition(" does not have")[0] if " does not have" in text else "cuBLAS"
        where = script_line(sys._getframe(1))
        if (operator, where) not in self._known:
            self._known.add((operator, where))
            self._heard(operator, where)


def script_line(frame: types.FrameType | None) -> str:
    """Return the innermost line of the script in the stack of `frame`, as "train.py:31"; empty if there is
    none.

    For an operator of the backward pass it is the line of `backward()`.
    """
    found = script_frame(frame)
    return place_of(found) if found is not None else ""


def _is_floating(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex())


def _is_product(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    with contextlib.suppress(IndexError):
        return (kwargs["reduce"] if "reduce" in kwargs else args[4]) == "prod"
    return False
