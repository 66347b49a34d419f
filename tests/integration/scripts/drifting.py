"""A worker that drifts away from the others where ELASTANE_TEST_DRIFTS is set to how.

flip: a bit of a weight, after step 5. rate: the learning rate, by itself, after the first epoch.
stop: it leaves the loop over epochs after the first one, alone. best: a variable of the script that lives
across epochs decides the learning rate, in all workers.
"""

import os

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import elastane

drifts = os.environ.get("ELASTANE_TEST_DRIFTS", "")
job = elastane.init(seed=1)
net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
loader = DataLoader(TensorDataset(torch.randn(40, 4)), batch_size=2)
model, optimizer, loader = job.prepare(net, optimizer, loader)
best = float("inf")
for _ in job.epochs(2):
    for (inputs,) in loader:
        optimizer.zero_grad()
        model(inputs).square().sum().backward()
        optimizer.step()
        if drifts == "flip" and job.stepped and job.step == 5:
            net[2].weight.data.view(torch.int32)[0, 1] ^= 1 << 3
    if drifts == "rate":
        for group in optimizer.param_groups:
            group["lr"] /= 4
    if drifts == "best":
        now = float(model(torch.ones(1, 4)).square())
        if now < best:
            best = now
        for group in optimizer.param_groups:
            group["lr"] = 0.1 / (1 + best)
    if drifts == "stop":
        break
