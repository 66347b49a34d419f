"""A small GPT for the benchmarks of pipelines. It has no dropout: the peers' generators are not the ESTs'."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

VOCABULARY, LENGTH = 64, 64


class Block(nn.Module):
    """A transformer block."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.first(x)).view(batch, length, 3, 4, -1).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(functional.gelu(self.up(self.second(x))))


def tokens(size: int, number: int) -> tuple[Tensor, Tensor]:
    """Return tokens and their successors: micro-batch `number`, of `size` samples."""
    generator = torch.Generator().manual_seed(number)
    text = torch.randint(VOCABULARY, (size, LENGTH + 1), generator=generator)
    return text[:, :-1].contiguous(), text[:, 1:].contiguous()


def token_loss(output: Tensor, target: Tensor) -> Tensor:
    return functional.cross_entropy(output.flatten(0, 1), target.flatten())
