"""A causal transformer with tied weights: precisions, activation checkpointing, static_graph."""

import argparse
import contextlib

import torch
from parts import SmallTransformer, Windows
from torch import nn
from torch.utils.data import DataLoader

import elastane

parser = argparse.ArgumentParser()
parser.add_argument(
    "--precision", choices=["float32", "bf16-autocast", "fp16-scaler", "bf16-parameters"], default="float32"
)
parser.add_argument("--checkpointing", choices=["", "plain", "reentrant"], default="")
parser.add_argument("--static-graph", action="store_true")
args = parser.parse_args()

job = elastane.init(seed=6)
net = SmallTransformer(checkpointing=args.checkpointing)
if args.precision == "bf16-parameters":
    net = net.to(torch.bfloat16)
optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=12)
# So large a scale overflows in the first steps: those are skipped, by all ranks, and the scale is halved.
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**19, growth_interval=3)
scaler = scaler if args.precision == "fp16-scaler" else None
loader = DataLoader(Windows(), 4, shuffle=True)
if scaler is None:
    model, optimizer, loader, scheduler = job.prepare(
        net, optimizer, loader, scheduler, static_graph=args.static_graph
    )
else:
    model, optimizer, loader, scheduler, scaler = job.prepare(
        net, optimizer, loader, scheduler, scaler, static_graph=args.static_graph
    )


def autocast() -> contextlib.AbstractContextManager[None]:
    if args.precision in ("bf16-autocast", "fp16-scaler"):
        return torch.autocast("cpu", torch.bfloat16 if args.precision == "bf16-autocast" else torch.float16)
    return contextlib.nullcontext()


for _ in job.epochs(2):
    for windows in loader:
        with autocast():
            scores = model(windows[:, :-1])
            loss = nn.functional.cross_entropy(scores.flatten(0, 1).float(), windows[:, 1:].flatten())
        job.log(loss=loss, **({"scale": scaler.get_scale()} if scaler else {}))
        optimizer.zero_grad()
        if scaler is None:
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
        else:
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
        scheduler.step()
