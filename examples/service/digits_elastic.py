"""Digits, elastically: an `elastane` run of the training service; digits_ddp.py is the same on stock DDP.

elastane submit --model digits --instances 3 --seed 7 digits_elastic.py --epochs 10
"""

import argparse

import torch
from digits import BATCH_SIZE, accuracy, build_model, digits, save, wait_for_signal
from torch import nn
from torch.utils.data import DataLoader

import elastane

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=10)
arguments = parser.parse_args()

job = elastane.init()
net = build_model()
optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3)
loader = DataLoader(digits(train=True), BATCH_SIZE, shuffle=True)
model, optimizer, loader = job.prepare(net, optimizer, loader)
for epoch in job.epochs(arguments.epochs, progress=False):
    wait_for_signal(epoch)
    for images, labels in loader:
        loss = nn.functional.cross_entropy(model(images), labels)
        job.log(loss=loss)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if job.is_leader:
        print(f"epoch {epoch}: accuracy {accuracy(net):.4f}", flush=True)
save(net)
print("the training is over", flush=True)
