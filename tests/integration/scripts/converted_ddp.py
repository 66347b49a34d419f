"""original_ddp.py converted: rightly, or with a fault."""

import argparse
import copy
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import elastane

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--width", type=int, default=8)
parser.add_argument("--fault", choices=("", "seed", "average"), default="")
args = parser.parse_args()


def main() -> None:
    seed = int(Path("data/seed.txt").read_text())
    job = elastane.init(seed=seed + 1 if args.fault == "seed" else seed)
    width = args.width
    net = nn.Sequential(nn.Linear(6, width), nn.BatchNorm1d(width), nn.Dropout(0.2), nn.Linear(width, 3))
    snapshot = Path("snapshot.pt")
    if snapshot.exists():
        net.load_state_dict(torch.load(snapshot))
    average = copy.deepcopy(net)
    generator = torch.Generator().manual_seed(0)
    data = TensorDataset(torch.randn(40, 6, generator=generator), torch.arange(40) % 3)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    loader = DataLoader(data, 4, shuffle=True)
    objects = [net, optimizer, loader] + ([] if args.fault == "average" else [average])
    model, optimizer, loader, *_ = job.prepare(*objects)
    for _ in job.epochs(args.epochs):
        for x, y in loader:
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if job.stepped or args.fault == "average":
                with torch.no_grad():
                    for mean, new in zip(average.parameters(), net.parameters(), strict=True):
                        mean.lerp_(new, 0.1)
        if job.is_leader:
            torch.save(model.state_dict(), snapshot)


main()
