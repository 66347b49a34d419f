"""Copies values into a script's existing parameters and buffers, after comparing names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import nn

from elastane.state.codec import is_dense
from elastane.state.optimizer_state import Placer, StateError


def same_names(kind: str, saved: Iterable[object], mine: Iterable[object]) -> None:
    """Raise StateError with the differing names unless both have the same ones."""
    expected, found = set(saved), set(mine)
    if expected == found:
        return
    missing, unknown = sorted(map(str, expected - found)), sorted(map(str, found - expected))
    raise StateError(
        f"{kind} differ: the state has {missing[:5] or 'nothing'} that the script lacks, "
        f"the script has {unknown[:5] or 'nothing'} that the state lacks",
        hint="every worker must build the same objects",
        missing=missing,
        unknown=unknown,
    )


def check_parameters(
    mine: Mapping[str, torch.Tensor], saved: Mapping[str, torch.Tensor], prefix: str = ""
) -> None:
    """Raise StateError unless names, dtypes and shapes are the same. prefix: of the names in the message."""
    same_names("parameters", [prefix + name for name in saved], [prefix + name for name in mine])
    for name, parameter in mine.items():
        expected, found = describe(saved[name]), describe(parameter)
        if expected != found:
            raise StateError(
                f"parameter {prefix}{name} is {expected} in the state and {found} in the script",
                hint="every worker must build the same model",
                parameter=prefix + name,
            )


def fill_parameters(mine: Mapping[str, torch.Tensor], saved: Mapping[str, torch.Tensor]) -> None:
    """Copy the values; gradients must be off. Parameters keep their identity and memory."""
    for name, parameter in mine.items():
        value, stride = saved[name], parameter.stride()
        if stride != value.stride() and is_dense(tuple(parameter.shape), tuple(stride)):
            # The same memory, with the order of dimensions (channels_last) that the ring trains with.
            parameter.data = parameter.data.as_strided(value.shape, value.stride())
        if parameter.data_ptr() != value.data_ptr():
            parameter.copy_(value)


def fill_buffers(
    modules: Iterable[tuple[str, nn.Module]],
    saved: Mapping[str, torch.Tensor | None],
    placer: Placer,
    device: torch.device,
) -> None:
    """Set the saved buffers of modules; others become None. modules: with the prefixes of their buffers."""
    for prefix, module in modules:
        for name, buffer in module._buffers.items():
            value = saved.get(prefix + name)
            # A module may set a buffer from None, or to None, while it trains.
            if value is None or buffer is None:
                module._buffers[name] = None if value is None else placer.tensor(value, None, device)
            elif describe(buffer) == describe(value):
                buffer.copy_(value)
            else:
                module._buffers[name] = placer.tensor(value, None, buffer.device)


def describe(tensor: torch.Tensor) -> str:
    """Return dtype and shape as text."""
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"
