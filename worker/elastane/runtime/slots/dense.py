"""Memory of the script's dense parameters, divided into the blocks of slots."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from elastane.tables.layout import Values
from elastane.tables.spec import DenseTensor, ModelSpec


def dense_tensor(name: str, parameter: Tensor, rule: str, group: int) -> DenseTensor:
    """Describe a parameter."""
    strides = () if parameter.is_contiguous() else tuple(parameter.stride())
    dtype = str(parameter.dtype).removeprefix("torch.")
    return DenseTensor(name, tuple(parameter.shape), strides, dtype, rule, group)


class DenseMemory:
    """Maps parameters to blocks. parameters: in the order of `spec.tensors`.

    Initial values are kept, because a slot may have to be initialised from them later.
    """

    def __init__(self, spec: ModelSpec, parameters: Sequence[Tensor]) -> None:
        self._spec, self._parameters = spec, list(parameters)
        self._initial = [_in_memory(p.detach()).cpu().clone() for p in self._parameters]
        digest = hashlib.sha256()
        for values in self._initial:
            digest.update(_memory(values))
        #: SHA-256 of the initial values, in block order.
        self.digest = digest.digest()
        self.slots = [slot for slot in range(spec.slots) if spec.layout(slot).blocks]

    def initial(self, slot: int) -> list[memoryview]:
        """Initial values of a slot's blocks."""
        return [_memory(part) for part in self._cut(slot, self._initial)]

    @torch.no_grad()
    def set(self, sections: Mapping[int, Sequence[memoryview]]) -> None:
        """Write pulled blocks into the parameters. sections: by slot, its blocks first."""
        flat = [_in_memory(p.detach()) for p in self._parameters]
        for slot in self.slots:
            if slot in sections:
                layout = self._spec.layout(slot)
                for position, (part, section) in enumerate(
                    zip(self._cut(slot, flat), sections[slot], strict=False)
                ):
                    part.copy_(torch.frombuffer(section, dtype=layout.block_dtype(position)))

    def gradients(self) -> list[Values | None]:
        """Remove and return the parameters' gradients, each in memory order; None where there is none."""
        taken: list[Values | None] = []
        for parameter in self._parameters:
            gradient, parameter.grad = parameter.grad, None
            if gradient is None:
                taken.append(None)
                continue
            if gradient.stride() != parameter.stride() and gradient.numel():
                like = torch.empty_strided(parameter.size(), parameter.stride(), dtype=gradient.dtype)
                gradient = like.copy_(gradient)
            taken.append(_in_memory(gradient.detach()).cpu())
        return taken

    def blocks(self, slot: int, gradients: Sequence[Values | None]) -> dict[int, Values]:
        """Cut gradients into a slot's blocks, by position."""
        layout = self._spec.layout(slot)
        return {
            position: gradient[block.start : block.end]
            for position, (block, tensor) in enumerate(zip(layout.blocks, layout.tensors, strict=True))
            if (gradient := gradients[tensor]) is not None
        }

    def _cut(self, slot: int, flat: Sequence[Tensor]) -> list[Tensor]:
        layout = self._spec.layout(slot)
        return [
            flat[tensor][block.start : block.end]
            for block, tensor in zip(layout.blocks, layout.tensors, strict=True)
        ]


def _in_memory(values: Tensor) -> Tensor:
    """Return the elements of a tensor without gaps, in memory order."""
    return torch.as_strided(values, (values.numel(),), (1,))


def _memory(values: Tensor) -> memoryview:
    if not values.numel():
        return memoryview(b"")
    return values.view(torch.uint8).numpy().data
