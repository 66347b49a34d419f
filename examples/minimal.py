"""One small training twice: minimal_ddp.py for torchrun, minimal.py for `elastane run`."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import elastane

job = elastane.init()
torch.manual_seed(7)
inputs = torch.randn(512, 16)
data = TensorDataset(inputs, inputs.square().sum(1, keepdim=True))
net = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 1))
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
loader = DataLoader(data, batch_size=16, shuffle=True)
model, optimizer, loader = job.prepare(net, optimizer, loader)

for epoch in job.epochs(10):
    for x, y in loader:
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch}: loss {loss.item():.4f}", flush=True)
