"""torch.compile: the model that is trained is compiled, the weights are the script's.

Under DDP torch.compile cuts the graph at the buckets, which changes the order in which gradients become
ready and with it the buckets; optimize_ddp=False leaves the graph whole, as it is without DDP.
"""

import argparse

import torch
import torch._dynamo
from parts import Images
from torch import nn
from torch.utils.data import DataLoader

import elastane

parser = argparse.ArgumentParser()
parser.add_argument("--backend", default="aot_eager")
parser.add_argument("--where", choices=["in-place", "before", "after"], default="in-place")
parser.add_argument("--cut-at-buckets", action="store_true")
args = parser.parse_args()
torch._dynamo.config.optimize_ddp = args.cut_at_buckets


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.drop, self.out = nn.Linear(192, 500), nn.Dropout(0.1), nn.Linear(500, 700)
        self.last = nn.Linear(700, 5)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        hidden = self.drop(torch.relu(self.hidden(images.flatten(1))))
        return self.last(torch.tanh(self.out(hidden)))


job = elastane.init(seed=12)
net: nn.Module = Net()
if args.where == "in-place":
    net.compile(backend=args.backend)
elif args.where == "before":
    net = torch.compile(net, backend=args.backend)
optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3)
loader = DataLoader(Images(), 5, shuffle=True, drop_last=True)
model, optimizer, loader = job.prepare(net, optimizer, loader)
if args.where == "after":
    model = torch.compile(model, backend=args.backend)

for _ in job.epochs(3):
    for images, labels in loader:
        loss = nn.functional.cross_entropy(model(images), labels)
        job.log(loss=loss)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
