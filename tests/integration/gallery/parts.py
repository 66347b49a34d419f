"""Shared parts of the gallery's scripts: tiny data, tiny networks."""

import random

import numpy as np
import torch
from torch import nn
from torch.utils.data import Dataset


class Images(Dataset):
    """Noisy images: every sample draws from torch, NumPy and Python."""

    def __init__(self, size: int = 62) -> None:
        generator = torch.Generator().manual_seed(11)
        self.images = torch.randn(size, 3, 8, 8, generator=generator)
        self.labels = torch.randint(0, 5, (size,), generator=generator)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        image = self.images[index] + 0.1 * torch.randn(3, 8, 8)
        image = image * float(np.random.uniform(0.9, 1.1))
        return (image.flip(2) if random.random() < 0.5 else image), self.labels[index]


class Texts(Dataset):
    """Sequences of tokens, each of its own length; a sample drops tokens at random."""

    def __init__(self, size: int = 62, tokens: int = 40) -> None:
        generator = torch.Generator().manual_seed(12)
        lengths = torch.randint(3, 12, (size,), generator=generator).tolist()
        self.texts = [torch.randint(1, tokens, (length,), generator=generator) for length in lengths]
        self.labels = torch.randint(0, 5, (size,), generator=generator)

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        text = self.texts[index]
        kept = text[torch.rand(len(text)) < 0.9]
        return (kept if len(kept) else text), int(self.labels[index])


class Windows(Dataset):
    """Fixed windows of one long sequence of tokens, for a language model."""

    def __init__(self, size: int = 62, length: int = 12, tokens: int = 40) -> None:
        generator = torch.Generator().manual_seed(13)
        self.windows = torch.randint(0, tokens, (size, length + 1), generator=generator)

    def __len__(self) -> int:
        return len(self.windows)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.windows[index]


def small_cnn() -> nn.Sequential:
    """Convolution, BatchNorm, dropout."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(0.2),
        nn.Conv2d(8, 16, 3, stride=2), nn.BatchNorm2d(16), nn.ReLU(),
        nn.Flatten(), nn.Linear(16 * 9, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 5),
    )  # fmt: skip


class SmallTransformer(nn.Module):
    """A causal language model whose embedding and output share one weight.

    checkpointing: "" or "reentrant" or "plain": recompute each block in backward.
    """

    def __init__(self, tokens: int = 40, width: int = 16, length: int = 12, checkpointing: str = "") -> None:
        super().__init__()
        self.checkpointing = checkpointing
        self.embedding = nn.Embedding(tokens, width)
        self.positions = nn.Parameter(torch.zeros(length, width))
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 2, 32, dropout=0.1, batch_first=True) for _ in range(2)
        )
        self.norm = nn.LayerNorm(width)
        self.output = nn.Linear(width, tokens, bias=False)
        self.output.weight = self.embedding.weight
        mask = torch.triu(torch.ones(length, length, dtype=torch.bool), 1)
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.embedding(tokens) + self.positions
        for block in self.blocks:
            if self.checkpointing:
                hidden = torch.utils.checkpoint.checkpoint(
                    block, hidden, self.mask, use_reentrant=self.checkpointing == "reentrant"
                )
            else:
                hidden = block(hidden, self.mask)
        return self.output(self.norm(hidden))
