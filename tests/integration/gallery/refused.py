"""What cannot be exact, and is refused with words: one case at a time."""

import argparse
import os

import numpy as np
import torch
import torch.distributed as dist
from parts import Images, Texts, small_cnn
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

import elastane

CASES = (
    "sparse", "compiled", "static-accumulation", "two-backwards", "unused", "dataset-generator",
    "stream", "late-draw", "late-buffer", "closure", "unfrozen", "clipped, not zeroed", "scheduler",
    "collective", "asked", "no_sync", "late group", "hidden scaler", "read ahead", "looked at",
    "uneven-draw", "train-mode", "seed-and-rank", "summed gradients", "launcher's variable", "early leader",
)  # fmt: skip
parser = argparse.ArgumentParser()
parser.add_argument("case", choices=CASES)
case = parser.parse_args().case


class Drawing(Images):
    """Draws from a generator that nobody was told of."""

    def __init__(self) -> None:
        super().__init__()
        self.rng = np.random.default_rng(1)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        image, label = super().__getitem__(index)
        return image * float(self.rng.uniform(0.9, 1.1)), label


class Endless(IterableDataset):
    """No state_dict, and no data worker that could go through it again."""

    def __iter__(self):
        while True:
            yield torch.randn(3, 8, 8), torch.randint(0, 5, ())


job = elastane.init(seed=None if case == "seed-and-rank" else 1)
if case == "launcher's variable" and int(os.environ.get("RANK", -1)) != -1:
    dist.init_process_group()
if case == "seed-and-rank":
    mine = 1 + job.rank
    torch.manual_seed(mine)
data = {"dataset-generator": Drawing, "stream": Endless, "sparse": Texts}.get(case, Images)()
net: nn.Module = nn.Sequential(nn.Embedding(40, 5, sparse=True)) if case == "sparse" else small_cnn()
if case == "unused":
    net.register_parameter("never", nn.Parameter(torch.zeros(3)))
if case in ("late-buffer", "train-mode"):
    net = nn.Sequential(nn.Flatten(), nn.Linear(192, 5), nn.BatchNorm1d(5))
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
if case == "unfrozen":
    next(net.parameters()).requires_grad_(False)
decay = torch.optim.lr_scheduler.StepLR(optimizer, 1) if case == "scheduler" else None
loader = DataLoader(data, 1 if case == "sparse" else 4, drop_last=case in ("late-buffer", "train-mode"))
if case == "compiled":
    net.compile(backend="aot_eager")
options = {
    "stream": {"steps_per_epoch": 4},
    "static-accumulation": {"static_graph": True, "accumulation_steps": 2},
    "summed gradients": {"accumulation_steps": 2},
}.get(case, {})
model, optimizer, loader = job.prepare(net, optimizer, loader, **options)

hidden = torch.amp.GradScaler("cpu", init_scale=8.0)
batches = loader
if case == "uneven-draw":
    np.random.permutation(5)
if case == "early leader" and job.is_leader:
    print("made once")
for epoch in job.epochs(2):
    if case == "train-mode" and epoch:
        net(torch.randn(4, 3, 8, 8))
    if case == "late group":
        optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(1))]})
    if case == "looked at":
        next(iter(loader))
    if case == "read ahead":
        batches = list(loader)
    for inputs, labels in batches:
        if case == "unfrozen":
            net.requires_grad_(True)
        scores = model(inputs).mean(1) if case == "sparse" else model(inputs)
        loss = nn.functional.cross_entropy(scores, labels)
        if case != "clipped, not zeroed":
            optimizer.zero_grad()

        def closure(loss: torch.Tensor = loss) -> torch.Tensor:
            loss.backward()
            return loss

        if case == "clipped, not zeroed":
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 0.1)
            optimizer.step()
            continue
        if case == "closure":
            optimizer.step(closure)
            continue
        if case == "collective":
            dist.all_reduce(loss)
        if case == "asked" and dist.is_available() and dist.is_initialized():
            loss = loss / dist.get_world_size()
        if case == "no_sync":
            with model.no_sync():
                loss.backward()
        if case == "hidden scaler":
            hidden.scale(loss).backward()
            hidden.step(optimizer)
        loss.backward(retain_graph=case == "two-backwards")
        if case == "two-backwards":
            loss.backward()
        if case == "summed gradients":
            for parameter in net.parameters():
                parameter.grad.clamp_(-0.01, 0.01)
        if case == "late-draw":
            torch.rand(1)
        if case == "late-buffer":
            model(inputs)
        optimizer.step()
        if decay is not None:
            decay.step()
