"""Torchmetrics of the training, computed over all ranks: at the end of epochs, and in the middle of one."""

from typing import Any

import torch
import torchmetrics
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import elastane


class History:
    """What the metrics gave: the same on all ranks."""

    def __init__(self) -> None:
        self.values: list[Any] = []

    def state_dict(self) -> dict[str, Any]:
        return {"values": self.values}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.values = list(state["values"])


job = elastane.init(seed=3)
net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 3))
optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
data = TensorDataset(torch.randn(96, 8), torch.randint(3, (96,)))
accuracy = torchmetrics.classification.MulticlassAccuracy(3)  # counts, summed
loss_mean = torchmetrics.MeanMetric()  # floats, summed
scores_seen = torchmetrics.CatMetric()  # a list, concatenated
for name, metric in {"accuracy": accuracy, "loss": loss_mean, "scores": scores_seen}.items():
    job.register(name, metric)
history = History()
loader = DataLoader(data, 4, shuffle=True)
model, optimizer, loader, history = job.prepare(net, optimizer, loader, history)

for _ in job.epochs(3):
    for _ in job.each_rank():
        for metric in (accuracy, loss_mean, scores_seen):
            metric.reset()
    for x, y in loader:
        scores = model(x)
        loss = nn.functional.cross_entropy(scores, y)
        accuracy.update(scores, y)
        loss_mean.update(loss.detach(), weight=len(x) + 0.1)
        scores_seen.update(scores.detach().amax(1))
        job.log(loss=loss)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if job.stepped and job.step % 3 == 1:
            history.values.append(loss_mean.compute())
    history.values.append([accuracy.compute(), loss_mean.compute(), scores_seen.compute()])
