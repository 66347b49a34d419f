"""Batches of a script's own order dealt out to the ESTs, one after the other.

A sampler that knows nothing of ranks gives one sequence of batches. Batch b goes to rank b mod N, as
Hugging Face accelerate's BatchSamplerShard deals them. Every rank must get as many batches as the others, and
of the same size where the size is known: what is missing at the end is taken from the beginning again, or
with drop_last what is too much is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from elastane_shards.errors import InvalidSettings

T = TypeVar("T")


def deal_batches(
    batches: Sequence[Sequence[T]], num_replicas: int, *, batch_size: int | None, drop_last: bool
) -> list[list[T]]:
    """The batches in the order of consumption: batch b of rank r is number b * num_replicas + r.

    batch_size: of every batch but the last, which may be short; None, or a size that the batches do not
    have: they are as they are, and whole ones are repeated. Raises InvalidSettings for no replicas.
    """
    if num_replicas < 1:
        raise InvalidSettings(f"{num_replicas} replicas", num_replicas=num_replicas)
    dealt = [list(batch) for batch in batches]
    size = batch_size if batch_size is not None and _cut_to(dealt, batch_size) else None
    if drop_last:
        if size is not None and dealt and len(dealt[-1]) < size:
            dealt.pop()
        return dealt[: len(dealt) // num_replicas * num_replicas]
    if not dealt:
        return dealt
    total = -(-len(dealt) // num_replicas) * num_replicas
    if size is None:
        given = len(dealt)
        dealt.extend(list(dealt[number % given]) for number in range(total - given))
        return dealt
    first = [sample for batch in dealt[:num_replicas] for sample in batch]
    again = first * (-(-num_replicas * size // len(first)))
    place = 0
    for number in range(len(dealt) - 1, total):
        if number == len(dealt):
            dealt.append([])
        wanted = size - len(dealt[number])
        dealt[number].extend(again[place : place + wanted])
        place += wanted
    return dealt


def _cut_to(batches: Sequence[Sequence[T]], size: int) -> bool:
    """Whether all batches have `size` samples, and the last at most so many."""
    if not batches:
        return True
    return all(len(batch) == size for batch in batches[:-1]) and 0 < len(batches[-1]) <= size
