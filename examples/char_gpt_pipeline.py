"""A small character-level GPT in stages: no worker holds the whole model.

    elastane run --ests 4 --workers 3 examples/char_gpt_pipeline.py
    elastane run --ests 4 --workers 3 --pipeline 2:3 --shadow 1 examples/char_gpt_pipeline.py
    python examples/char_gpt_pipeline.py                                     plain single process

Everything is stock PyTorch but the lines marked `(elastane)`. The text is made up here, so that the example
runs anywhere and within seconds.
"""

import argparse
import random

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

import elastane

WORDS = (
    "the",
    "a",
    "small",
    "red",
    "old",
    "cat",
    "dog",
    "tree",
    "river",
    "sees",
    "likes",
    "near",
    "and",
    "then",
)


class Text(Dataset):
    """Windows of `length` characters of a made-up text, and the same windows shifted by one."""

    def __init__(self, characters: int, length: int, seed: int) -> None:
        words = random.Random(seed).choices(WORDS, k=characters)
        self.codes = torch.tensor([ord(c) for c in " ".join(words)[:characters]])
        self.length = length

    def __len__(self) -> int:
        return (len(self.codes) - 1) // self.length

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        window = self.codes[index * self.length : (index + 1) * self.length + 1]
        return window[:-1], window[1:]


class Embed(nn.Module):
    """(batch, length) codes -> (batch, length, width)."""

    def __init__(self, length: int, width: int) -> None:
        super().__init__()
        self.code, self.place = nn.Embedding(128, width), nn.Embedding(length, width)
        self.drop = nn.Dropout(0.1)

    def forward(self, codes: Tensor) -> Tensor:
        return self.drop(self.code(codes) + self.place.weight[: codes.shape[1]])


class Block(nn.Module):
    """A transformer block with dropout."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.first(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.drop(self.out(mixed.transpose(1, 2).reshape(batch, length, width)))
        return x + self.drop(self.down(functional.gelu(self.up(self.second(x)))))


class Head(nn.Module):
    """(batch, length, width) -> (batch, length, 128) logits."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(width), nn.Linear(width, 128)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.norm(x))


def loss_of(logits: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=4, help="of each logical worker")
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--length", type=int, default=32)
    parser.add_argument("--characters", type=int, default=6_000)
    args = parser.parse_args()

    job = elastane.init(seed=1)  # (elastane)
    # Functions that build the units, so that no process ever has all of them.
    units = [
        lambda: Embed(args.length, args.width),
        *[lambda: Block(args.width, heads=4)] * args.layers,
        lambda: Head(args.width),
    ]
    train, test = Text(args.characters, args.length, seed=1), Text(600, args.length, seed=2)
    loader = DataLoader(train, args.batch_size, shuffle=True, drop_last=True)
    pipe, optimizer, loader = job.prepare_pipeline(  # (elastane)
        units, lambda parameters: torch.optim.AdamW(parameters, lr=3e-3), loader, loss_fn=loss_of
    )

    for epoch in job.epochs(args.epochs):  # (elastane)
        for batch in loader:
            loss = pipe(batch)  # forward, backward
            pipe.clip_grad_norm_(1.0)
            optimizer.step()
        losses = pipe.evaluate(DataLoader(test, 8), lambda logits, batch: loss_of(logits, batch[1]).item())
        if job.is_leader:
            print(f"epoch {epoch}: loss {loss.item():.4f}, test {sum(losses) / len(losses):.4f}", flush=True)


if __name__ == "__main__":
    main()
