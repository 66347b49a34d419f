"""Dealing of the batches of a rank-unaware sampler to the ESTs, round-robin.

Batch b goes to rank b mod N, as in Hugging Face accelerate's BatchSamplerShard. Every rank gets the same
number of batches, of the same size if the size is known: the last round is filled up with samples from the
beginning or, with drop_last, dropped if incomplete.

The sequence may have any length: only two rounds of it are held at a time, the first and the current one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from elastane_shards.errors import InvalidSettings

T = TypeVar("T")


def deal_batches(
    batches: Iterable[Sequence[T]],
    num_replicas: int,
    *,
    batch_size: int | None,
    drop_last: bool,
    first_round: Sequence[Sequence[T]] = (),
) -> Iterator[list[T]]:
    """Yield the batches in the order of consumption: batch b of rank r is number b * num_replicas + r.

    batch_size: size of every batch but the last, which may be short. If it is None, or the batches have other
    sizes, batches are dealt unchanged and whole ones are repeated at the end. first_round: the epoch's first
    `num_replicas` batches, for `batches` that begin with a later round. Raises InvalidSettings if
    num_replicas < 1.
    """
    if num_replicas < 1:
        raise InvalidSettings(f"{num_replicas} replicas", num_replicas=num_replicas)
    return _dealt(batches, num_replicas, batch_size, drop_last, [list(batch) for batch in first_round])


def _dealt(
    batches: Iterable[Sequence[T]],
    num_replicas: int,
    batch_size: int | None,
    drop_last: bool,
    first: list[list[T]],
) -> Iterator[list[T]]:
    even = True  # all batches have batch_size; the last is checked once it is known to be the last
    held: list[list[T]] = []  # a round, which may be the last one
    for batch in batches:
        even = even and (not held or len(held[-1]) == batch_size)
        if len(held) == num_replicas:
            yield from held
            held = []
        held.append(list(batch))
        if len(first) < num_replicas:
            first.append(list(batch))
    if not held:
        return
    size = batch_size if batch_size is not None and even and 0 < len(held[-1]) <= batch_size else None
    if drop_last:
        whole = len(held) == num_replicas and (size is None or len(held[-1]) == size)
        yield from held if whole else ()
        return
    if size is None:
        missing = num_replicas - len(held)
        held.extend(list(first[number % len(first)]) for number in range(missing))
    else:
        _fill_up(held, num_replicas, size, first)
    yield from held


def _fill_up(held: list[list[T]], num_replicas: int, size: int, first: Sequence[Sequence[T]]) -> None:
    """Fill the last round up to `num_replicas` batches of `size` samples, with samples of the first round."""
    samples = [sample for batch in first for sample in batch]
    again = samples * (-(-num_replicas * size // len(samples)))
    place = 0
    for number in range(len(held) - 1, num_replicas):
        if number == len(held):
            held.append([])
        wanted = size - len(held[number])
        held[number].extend(again[place : place + wanted])
        place += wanted
