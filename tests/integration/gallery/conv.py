"""A small network in channels_last: augmentation, mixup, clipping, a schedule per step and one per epoch."""

import argparse
import random

import torch
from parts import Images, small_cnn
from torch import nn
from torch.utils.data import DataLoader

import elastane

parser = argparse.ArgumentParser()
parser.add_argument("--data-workers", type=int, default=0)
parser.add_argument("--epochs", type=int, default=2)
args = parser.parse_args()

job = elastane.init(seed=3)
net = small_cnn().to(memory_format=torch.channels_last)
optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=0.05)
warmup = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, 1.0, total_iters=8)
decay = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.7)
loader = DataLoader(Images(), 4, shuffle=True, num_workers=args.data_workers)
model, optimizer, loader, warmup, decay = job.prepare(net, optimizer, loader, warmup, decay)

inner = model.module if hasattr(model, "module") else model  # as scripts look behind DDP's wrapper

for _ in job.epochs(args.epochs):
    for images, labels in loader:
        images = images.to(memory_format=torch.channels_last)
        mix = random.random()
        images = mix * images + (1 - mix) * images[torch.randperm(len(images))]
        loss = nn.functional.cross_entropy(model(images), labels)
        job.log(loss=loss)
        optimizer.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(inner.parameters(), 0.5)
        optimizer.step()
        warmup.step()
    decay.step()
