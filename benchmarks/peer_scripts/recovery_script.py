"""The training that recovery.py disturbs: the same model, data and optimizer under three frameworks.

    recovery_script.py elastane|torchft|torchrun MODEL MARKS

Every worker appends "seconds step" to MARKS/<pid> when it applies a step, and "seconds ready" when it asks
to join. Trains until it is killed. Times are CLOCK_MONOTONIC of the machine.
"""

import os
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
from torch import nn

framework, model_name, marks = sys.argv[1], sys.argv[2], Path(sys.argv[3])
BATCH, FEATURES = 32, 64
SAMPLES = 6_000_000


class Noise(torch.utils.data.Dataset):
    """Random samples, generated on access, enough for any run."""

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        return torch.full((FEATURES,), (index % 97) / 97.0), index % 10


def build():
    torch.manual_seed(0)
    width, depth = {"small": (64, 2), "25m": (2048, 6)}[model_name]
    layers = [nn.Linear(FEATURES, width), nn.ReLU()]
    for _ in range(depth):
        layers += [nn.Linear(width, width), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Linear(width, 10))
    return model, torch.optim.AdamW(model.parameters(), lr=1e-4)


def mark(word):
    out.write(f"{time.monotonic()} {word}\n")
    out.flush()


def train_elastane():
    import elastane

    job = elastane.init(seed=1)
    model, optimizer = build()
    loader = torch.utils.data.DataLoader(Noise(), BATCH)
    model, optimizer, loader = job.prepare(model, optimizer, loader)
    mark("ready")
    for _ in job.epochs(1):
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            if job.stepped:
                mark(job.step)


def batches():
    """Yield endless mini-batches, for the frameworks without their own loader."""
    loader = torch.utils.data.DataLoader(Noise(), BATCH)
    while True:
        yield from loader


def train_torchft():
    from torch.distributed import TCPStore
    from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    model, inner = build()

    def load(state):
        model.load_state_dict(state["model"])
        inner.load_state_dict(state["optimizer"])

    mark("ready")
    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=60)),
        load_state_dict=load,
        state_dict=lambda: {"model": model.state_dict(), "optimizer": inner.state_dict()},
        min_replica_size=1,
        rank=0,
        world_size=1,
        store_addr="127.0.0.1",
        store_port=store.port,
        hostname="127.0.0.1",
        replica_id=f"replica_{os.getpid()}",
    )
    wrapped = DistributedDataParallel(manager, model)
    optimizer = Optimizer(manager, inner)
    for x, y in batches():
        optimizer.zero_grad()
        nn.functional.cross_entropy(wrapped(x), y).backward()
        before = manager.current_step()
        optimizer.step()
        if manager.current_step() > before and manager.is_participating():
            mark(manager.current_step())


def train_torchrun():
    import torch.distributed as dist

    mark("ready")
    dist.init_process_group("gloo")
    model, optimizer = build()
    wrapped = nn.parallel.DistributedDataParallel(model)
    for step, (x, y) in enumerate(batches()):
        optimizer.zero_grad()
        nn.functional.cross_entropy(wrapped(x), y).backward()
        optimizer.step()
        mark(step + 1)


torch.set_num_threads(1)
with (marks / str(os.getpid())).open("w") as out:
    {"elastane": train_elastane, "torchft": train_torchft, "torchrun": train_torchrun}[framework]()
