"""Scripts with one slip each: what a first user may get wrong, and what a machine may do to a script.

The first argument names the slip. Everything else is as small as it can be.
"""

import os
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import elastane


def train(slip: str) -> None:
    job = elastane.init(seed=1)
    net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    loader = DataLoader(TensorDataset(torch.ones(24, 4)), batch_size=2)
    model, optimizer, loader = job.prepare(net, optimizer, loader)
    hangs = os.environ.get("ELASTANE_TEST_HANGS")

    def hang_in_backward(param: nn.Parameter) -> None:
        # In the second epoch, with the last gradient: the step has been reported with the first.
        while slip == "hang in backward" and hangs and epoch == 1:
            time.sleep(0.1)

    net[0].weight.register_post_accumulate_grad_hook(hang_in_backward)
    for epoch in range(2) if slip == "no epochs" else job.epochs(2):
        for (inputs,) in loader:
            if slip == "hang" and epoch == 1 and hangs:
                while True:
                    time.sleep(0.1)
            optimizer.zero_grad()
            model(inputs).sum().backward()
            optimizer.step()
            if slip == "loader left" and job.step == 1:
                break
            if slip == "late buffer":
                net[1].running_mean.add_(1.0)
            if slip == "new buffer":
                net[1].running_mean = net[1].running_mean + 1.0
        if slip == "loader twice":
            sum(len(inputs) for (inputs,) in loader)
    if slip == "epochs twice":
        list(job.epochs(3))


def lease_two_datasets(folder: Path) -> None:
    job = elastane.init()
    for dataset in ("first", "second"):
        for task in job.tasks(dataset, size=40, task_size=2):
            time.sleep(0.01)
            with (folder / f"{dataset}-{task.index}").open("a") as file:
                file.write("done\n")


if __name__ == "__main__":
    if sys.argv[1] == "two datasets":
        lease_two_datasets(Path(sys.argv[2]))
    else:
        train(sys.argv[1])
