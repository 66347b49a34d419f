"""Models of the pipeline's parity matrix: small, each with a feature that an incorrect division would reveal.

mlp            in-place activations at the boundaries
cnn            BatchNorm and dropout: buffers and generators
gpt            an embedding, dropout in every block, a residual stream
channels-last  convolutions whose kernels follow the strides
transposing    units that leave their outputs transposed, so that gradients are, too
mixed          tuples, None, integer, bool and zero-size tensors between units, a tensor used by several
               stages, bfloat16 in the middle, draws in backward, shapes that vary from step to step
widened        as mlp, with two dtypes: two buckets, clipped
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

#: Draws an EST's mini-batch from its generators: (step, micro-batch) -> (input, target).
Batch = Callable[[int, int], tuple[Any, Any]]


@dataclass(frozen=True)
class PipelineModel:
    """A model of the matrix. units: builds them; loss: of the last unit's output and the target."""

    name: str
    units: Callable[[], list[nn.Module]]
    batch: Batch
    loss: Callable[[Any, Any], Tensor]
    optimizer: Callable[[list[nn.Parameter]], torch.optim.Optimizer] = lambda params: torch.optim.AdamW(
        params, lr=0.02
    )
    steps: int = 3
    waves: int = 1
    clip: float | None = None
    autocast: bool = False

    def build(self) -> nn.Sequential:
        """Return the model with the job's initial weights."""
        torch.manual_seed(7)
        return nn.Sequential(*self.units())


class Block(nn.Module):
    """A transformer block: causal attention and an MLP, with dropout."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.first(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        p = 0.1 if self.training else 0.0
        mixed = functional.scaled_dot_product_attention(q, k, v, dropout_p=p, is_causal=True)
        x = x + functional.dropout(
            self.out(mixed.transpose(1, 2).reshape(batch, length, width)), 0.1, self.training
        )
        return x + functional.dropout(self.down(functional.gelu(self.up(self.second(x)))), 0.1, self.training)


class Embed(nn.Module):
    """Tokens and positions."""

    def __init__(self, tokens: int, length: int, width: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(tokens, width), nn.Embedding(length, width)
        self.register_buffer("index", torch.arange(length), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.tokens(x) + self.places(self.index[: x.shape[1]])


class Transposed(nn.Module):
    """A linear layer over the dimension before the last; its output stays transposed."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.linear(x.transpose(1, 2)))


class Lines(nn.Module):
    """Sums over lines of what the unit before transposed."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(width), nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.norm(x).mean(1))


class _Jittered(torch.autograd.Function):
    """The identity, whose backward draws."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * (1 + 0.1 * torch.rand(()))


class Open(nn.Module):
    """One tensor to many values; the first is used by several units, and stands in the tuple twice."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(12, 24)

    def forward(self, x: Tensor) -> tuple[Any, ...]:
        base = self.linear(x)
        return (
            base,
            base,
            torch.arange(len(x), device=x.device),
            x[:, :1] > 0,
            None,
            {"scale": 0.5, "count": len(x), "empty": base[:0] * 2},
        )


class Among(nn.Module):
    """Uses the tuple's first value, and passes all on."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(24, 24)
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def forward(self, values: tuple[Any, ...]) -> tuple[Any, ...]:
        base, h, index, mask, nothing, settings = values
        assert nothing is None and settings["count"] == len(h)
        self.seen += settings["count"]
        h = _Jittered.apply(self.linear(h) * settings["scale"]) + base
        h = torch.where(mask, h, functional.dropout(h, 0.2)).add_(index[:, None] * 0.01)
        h = h + settings["empty"].sum()
        return base, h, index, mask, nothing, settings


class Narrow(nn.Module):
    """To bfloat16, and to a slice of what there is."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(24, 16, dtype=torch.bfloat16)

    def forward(self, values: tuple[Any, ...]) -> tuple[Tensor, Tensor]:
        base, h, *_ = values
        return self.linear(h.bfloat16())[:, 2:], base[:, 4:12]


class Close(nn.Module):
    """To the output."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(22, 3)

    def forward(self, values: tuple[Tensor, Tensor]) -> Tensor:
        return self.linear(torch.cat([values[0].float(), values[1].relu()], 1))


def _classes(*shape: int) -> Batch:
    def batch(step: int, micro: int) -> tuple[Tensor, Tensor]:
        return torch.randn(*shape), torch.randint(0, 3, shape[:1])

    return batch


def _mlp() -> list[nn.Module]:
    return [
        nn.Linear(20, 33),
        nn.ReLU(inplace=True),
        nn.Linear(33, 33),
        nn.Sigmoid(),
        nn.Linear(33, 17),
        nn.LeakyReLU(0.1, inplace=True),
        nn.Linear(17, 3),
    ]


def _widened() -> list[nn.Module]:
    class Double(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(33, 33, dtype=torch.float64)

        def forward(self, x: Tensor) -> Tensor:
            return self.linear(x.double()).float()

    return [nn.Linear(20, 33), nn.Tanh(), Double(), nn.Linear(33, 600), nn.ReLU(), nn.Linear(600, 3)]


class Twice(nn.Module):
    """One layer, applied twice."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(24, 24)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(torch.tanh(self.linear(x)))


def _autocast() -> list[nn.Module]:
    return [nn.Linear(20, 24), nn.GELU(), Twice(), nn.Dropout(0.1), Twice(), nn.Linear(24, 3)]


def _cnn() -> list[nn.Module]:
    return [
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(inplace=True),
        nn.Dropout(0.3),
        nn.Conv2d(8, 8, 3, stride=2),
        nn.BatchNorm2d(8),
        nn.Sequential(nn.ReLU(), nn.Flatten(), nn.Dropout(0.2), nn.Linear(72, 3)),
    ]


def _channels_last() -> list[nn.Module]:
    units = [
        nn.Conv2d(4, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.Conv2d(16, 8, 3, stride=2),
        nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3)),
    ]
    return [unit.to(memory_format=torch.channels_last) for unit in units]


def _last_batch(step: int, micro: int) -> tuple[Tensor, Tensor]:
    return torch.randn(3, 4, 9, 9).contiguous(memory_format=torch.channels_last), torch.randint(0, 3, (3,))


def _gpt() -> list[nn.Module]:
    return [
        Embed(19, 12, 24),
        nn.Dropout(0.1),
        Block(24, 2),
        Block(24, 2),
        nn.LayerNorm(24),
        nn.Linear(24, 19),
    ]


def _tokens(step: int, micro: int) -> tuple[Tensor, Tensor]:
    text = torch.randint(0, 19, (3, 13))
    return text[:, :-1], text[:, 1:]


def _token_loss(output: Tensor, target: Tensor) -> Tensor:
    return functional.cross_entropy(output.flatten(0, 1), target.flatten())


def _varying(step: int, micro: int) -> tuple[Tensor, Tensor]:
    size = 3 + step  # an EST's shapes vary by step
    return torch.randn(size, 12), torch.randint(0, 3, (size,))


MODELS = {
    model.name: model
    for model in (
        PipelineModel("mlp", _mlp, _classes(5, 20), functional.cross_entropy),
        PipelineModel("cnn", _cnn, _classes(4, 3, 8, 8), functional.cross_entropy),
        PipelineModel("gpt", _gpt, _tokens, _token_loss),
        PipelineModel("channels-last", _channels_last, _last_batch, functional.cross_entropy),
        PipelineModel(
            "transposing",
            lambda: [Transposed(10), Transposed(12), Transposed(10), Transposed(12), Lines(12)],
            _classes(4, 10, 12),
            functional.cross_entropy,
        ),
        PipelineModel(
            "mixed",
            lambda: [Open(), Among(), Among(), Narrow(), Close()],
            _varying,
            functional.cross_entropy,
            waves=2,
        ),
        PipelineModel(
            "widened",
            _widened,
            _classes(5, 20),
            functional.cross_entropy,
            optimizer=lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9),
            clip=0.05,
        ),
        PipelineModel("autocast", _autocast, _classes(5, 20), functional.cross_entropy, autocast=True),
    )
}
