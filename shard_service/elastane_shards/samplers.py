"""The samples an EST takes in a step: the rules of DistributedSampler and DataLoader as functions.

The order of an epoch is a list of dataset indices, padded or cut to a multiple of N; EST r takes every N-th
index starting at r, and its loader cuts those into batches. Nothing here imports torch: the caller passes in
`torch.randperm` of a seeded generator, the only part of torch needed.

A step's samples are numbered in two ways. A *place in the order* is where DistributedSampler put a sample,
strided over ESTs (`batch_places`). A *position* counts samples as they are consumed, step by step and in each
step EST by EST, so each lockstep task is one range and the ranges of an epoch are contiguous (`task_bounds`):
the audit checks them for gaps and duplicates.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from elastane_shards.errors import InvalidRequest, InvalidSettings, InvalidSource

Randperm = Callable[[int, int], Sequence[int]]
"""(n, seed) -> a permutation of 0..n-1 as plain integers: `torch.randperm(n, generator=seeded).tolist()`."""


def samples_per_rank(size: int, num_replicas: int, *, drop_last: bool) -> int:
    """Samples per replica as in DistributedSampler.num_samples. Raises InvalidSource, InvalidSettings."""
    if size < 1:
        raise InvalidSource(f"a dataset of {size} samples has no order", size=size)
    if num_replicas < 1:
        raise InvalidSettings(f"{num_replicas} replicas", num_replicas=num_replicas)
    return size // num_replicas if drop_last else -(-size // num_replicas)


def distributed_order(
    size: int,
    *,
    seed: int,
    epoch: int,
    num_replicas: int,
    shuffle: bool,
    drop_last: bool,
    randperm: Randperm,
) -> Sequence[int]:
    """Return the epoch's order for all replicas, identical to torch.utils.data.DistributedSampler's.

    Returns samples_per_rank * num_replicas dataset indices: cut at the end with drop_last, else padded by
    repeating the order from its start. Raises InvalidSource and InvalidSettings, the latter also when
    `randperm` returns the wrong number of indices.
    """
    total = samples_per_rank(size, num_replicas, drop_last=drop_last) * num_replicas
    order: Sequence[int] = randperm(size, seed + epoch) if shuffle else range(size)
    if len(order) != size:
        raise InvalidSettings(f"randperm({size}) gave {len(order)} indices", size=size, given=len(order))
    if total == size:
        return order
    if total < size:
        return order[:total]
    repeats = -(-total // size)
    return (list(order) * repeats)[:total]


def steps_per_epoch(samples: int, batch_size: int, *, drop_last: bool) -> int:
    """Number of batches a DataLoader makes of one EST's `samples`; drop_last is the DataLoader's."""
    if batch_size < 1:
        raise InvalidSettings(f"batches of {batch_size} samples", batch_size=batch_size)
    return samples // batch_size if drop_last else -(-samples // batch_size)


def batch_length(step: int, samples: int, batch_size: int, *, drop_last: bool) -> int:
    """Number of samples each EST takes in a step of the epoch; the last batch may be short.

    step: counted from the epoch's start. samples: number per EST and epoch. Raises InvalidRequest when the
    epoch has no such step.
    """
    steps = steps_per_epoch(samples, batch_size, drop_last=drop_last)
    if not 0 <= step < steps:
        raise InvalidRequest(f"no step {step} in an epoch of {steps}", step=step, steps_per_epoch=steps)
    return min(batch_size, samples - step * batch_size)


def batch_places(
    rank: int, step: int, *, samples: int, batch_size: int, num_replicas: int, drop_last: bool
) -> range:
    """Return the places in the epoch's order that form EST `rank`'s batch of a step.

    `[order[place] for place in batch_places(...)]` are the batch's dataset indices. Arguments and errors as
    for `batch_length`.
    """
    _check_rank(rank, num_replicas)
    length = batch_length(step, samples, batch_size, drop_last=drop_last)
    first = step * batch_size
    return range(first * num_replicas + rank, (first + length) * num_replicas, num_replicas)


def task_bounds(
    rank: int, step: int, *, samples: int, batch_size: int, num_replicas: int, drop_last: bool
) -> tuple[int, int]:
    """Return positions [start, end) of the lockstep task (step, rank), in the order of consumption.

    Arguments and errors as for `batch_length`.
    """
    _check_rank(rank, num_replicas)
    # Every batch before this step is full, so only this step's length depends on the end of the epoch.
    length = batch_length(step, samples, batch_size, drop_last=drop_last)
    start = step * batch_size * num_replicas + rank * length
    return start, start + length


def micro_bounds(
    rank: int,
    batch: int,
    *,
    samples: int,
    batch_size: int,
    num_replicas: int,
    drop_last: bool,
    accumulation_steps: int,
) -> tuple[int, int]:
    """Return positions [start, end) of EST `rank`'s mini-batch `batch` when several mini-batches make a step.

    batch: counted from the epoch's start. The mini-batches of a task (step, rank) are contiguous, and so are
    the tasks. Arguments and errors as for `batch_length`.
    """
    length = batch_length(batch, samples, batch_size, drop_last=drop_last)
    used = samples // batch_size * batch_size if drop_last else samples
    start, _ = task_bounds(
        rank,
        batch // accumulation_steps,
        samples=used,
        batch_size=batch_size * accumulation_steps,
        num_replicas=num_replicas,
        drop_last=False,
    )
    start += batch % accumulation_steps * batch_size
    return start, start + length


def _check_rank(rank: int, num_replicas: int) -> None:
    if not 0 <= rank < num_replicas:
        raise InvalidRequest(
            f"no virtual rank {rank} of {num_replicas}", rank=rank, num_replicas=num_replicas
        )
