"""Models of the GPU benchmarks, defined here because nothing else needs torchvision.

They only use operators with deterministic CUDA kernels (no max pooling, no adaptive pooling, no
fused attention), so that both sides of a comparison are reproducible.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn


def _block(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Sequential:
    convolution = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs))


class _Bottleneck(nn.Module):
    """A residual block of ResNet-50."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.path = nn.Sequential(
            _block(inputs, width, 1), nn.ReLU(),
            _block(width, width, 3, stride), nn.ReLU(),
            _block(width, 4 * width, 1),
        )  # fmt: skip
        same = stride == 1 and inputs == 4 * width
        self.beside = nn.Identity() if same else _block(inputs, 4 * width, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.path(x) + self.beside(x))


class _Mean(nn.Module):
    """Mean over pixels: (batch, channels, height, width) to (batch, channels)."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean((2, 3))


def resnet50(picture_size: int, classes: int) -> nn.Module:
    """ResNet-50 with a strided convolution for its max pooling and dropout before the last layer."""
    layers: list[nn.Module] = [_block(3, 64, 7, 2), nn.ReLU(), _block(64, 64, 3, 2), nn.ReLU()]
    inputs = 64
    for width, count, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for number in range(count):
            layers.append(_Bottleneck(inputs, width, stride if number == 0 else 1))
            inputs = 4 * width
    return nn.Sequential(*layers, _Mean(), nn.Dropout(0.2), nn.Linear(inputs, classes))


class _Attention(nn.Module):
    """Self-attention as two matrix products, because fused kernels add in no fixed order."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.project = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        split = self.project(x).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        weights = (query @ key.transpose(-2, -1) * (width // self.heads) ** -0.5).softmax(-1)
        return self.out((self.dropout(weights) @ value).transpose(1, 2).reshape(batch, length, width))


class _Layer(nn.Module):
    """A pre-norm transformer layer."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention = nn.Sequential(nn.LayerNorm(width), _Attention(width, heads))
        self.wide = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width),
            nn.Dropout(0.1),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(x)
        return x + self.wide(x)


class _Patches(nn.Module):
    """Patches of 8 x 8 pixels as a sequence, with learned positions."""

    def __init__(self, picture_size: int, width: int) -> None:
        super().__init__()
        self.cut = nn.Conv2d(3, width, 8, 8)
        self.positions = nn.Parameter(0.02 * torch.randn((picture_size // 8) ** 2, width))

    def forward(self, x: Tensor) -> Tensor:
        return self.cut(x).flatten(2).transpose(1, 2) + self.positions


class _MeanOfSequence(nn.Module):
    """Mean over the sequence: (batch, length, width) to (batch, width)."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean(1)


def vit(picture_size: int, classes: int) -> nn.Module:
    """A vision transformer of 12 layers, width 768: 85 million parameters."""
    layers = [_Layer(768, 12) for _ in range(12)]
    return nn.Sequential(
        _Patches(picture_size, 768), *layers, nn.LayerNorm(768), _MeanOfSequence(), nn.Linear(768, classes)
    )


def tiny(picture_size: int, classes: int) -> nn.Module:
    """A model of a few thousand parameters, for dry runs."""
    return nn.Sequential(
        _block(3, 8, 3, 2), nn.ReLU(), nn.Dropout(0.2), _Bottleneck(8, 4, 2), _Mean(), nn.Dropout(0.1),
        nn.Linear(16, classes),
    )  # fmt: skip


MODELS: dict[str, Callable[[int, int], nn.Module]] = {"resnet50": resnet50, "vit": vit, "tiny": tiny}
