"""Values of all ranks: gathered at the end of each step, reduced at the end of each epoch.

What is gathered goes into state that is compared, and decides the learning rate.
"""

from typing import Any

import torch
from parts import Images
from torch import nn
from torch.utils.data import DataLoader

import elastane


class History:
    """What the ranks have exchanged: the same on all of them."""

    def __init__(self) -> None:
        self.steps: list[Any] = []
        self.epochs: list[Any] = []

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps, "epochs": self.epochs}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps, self.epochs = list(state["steps"]), list(state["epochs"])


job = elastane.init(seed=13)
net = nn.Sequential(nn.Flatten(), nn.Linear(192, 24), nn.ReLU(), nn.Dropout(0.1), nn.Linear(24, 5))
optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
predicted = torch.zeros(4, dtype=torch.long)
sums = {"loss": 0.0, "hits": 0, "scores": torch.zeros(7, 5)}
job.register("predicted", predicted)
job.register("sums", sums)
history = History()
loader = DataLoader(Images(), 4, shuffle=True, drop_last=True, num_workers=1)
model, optimizer, loader, history = job.prepare(net, optimizer, loader, history)

for _ in job.epochs(3):
    for _ in job.each_rank():
        sums.update(loss=0.0, hits=0, scores=torch.zeros(7, 5))
    for images, labels in loader:
        scores = model(images)
        loss = nn.functional.cross_entropy(scores, labels)
        predicted.copy_(scores.argmax(1))
        sums["loss"] += loss.item()
        sums["hits"] += int((predicted == labels).sum())
        sums["scores"] = sums["scores"] + 0.1 * scores.detach().mean(0)
        job.log(loss=loss)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if job.stepped:
            history.steps.append(torch.stack(job.gather(predicted)))
    mean, most = job.reduce(sums, "mean"), job.reduce(sums, "max")
    history.epochs.append([mean, most, job.reduce(sums), [one["hits"] for one in job.gather(sums)]])
    for group in optimizer.param_groups:
        group["lr"] = 0.05 / (1 + mean["loss"])
