"""The seed of each EST, its context at the start of step 0, and of each task."""

from __future__ import annotations

import hashlib

from elastane.context import EstContext
from elastane.registry import Registry
from elastane.rng import Generators, seed_all


def initial_contexts(
    generators: Generators, registry: Registry, num_ests: int, seed: int | None
) -> dict[int, EstContext]:
    """Return contexts at the start of step 0: seeded with seed + r, or all from the current RNG state.

    Registered items are taken as they are. The process's RNG state is restored.
    """
    before, items = generators.capture(), registry.capture()
    contexts = {}
    for rank in range(num_ests):
        if seed is not None:
            seed_all(seed + rank)
        contexts[rank] = EstContext.initial(rank, generators.capture() | items)
    generators.restore(before)
    return contexts


def task_seed(seed: int, dataset: str, epoch: int, index: int) -> int:
    """Return the seed of a task: the same whoever runs it, however often."""
    digest = hashlib.sha256(f"{seed}/{dataset}/{epoch}/{index}".encode()).digest()
    return int.from_bytes(digest[:4])
