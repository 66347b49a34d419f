"""Train an epoch, validate, repeat: a DataLoader draws from torch's generator, and so does what follows it.

All ranks validate, the leader alone looks at samples. Dropout and augmentation of the next epoch depend on
what was drawn. --each-rank: code whose draws are not the same in all ranks. --seeds: one seed for all, anew
in each epoch.
"""

import argparse
import random

import numpy as np
import torch
from parts import Images
from torch import nn
from torch.utils.data import DataLoader

import elastane

parser = argparse.ArgumentParser()
parser.add_argument("--each-rank", action="store_true")
parser.add_argument("--seeds", action="store_true")
options = parser.parse_args()


class Augmented(Images):
    """Noise from all three global generators."""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        image, label = super().__getitem__(index)
        return image + 0.1 * (torch.rand(3, 8, 8) + random.random() + np.random.rand()).float(), label


job = elastane.init(seed=11)
net = nn.Sequential(nn.Flatten(), nn.Linear(192, 16), nn.BatchNorm1d(16), nn.Dropout(0.3), nn.Linear(16, 5))
optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
validation = DataLoader(Images(), 8, shuffle=True)
model, optimizer, loader = job.prepare(
    net, optimizer, DataLoader(Augmented(), 4, shuffle=True, drop_last=True)
)
if not options.seeds:
    np.random.rand(3)  # before the first epoch, too

for epoch in job.epochs(3):
    if options.seeds:
        random.seed(epoch)
        np.random.seed(epoch)
        torch.manual_seed(epoch)
    net.train()
    for images, labels in loader:
        loss = nn.functional.cross_entropy(model(images), labels)
        job.log(loss=loss)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if options.seeds:
        continue
    net.eval()
    with torch.no_grad():
        for images, _ in validation:
            net(images)
        random.random()
        if job.is_leader:
            net(torch.rand(3, 192) + float(np.random.randn()))
            random.shuffle(list(range(9)))
        np.random.rand(700)
    if options.each_rank:
        for rank in job.each_rank():
            random.shuffle(list(range(20 + rank)))
            torch.randn(1 + rank)
            if job.is_leader:
                np.random.seed(5)
