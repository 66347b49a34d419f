"""The reader's own DDP script, before its three lines were changed into Elastane's."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
torch.manual_seed(7)
points = torch.randn(512, 16, generator=torch.Generator().manual_seed(0))
data = TensorDataset(points, points.square().sum(1, keepdim=True))
net = nn.Sequential(nn.Linear(16, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=20, gamma=0.5)
sampler = DistributedSampler(data)
loader = DataLoader(data, 16, sampler=sampler)
model = DistributedDataParallel(net)
for epoch in range(10):
    sampler.set_epoch(epoch)
    for x, y in loader:
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
dist.destroy_process_group()
