# What the example of README.md leaves to its reader; it stands between the first of the lines and the next.
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Points(TensorDataset):
    """Points and the squares of their lengths; slow to come by as long as there is a file `hold`."""

    def __getitem__(self, index):
        if index % BATCH_SIZE == 0:
            patient_until = time.monotonic() + 10
            while Path("hold").exists() and time.monotonic() < patient_until:
                time.sleep(0.02)
        return super().__getitem__(index)


BATCH_SIZE = 16
points = torch.randn(512, 16, generator=torch.Generator().manual_seed(0))
squares = points.square().sum(1, keepdim=True)
net = nn.Sequential(nn.Linear(16, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=20, gamma=0.5)
loader = DataLoader(Points(points, squares), BATCH_SIZE, shuffle=True)
loss_fn = nn.functional.mse_loss


@torch.no_grad()
def evaluate(net):
    net.eval()
    print(f"loss {loss_fn(net(points), squares).item():.4f}", flush=True)
    net.train()
