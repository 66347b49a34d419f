"""A small training script with one flaw, for `elastane verify` to find: --flaw names it."""

import argparse
import functools
import itertools
import os
import random
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import elastane

noise = np.random.default_rng(3)


#: Where no look at the loop's source sees it.
count_turn = functools.partial(next, itertools.count(1))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Dropout(0.1))
        self.head = nn.Linear(16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x))


def spoil_the_sum(job: object, optimizer: torch.optim.Optimizer) -> None:
    """As if the all-reduce were wrong: in step 3 one average is a little off, on every worker."""

    def spoil(*_: object) -> None:
        if job.step == 3:  # type: ignore[attr-defined]
            optimizer.param_groups[0]["params"][0].grad.view(-1)[0].mul_(1 + 1e-5)

    optimizer.register_step_pre_hook(spoil)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--flaw", default="")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--data-workers", type=int, default=0)
    args = parser.parse_args()
    flaw = args.flaw
    elastic = os.environ.get("ELASTANE_MODE") == "elastic"

    job = elastane.init(seed=1)
    if flaw == "one rank dies" and not elastic and job.rank == 1:
        raise SystemExit("rank 1 has no data")
    if flaw == "unseeded":
        torch.seed()
    net = Net()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    x = torch.randn(48, 6, generator=torch.Generator().manual_seed(2))
    y = (x.sum(1) > 0).long() + (x[:, 0] > 1).long()
    if flaw == "ours" and elastic:
        spoil_the_sum(job, optimizer)
    if flaw == "dies at once" and elastic:
        raise SystemExit("no licence for elastic training found")
    loader = DataLoader(TensorDataset(x, y), 4, shuffle=True, num_workers=args.data_workers)
    model, optimizer, loader = job.prepare(net, optimizer, loader)

    fresh = np.random.default_rng() if flaw == "unseeded generator" else np.random.default_rng(1)
    for _ in job.epochs(args.epochs):
        for inputs, labels in loader:
            turn = count_turn()
            if flaw == "generator":
                inputs = inputs + 0.1 * torch.tensor(noise.normal(size=inputs.shape), dtype=torch.float32)
            if flaw == "unseeded generator":
                inputs = inputs * float(fresh.uniform(0.9, 1.1))
            if path := os.environ.get("FLAWED_TELLS"):
                with Path(path).open("a") as tells:
                    tells.write(f"{os.environ['ELASTANE_MODE']}\n")
            if flaw in ("slow", "sleeps"):
                time.sleep(0.5 if flaw == "slow" else 60)  # stands for computing on a device
            if flaw == "hidden":
                inputs = inputs * (1 + 0.01 * turn)
            if flaw == "raises" and turn == 3:
                raise RuntimeError("the disk with the weather is full")
            if flaw == "raises elastically" and elastic and turn == 3:
                raise RuntimeError("no such worker on this planet")
            inputs = inputs + 0.01 * random.random()
            loss = nn.functional.cross_entropy(model(inputs), labels)
            job.log(loss=loss)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


if __name__ == "__main__":
    main()
