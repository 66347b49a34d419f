"""A DDP script as people write it, that knows nothing of Elastane; converted_ddp.py is the same, converted.

It starts from `snapshot.pt` of its folder where it finds one, and leaves one behind: a run that met another's
would differ from it.
"""

import argparse
import copy
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--width", type=int, default=8)
args = parser.parse_args()


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(int(Path("data/seed.txt").read_text()))
    width = args.width
    net = nn.Sequential(nn.Linear(6, width), nn.BatchNorm1d(width), nn.Dropout(0.2), nn.Linear(width, 3))
    snapshot = Path("snapshot.pt")
    if snapshot.exists():
        net.load_state_dict(torch.load(snapshot))
    average = copy.deepcopy(net)
    generator = torch.Generator().manual_seed(0)
    data = TensorDataset(torch.randn(40, 6, generator=generator), torch.arange(40) % 3)
    sampler = DistributedSampler(data)
    loader = DataLoader(data, 4, sampler=sampler)
    model = DistributedDataParallel(net)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    torch.manual_seed(3 + rank)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for x, y in loader:
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            with torch.no_grad():
                for mean, new in zip(average.parameters(), net.parameters(), strict=True):
                    mean.lerp_(new, 0.1)
        if rank == 0:
            torch.save(model.module.state_dict(), snapshot)
    dist.destroy_process_group()


main()
