"""Module buffers as one message: tensors of any dtype laid out in a flat byte tensor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

import torch
from torch import Tensor

#: Every tensor starts at a multiple of this, so that views of any dtype are allowed.
ALIGNMENT_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class Message:
    """A message. flat: the bytes that are sent; tensors: views of them."""

    flat: Tensor
    tensors: list[Tensor]

    def hold(self, tensors: Sequence[Tensor]) -> None:
        """Copy the tensors into the message."""
        if tensors:
            with torch.no_grad():
                torch._foreach_copy_(self.tensors, list(tensors))


class Packing:
    """Layout of `tensors` in a message; every worker builds it from its own module's buffers."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._metas = [(tuple(tensor.shape), tensor.dtype) for tensor in tensors]
        self._sizes = [tensor.numel() * tensor.element_size() for tensor in tensors]
        aligned = [-(-size // ALIGNMENT_BYTES) * ALIGNMENT_BYTES for size in self._sizes]
        *self._offsets, self.total_bytes = accumulate(aligned, initial=0)
        self.device = tensors[0].device if tensors else torch.device("cpu")

    def empty(self) -> Tensor:
        """Return a zeroed message to receive into: 1-d, uint8."""
        return torch.zeros(self.total_bytes, dtype=torch.uint8, device=self.device)

    def message(self) -> Message:
        """Return a zeroed message with its views."""
        flat = self.empty()
        return Message(flat, self.unpack(flat))

    def unpack(self, message: Tensor) -> list[Tensor]:
        """Return the tensors, as views of the message."""
        return [
            message[offset : offset + size].view(dtype).view(shape)
            for (shape, dtype), size, offset in zip(self._metas, self._sizes, self._offsets, strict=True)
        ]
