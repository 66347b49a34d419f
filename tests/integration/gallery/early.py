"""Early stopping, and a rate that falls, by values that live across epochs; a last epoch that is cut short.

With --patience the script leaves its loop over epochs; without it max_steps ends the training in mid-epoch.
No BatchNorm: under DDP each rank evaluates with statistics of its own, and would come to a rate of its own.
"""

import argparse

import torch
from parts import Images
from torch import nn
from torch.utils.data import DataLoader

import elastane

parser = argparse.ArgumentParser()
parser.add_argument("--patience", type=int, default=0)
patience = parser.parse_args().patience

job = elastane.init(seed=4)
held_out = Images(10)
net = nn.Sequential(nn.Flatten(), nn.Linear(192, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 5))
optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
loader = DataLoader(Images(), 4, shuffle=True)
model, optimizer, loader = job.prepare(net, optimizer, loader)
state = job.carry(best=float("inf"), bad=0, losses=())

for _ in job.epochs(6, max_steps=None if patience else 15):
    net.train()
    for images, labels in loader:
        loss = nn.functional.cross_entropy(model(images), labels)
        job.log(loss=loss)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    net.eval()
    with torch.no_grad():
        found = float(nn.functional.cross_entropy(net(held_out.images), held_out.labels))
    state.losses = (*state.losses, found)
    if found < state.best - 10:
        state.best = found
    else:
        state.bad += 1
        for group in optimizer.param_groups:
            group["lr"] = 0.05 / (1 + state.bad * sum(state.losses))
    if patience and state.bad >= patience:
        break
