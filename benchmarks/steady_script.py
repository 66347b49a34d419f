"""The training loop that steady_step.py times: one model, batch and optimizer under three frameworks.

    steady_script.py elastane|torchft --model M --batch B ... --baton SOCKET

"elastane" is stock DDP if ELASTANE_MODE=ddp. `baton` decides which side trains when.
"""

import argparse
import contextlib
import hashlib
import os
from datetime import timedelta

import torch
from baton import Runner
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

VOCABULARY = 256


class Pool(Dataset):
    """A dataset of any length over a small pool of samples, so that only the step costs time."""

    def __init__(self, length, inputs, targets):
        self.length, self.inputs, self.targets = length, inputs, targets

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        place = index % len(self.inputs)
        return self.inputs[place], self.targets[place]


class Block(nn.Module):
    """A residual block of a small ResNet."""

    def __init__(self, channels, out_channels, stride):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, out_channels, 3, stride, 1, bias=False),
            nn.BatchNorm2d(out_channels),
            nn.ReLU(),
            nn.Conv2d(out_channels, out_channels, 3, 1, 1, bias=False),
            nn.BatchNorm2d(out_channels),
        )
        self.short = (
            nn.Identity()
            if stride == 1 and channels == out_channels
            else nn.Sequential(
                nn.Conv2d(channels, out_channels, 1, stride, bias=False), nn.BatchNorm2d(out_channels)
            )
        )

    def forward(self, x):
        return functional.relu(self.body(x) + self.short(x))


class Gpt(nn.Module):
    """A decoder-only transformer with learned positions and dropout."""

    def __init__(self, layers, width, heads, length):
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(
                width, heads, 4 * width, 0.1, "gelu", batch_first=True, norm_first=True
            )
            for _ in range(layers)
        )
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, VOCABULARY)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(length), persistent=False)

    def forward(self, x):
        hidden = self.tokens(x) + self.places(torch.arange(x.shape[1]))
        for block in self.blocks:
            hidden = block(hidden, self.mask, is_causal=True)
        return self.head(self.norm(hidden))


def mlp():
    net = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
    return net, torch.randn(512, 64), torch.randint(0, 10, (512,))


def cnn():
    widths, layers = [16, 16, 32, 32, 64, 64], []
    for before, after in zip([16, *widths], widths, strict=False):
        layers.append(Block(before, after, 1 if before == after else 2))
    stem = [nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)]
    return nn.Sequential(*stem, *layers, *head), torch.randn(512, 3, 16, 16), torch.randint(0, 10, (512,))


def gpt(layers, width, heads, length):
    sequences = torch.randint(0, VOCABULARY, (512, length + 1))
    return Gpt(layers, width, heads, length), sequences[:, :-1], sequences[:, 1:].contiguous()


MODELS = {
    "mlp": mlp,
    "cnn": cnn,
    "gpt": lambda: gpt(4, 128, 4, 32),
    "gpt-25m": lambda: gpt(8, 512, 8, 32),
}


def loss_of(model, x, y):
    return functional.cross_entropy(model(x).flatten(0, -2), y.flatten())


def digest(model, optimizer):
    """Return a digest of weights, buffers and optimizer state."""
    states = optimizer.state_dict()["state"].values()
    tensors = [*model.state_dict().values(), *(v for state in states for v in state.values())]
    sha = hashlib.sha256()
    for tensor in tensors:
        sha.update(tensor.detach().contiguous().flatten().view(torch.uint8).numpy())
    return sha.hexdigest()


def train_elastane(args):
    import elastane

    torch.manual_seed(0)
    job = elastane.init(seed=1)
    net, inputs, targets = MODELS[args.model]()
    samples = args.steps * args.accumulate * args.batch * job.num_ests
    loader = DataLoader(Pool(samples, inputs, targets), args.batch)
    adam = torch.optim.AdamW(net.parameters(), lr=1e-4)
    model, optimizer, loader = job.prepare(net, adam, loader, accumulation_steps=args.accumulate)
    runner, turn = None, 0
    for _ in job.epochs(1):
        for x, y in loader:
            # Counted here, as `job.step` would wait for a step that was applied ahead. The few bodies that
            # are run twice, to see whether they can be, belong to the last step.
            step, rest = divmod(turn, args.turns)
            if rest == 0 and step < args.steps:
                runner = runner or Runner(args.baton, args.segment, leader=job.is_leader)
                runner.step(step)
            turn += 1
            loss = loss_of(model, x, y) / args.accumulate
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        runner.end(digest=digest(net, adam))


def train_torchft(args):
    from torch.distributed import TCPStore
    from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo

    torch.set_num_threads(1)
    torch.manual_seed(0)
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    net, inputs, targets = MODELS[args.model]()
    adam = torch.optim.AdamW(net.parameters(), lr=1e-4)

    def load(state):
        net.load_state_dict(state["model"])
        adam.load_state_dict(state["optimizer"])

    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=60)),
        load_state_dict=load,
        state_dict=lambda: {"model": net.state_dict(), "optimizer": adam.state_dict()},
        min_replica_size=2,
        rank=0,
        world_size=1,
        store_addr="127.0.0.1",
        store_port=store.port,
        hostname="127.0.0.1",
        replica_id=f"replica_{args.rank}",
    )
    model, optimizer = DistributedDataParallel(manager, net), Optimizer(manager, adam)
    runner = Runner(args.baton, args.segment, leader=args.rank == 0)
    for step, (x, y) in enumerate(DataLoader(Pool(args.steps * args.batch, inputs, targets), args.batch)):
        runner.step(step)
        optimizer.zero_grad()
        loss_of(model, x, y).backward()
        optimizer.step()
    runner.end()
    manager.shutdown(wait=False)
    os._exit(0)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("framework", choices=("elastane", "torchft"))
    parser.add_argument("--model", choices=MODELS, required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--segment", type=int, required=True)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--turns", type=int, default=1, help="mini-batches of a worker in a step")
    parser.add_argument("--rank", type=int, default=0, help="torchft's replica")
    parser.add_argument("--baton", required=True)
    args = parser.parse_args()
    with contextlib.suppress(BrokenPipeError):
        {"elastane": train_elastane, "torchft": train_torchft}[args.framework](args)


if __name__ == "__main__":
    main()
