"""DDP's bucket options, gradients zeroed in place, two optimizers, parameter groups.

Layers wide enough for several buckets: the first one and the last one fall into different buckets.
"""

import argparse

import torch
from parts import Images
from torch import nn
from torch.utils.data import DataLoader

import elastane

parser = argparse.ArgumentParser()
parser.add_argument("--view", action="store_true", help="gradient_as_bucket_view")
parser.add_argument("--cap", type=float, default=None, help="bucket_cap_mb")
parser.add_argument("--in-place", action="store_true", help="zero_grad(set_to_none=False)")
args = parser.parse_args()

job = elastane.init(seed=4)
net = nn.Sequential(
    nn.Flatten(), nn.Linear(192, 400), nn.ReLU(), nn.Linear(400, 700), nn.ReLU(),
    nn.Linear(700, 40), nn.Tanh(), nn.BatchNorm1d(40), nn.Linear(40, 5),
)  # fmt: skip
groups = [{"params": net[1].parameters(), "lr": 0.01}, {"params": net[3].parameters(), "weight_decay": 0.1}]
below = torch.optim.SGD(groups, lr=0.02, momentum=0.9, nesterov=True)
above = torch.optim.Adam([*net[5].parameters(), *net[7].parameters(), *net[8].parameters()], lr=1e-3)
loader = DataLoader(Images(), 5, shuffle=True, drop_last=True)
model, below, above, loader = job.prepare(
    net, below, above, loader, gradient_as_bucket_view=args.view, bucket_cap_mb=args.cap
)

for _ in job.epochs(3):
    for images, labels in loader:
        loss = nn.functional.cross_entropy(model(images), labels)
        job.log(loss=loss)
        for optimizer in (below, above):
            optimizer.zero_grad(set_to_none=not args.in_place)
        loss.backward()
        nn.utils.clip_grad_value_(net.parameters(), 0.05)
        below.step()
        above.step()
