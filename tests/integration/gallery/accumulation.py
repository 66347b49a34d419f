"""Gradient accumulation: one optimizer step for every three mini-batches, as with DDP's no_sync(); the
rest of an epoch makes a shorter step. BatchNorm and dropout in between."""

import argparse

import torch
from parts import Images, small_cnn
from torch import nn
from torch.utils.data import DataLoader

import elastane

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=3)
parser.add_argument("--data-workers", type=int, default=0)
parser.add_argument("--clip", action="store_true", help="in every mini-batch, which counts once a step")
parser.add_argument("--view", action="store_true", help="gradient_as_bucket_view")
args = parser.parse_args()

job = elastane.init(seed=7)
net = small_cnn()
optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3)
scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.95)
loader = DataLoader(Images(), 2, shuffle=True, num_workers=args.data_workers)
model, optimizer, loader, scheduler = job.prepare(
    net, optimizer, loader, scheduler, accumulation_steps=args.steps, gradient_as_bucket_view=args.view
)

for _ in job.epochs(3):
    for images, labels in loader:
        loss = nn.functional.cross_entropy(model(images), labels) / args.steps
        job.log(loss=loss)
        loss.backward()
        if args.clip:
            nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
