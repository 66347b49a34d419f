"""A small elastic job whose steps mostly sleep; `benchmarks/fidelity.py` submits it many times.

--seconds: sleep of each EST in a step, which lets two cores run four workers. --rest: additional sleep of
each step, in seconds, in place of an exchange. --until: a file; once it exists, steps no longer sleep.
"""

import argparse
import tempfile
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import elastane

parser = argparse.ArgumentParser()
parser.add_argument("--ests", type=int, required=True)
parser.add_argument("--steps", type=int, required=True)
parser.add_argument("--seconds", type=float, required=True)
parser.add_argument("--rest", type=float, default=0.0)
parser.add_argument("--until", type=Path)
arguments = parser.parse_args()

job = elastane.init()
torch.manual_seed(7)
inputs = torch.randn(arguments.ests * arguments.steps, 8)
net = nn.Linear(8, 1)
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
loader = DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True)), batch_size=1, shuffle=True)
model, optimizer, loader = job.prepare(net, optimizer, loader)
for _ in job.epochs(1, progress=False):
    for x, y in loader:
        if arguments.until is None or not arguments.until.exists():
            time.sleep(arguments.seconds)
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if arguments.rest and job.stepped:
            time.sleep(arguments.rest)
with tempfile.TemporaryDirectory() as folder:
    torch.save(net.state_dict(), f"{folder}/weights.pt")
    elastane.save_model(folder)
