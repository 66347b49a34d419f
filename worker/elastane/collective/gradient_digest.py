"""Digest of the gradients that one EST contributes to a step's sums."""

from __future__ import annotations

from hashlib import sha256
from typing import Final

import torch
from torch import Tensor

DIGEST_BYTES: Final = 16


class GradientDigest:
    """Digest computed bucket by bucket as they fill, because the memory is then used for communication."""

    def __init__(self) -> None:
        self._buckets: dict[int, bytes] = {}

    def add(self, number: int, gradients: Tensor) -> None:
        """Add full bucket `number`; gradients: its flat vector."""
        content = gradients.detach().cpu().contiguous().view(torch.uint8)
        self._buckets[number] = sha256(content.numpy().data).digest()

    def value(self) -> bytes:
        """Return the digest of all buckets, in their order."""
        return sha256(b"".join(self._buckets[number] for number in sorted(self._buckets))).digest()[
            :DIGEST_BYTES
        ]
