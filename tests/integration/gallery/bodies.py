"""Loop bodies that are not the plain one: each option is a habit of real scripts."""

import argparse
import copy

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import elastane

parser = argparse.ArgumentParser()
parser.add_argument("--mixed-zeroing", action="store_true", help="in place, later to None, at the body's end")
parser.add_argument("--forces", action="store_true", help="a loss of gradients: torch.autograd.grad")
parser.add_argument("--model-zeroes", action="store_true", help="model.zero_grad() with accumulation")
parser.add_argument(
    "--backward-draws", action="store_true", help="noise on gradients, from the third step on"
)
args = parser.parse_args()

job = elastane.init(seed=7)


class Noisy(torch.autograd.Function):
    """Draws in backward, when the gradients of the layers above are there already."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * (1 + 0.1 * torch.rand_like(gradient)) if job.step >= 3 else gradient


class Hidden(nn.Tanh):
    def forward(self, x):
        return super().forward(Noisy.apply(x) if args.backward_draws else x)


net = nn.Sequential(nn.Linear(8, 16), Hidden(), nn.Linear(16, 8))
optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
generator = torch.Generator().manual_seed(1)
inputs, targets = torch.randn(2, 90, 8, generator=generator)
loader = DataLoader(TensorDataset(inputs, targets), 5, shuffle=True)
model, optimizer, loader = job.prepare(
    net,
    optimizer,
    loader,
    gradient_as_bucket_view=args.mixed_zeroing,
    accumulation_steps=2 if args.model_zeroes else 1,
)
best = copy.deepcopy(net)

for _ in job.epochs(4 if args.model_zeroes else 2):
    for x, target in loader:
        x.requires_grad_(args.forces)
        out = model(x)
        loss = (out - target).square().mean()
        if args.forces:
            (force,) = torch.autograd.grad(out.sum(), x, create_graph=True)
            loss = loss + (force - target).square().mean()
        job.log(loss=loss)
        if args.model_zeroes:
            model.zero_grad()
        elif not args.mixed_zeroing:
            optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if args.mixed_zeroing:
            optimizer.zero_grad(set_to_none=job.step >= 4)
    best = copy.deepcopy(net)  # as scripts do that keep the best model

assert all(torch.equal(a, b) for a, b in zip(best.parameters(), net.parameters(), strict=True))
