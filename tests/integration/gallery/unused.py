"""find_unused_parameters: a branch that depends on rank and data, a parameter that is never used, and
layers that are frozen and unfrozen between epochs."""

import argparse

import torch
from parts import Images, small_cnn
from torch import nn
from torch.utils.data import DataLoader

import elastane

parser = argparse.ArgumentParser()
parser.add_argument("--freeze", action="store_true")
parser.add_argument("--clip", action="store_true")
args = parser.parse_args()


class Branching(nn.Module):
    """Two heads, of which each mini-batch uses one or both."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = small_cnn()
        self.left = nn.Linear(5, 5)
        self.right = nn.Sequential(nn.Linear(5, 9), nn.ReLU(), nn.Linear(9, 5))
        self.never = nn.Linear(7, 7)

    def forward(self, images: torch.Tensor, branch: int) -> torch.Tensor:
        hidden = self.trunk(images)
        if branch == 0:
            return self.left(hidden)
        return self.right(hidden) if branch == 1 else self.left(hidden) + self.right(hidden)


job = elastane.init(seed=5)
net = Branching()
optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
loader = DataLoader(Images(), 4, shuffle=True)
model, optimizer, loader = job.prepare(net, optimizer, loader, find_unused_parameters=True)

for epoch in job.epochs(3):
    if args.freeze:
        for parameter in net.trunk[:5].parameters():
            parameter.requires_grad_(epoch != 1)
    for images, labels in loader:
        # In the first epoch the right head is used by nobody: its gradients stay None everywhere.
        branch = 0 if epoch == 0 else (job.rank + int(labels[0])) % 3
        loss = nn.functional.cross_entropy(model(images, branch), labels)
        job.log(loss=loss)
        optimizer.zero_grad()
        loss.backward()
        if args.clip:
            nn.utils.clip_grad_norm_(net.parameters(), 0.3)
        optimizer.step()
