"""Optimizer steps repeated on a copy of the state: the same inputs give the same bits.

A step of one of torch's optimizers changes parameters and its own state by gradients and options alone.
Everything else that a script changes (buffers, schedulers, averages, the options themselves) is small or
unknown, and is not repeated: it comes with the last message, as it is at the end (`rest_of`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

import torch
from torch.optim import Optimizer

from elastane.state.codec import Exported, decode, document_of, encode, specs_of
from elastane.state.digests import combined, digest_of_tensors, digest_of_text, in_words
from elastane.state.stream import StreamLayout
from elastane.state.train_state import TrainState

REPEATED: Final = frozenset(
    getattr(torch.optim, name)
    for name in (
        "Adadelta",
        "Adagrad",
        "Adam",
        "Adamax",
        "AdamW",
        "ASGD",
        "NAdam",
        "RAdam",
        "RMSprop",
        "Rprop",
        "SGD",
    )
)
"""Optimizers whose step depends on gradients, options and state alone."""
_CHANGED_BY_STEPS: Final = re.compile(r"parameters\.|optimizers\[\d+\]\.state\[")


def why_not_repeated(state: TrainState) -> str:
    """Return why steps of these optimizers cannot be repeated elsewhere; empty if they can."""
    for optimizer in state.optimizers:
        name = type(optimizer).__name__
        if type(optimizer) not in REPEATED:
            return f"it is not known what a step of {name} depends on"
        if optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks:
            return f"the step of {name} has hooks"
        if getattr(optimizer, "grad_scale", None) is not None:
            return f"{name} scales gradients itself"
    return ""


def step_inputs(index: int, optimizer: Optimizer) -> Exported:
    """Return what the next step of an optimizer is given, by reference. index: its place among the job's."""
    options = [
        {key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups
    ]
    gradients = [[parameter.grad for parameter in group["params"]] for group in optimizer.param_groups]
    return encode({"optimizer": index, "options": options, "gradients": gradients})


def repeat_step(optimizers: Sequence[Optimizer], given: Exported) -> None:
    """Make the step that had these inputs. Gradients are None before and after it."""
    inputs = decode(given)
    optimizer = optimizers[inputs["optimizer"]]
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    gradients = [gradient for group in inputs["gradients"] for gradient in group]
    for group, options in zip(optimizer.param_groups, inputs["options"], strict=True):
        for key, value in options.items():
            if isinstance(value, torch.Tensor) and isinstance(group.get(key), torch.Tensor):
                group[key].copy_(value)
            else:
                group[key] = value.clone() if isinstance(value, torch.Tensor) else value
    try:
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        # Of the class: the instance's is the one that takes effect once a step.
        type(optimizer).step(optimizer)
    finally:
        for parameter in parameters:
            parameter.grad = None


class RepeatedState:
    """The part of the state that steps change, as it is now. Another thread may take its digest."""

    def __init__(self, state: TrainState) -> None:
        self._tensors = [parameter.detach() for parameter in state.model.parameters()]
        words = []
        for optimizer in state.optimizers:
            for value in _entries(optimizer):
                if isinstance(value, torch.Tensor):
                    self._tensors.append(value.detach())
                else:
                    words.append(in_words(value))
        self._words = digest_of_text("\n".join(words))

    def digest(self) -> int:
        """Return the digest; equal for equal bits."""
        return combined([self._words, digest_of_tensors(self._tensors)])


class OutsideWrites:
    """Finds writes to what steps change, made by anything but the steps themselves: by the script, once an
    epoch or every hundred steps.

    By version counters, and of parameters, which scripts also write by `.data`, by a digest.
    """

    def __init__(self, state: TrainState) -> None:
        self._state = state
        self._marks: tuple[Any, ...] = ()

    def mark(self) -> None:
        """Take the state as it is now for one that steps alone have made."""
        self._marks = self._read()

    def has_any(self) -> bool:
        """True if it was written to since `mark`. False before the first."""
        return bool(self._marks) and self._read() != self._marks

    def _read(self) -> tuple[Any, ...]:
        parameters = [parameter.detach() for parameter in self._state.model.parameters()]
        entries = [value for optimizer in self._state.optimizers for value in _entries(optimizer)]
        tensors = [*parameters, *(value for value in entries if isinstance(value, torch.Tensor))]
        words = [in_words(value) for value in entries if not isinstance(value, torch.Tensor)]
        places = [(one.data_ptr(), one._version) for one in tensors]
        return places, digest_of_tensors(parameters), words


def _entries(optimizer: Optimizer) -> Iterator[Any]:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            entry = optimizer.state.get(parameter, {})
            for key in sorted(entry):
                yield key
                yield entry[key]


def rest_of(exported: Exported) -> list[int]:
    """Return the indices of the tensors that optimizer steps do not change."""
    return [index for index, path in enumerate(exported.paths) if not _CHANGED_BY_STEPS.match(path)]


def completed(structure: bytes, rest: torch.Tensor, own: Exported) -> Exported:
    """Return the state of this structure: what steps change from `own`, all else from the stream `rest`.

    Raises KeyError if this worker has not all of them.
    """
    specs, paths = specs_of(structure), document_of(structure)["paths"]
    mine = dict(zip(own.paths, own.tensors, strict=True))
    changed = [bool(_CHANGED_BY_STEPS.match(path)) for path in paths]
    layout = StreamLayout([spec for spec, is_changed in zip(specs, changed, strict=True) if not is_changed])
    received = iter(layout.views(rest))
    tensors = [
        mine[path] if is_changed else next(received) for path, is_changed in zip(paths, changed, strict=True)
    ]
    return Exported(structure, tensors, specs, paths)
