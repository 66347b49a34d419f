"""Checkpoints of a made-up state, written as several workers write them."""

from __future__ import annotations

import os

import torch

from elastane.state.checkpoint import checkpoint_name, take_snapshot, write_manifest, write_shard
from elastane.state.codec import encode
from elastane_proto.contexts import pack_loader

ESTS = 5
CONTEXTS = {
    rank: {
        "rng/python": bytes([rank]) * 40,
        "rng/torch_cpu": os.urandom(100),
        "loader": pack_loader(2, rank, None),
        "stream/0/rng/numpy": b"x",
        "item/mixup": b"",
    }
    for rank in range(ESTS)
}


def a_state(value: int, size: int = 3000) -> object:
    return {"weight": torch.full((size,), float(value)), "step": torch.tensor(value), "lr": value / 3}


def save(
    url: str,
    step: int,
    *,
    shards: int = 3,
    generation: int = 1,
    keep: int = 3,
    ests: int = ESTS,
    manifest: bool = True,
) -> str:
    """A whole checkpoint, as `shards` workers write it; the ESTs are dealt out in contiguous ranges."""
    name = checkpoint_name(step, generation)
    entries = []
    for shard in range(shards):
        ranks = range(shard * ests // shards, (shard + 1) * ests // shards)
        snapshot = take_snapshot(
            encode(a_state(step)),
            shard,
            shards,
            step=step,
            contexts={rank: CONTEXTS[rank] for rank in ranks},
            ready_order=(2, 0, 1),
        )
        entries.append(write_shard(url, name, shard, shards, snapshot))
    if manifest:
        write_manifest(url, name, step, ests, entries[::-1], keep)
    return name
