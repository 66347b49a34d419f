"""A small character-level GPT on the source text of Python's own standard library.

    elastane run --ests 4 --workers 1:2 examples/char_gpt.py
    python examples/char_gpt.py                                     plain single process

Everything is stock PyTorch but the three lines marked `(elastane)`: init, prepare, epochs.
"""

import argparse
import sysconfig
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import elastane


class Text(Dataset):
    """Windows of `length` characters and the same windows shifted by one."""

    def __init__(self, characters: int, length: int) -> None:
        folder = Path(sysconfig.get_paths()["stdlib"])
        text = "".join(p.read_text(errors="ignore") for p in sorted(folder.glob("*.py"))[:40])[:characters]
        self.codes = torch.tensor([min(ord(c), 127) for c in text])
        self.length = length

    def __len__(self) -> int:
        return (len(self.codes) - 1) // self.length

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        window = self.codes[index * self.length : (index + 1) * self.length + 1]
        return window[:-1], window[1:]


class CharGpt(nn.Module):
    """Transformer decoder: (batch, length) codes -> (batch, length, 128) logits."""

    def __init__(self, length: int, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.code = nn.Embedding(128, width)
        self.place = nn.Embedding(length, width)
        layer = nn.TransformerEncoderLayer(
            width, heads, 4 * width, 0.1, "gelu", batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(layer, layers, nn.LayerNorm(width), enable_nested_tensor=False)
        self.head = nn.Linear(width, 128)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(length))

    def forward(self, codes: torch.Tensor) -> torch.Tensor:
        x = self.code(codes) + self.place.weight[: codes.shape[1]]
        return self.head(self.blocks(x, mask=self.mask, is_causal=True))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=8, help="of each logical worker")
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--characters", type=int, default=200_000)
    args = parser.parse_args()

    job = elastane.init(seed=1)  # (elastane)
    data = Text(args.characters, args.length)
    net = CharGpt(args.length, args.width, heads=4, layers=args.layers)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, weight_decay=0.1)
    loader = DataLoader(data, args.batch_size, shuffle=True, drop_last=True)
    model, optimizer, loader = job.prepare(net, optimizer, loader)  # (elastane)

    for epoch in job.epochs(args.epochs):  # (elastane)
        for codes, targets in loader:
            loss = nn.functional.cross_entropy(model(codes).flatten(0, 1), targets.flatten())
            job.log(loss=loss)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
        if job.is_leader:
            print(f"epoch {epoch}: loss of the last mini-batch {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
