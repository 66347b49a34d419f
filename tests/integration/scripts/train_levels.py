"""A small model whose bits depend on the instruction set: products, convolution, exp and reductions.

The augmentation is NumPy's exp, which has other bits with AVX-512 than without.
"""

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import elastane


class Images(Dataset):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        noise = np.random.default_rng(index).standard_normal((3, 12, 12))
        return torch.from_numpy(np.exp(noise * np.random.uniform(0.5, 1.0))).float(), index % 5


def main() -> None:
    job = elastane.init(seed=7)
    net = nn.Sequential(
        nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.GELU(), nn.Flatten(),
        nn.Linear(1600, 64), nn.LayerNorm(64), nn.Tanh(), nn.Dropout(0.1), nn.Linear(64, 5),
    )  # fmt: skip
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    model, optimizer, loader = job.prepare(net, optimizer, DataLoader(Images(), 8, shuffle=True))
    for _ in job.epochs(2):
        for images, labels in loader:
            loss = nn.functional.cross_entropy(model(images), labels)
            job.log(loss=loss)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


if __name__ == "__main__":
    main()
