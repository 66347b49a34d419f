"""Computes the samples that Accelerate gives each rank, from epoch and rank alone.

Accelerate's `BatchSamplerShard` distributes the batches of the script's sampler to the ranks; Accelerate's
`prepare_data_loader` builds the shard used here, and so decides on split_batches, even_batches and a seedable
sampler. The order of a shuffled epoch comes from a generator whose state continues from epoch to epoch. A
worker may join in any epoch, so the state at the start of each is computed here.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any, Self

import torch
from accelerate.data_loader import BatchSamplerShard, SeedableRandomSampler
from torch.utils.data import BatchSampler, SequentialSampler

from elastane_common.errors import UnsupportedError


class EpochStates:
    """States of a sampler's generator at the beginning of each epoch; computed once, by iterating it.

    seeds: the DataLoader draws its own seed from this generator, before the sampler does.
    """

    def __init__(self, sampler: Any, *, seeds: bool) -> None:
        self._sampler, self._generator, self._seeds = sampler, sampler.generator, seeds
        self._states = [self._generator.get_state()]

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def at(self, epoch: int) -> torch.Tensor:
        """Return the state at the beginning of `epoch`."""
        while len(self._states) <= epoch:
            self.begin(self._generator, len(self._states) - 1)
            for _ in self._sampler:
                pass
            self._states.append(self._generator.get_state())
        return self._states[epoch]

    def begin(self, generator: torch.Generator, epoch: int) -> None:
        """Set the generator to the state that the sampler has at the beginning of `epoch`."""
        generator.set_state(self.at(epoch))
        if self._seeds:
            torch.empty((), dtype=torch.int64).random_(generator=generator)


class RankBatches(BatchSampler):
    """Batch sampler of one rank in one epoch; the caller sets `rank` and calls `set_epoch` before iterating.

    shard: as prepared by Accelerate, of any rank. generator: the DataLoader's own; `seeds` is True if the
    sampler shares it, so that the DataLoader draws its seed from it. Raises UnsupportedError for a sampler
    whose order depends on more than the script and the epoch.
    """

    def __init__(self, shard: BatchSamplerShard, generator: torch.Generator | None) -> None:
        self._shard = shard
        self.sampler: Any = shard.batch_sampler.sampler
        self.num_replicas: int = shard.num_processes
        self.rank = self.epoch = 0
        self.batch_size, self.drop_last = shard.batch_size, shard.drop_last
        self._states: EpochStates | None = None
        self.seeds = generator is not None and generator is getattr(self.sampler, "generator", None)
        if isinstance(self.sampler, SeedableRandomSampler | SequentialSampler):
            return
        if not isinstance(getattr(self.sampler, "generator", None), torch.Generator):
            raise UnsupportedError(
                f"the DataLoader's sampler is a {type(self.sampler).__name__} without a generator: each rank"
                " would draw an order of its own",
                hint="give it an attribute `generator`, a torch.Generator, from which it draws",
                option="sampler",
            )
        self._states = EpochStates(self.sampler, seeds=self.seeds)

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[list[int]]:
        self._begin()
        self._shard.process_index = self.rank
        yield from self._shard

    def __len__(self) -> int:
        return len(self._shard)

    def all_ranks(self) -> Iterator[list[int]]:
        """Yield the epoch's batches of all ranks: the first of each rank, then the second of each."""
        self._begin()
        order = _Order(list(self._shard.batch_sampler), self.batch_size, self.drop_last)
        shards = []
        for rank in range(self.num_replicas):
            shard = copy.copy(self._shard)
            shard.batch_sampler, shard.process_index = order, rank
            shards.append(iter(shard))
        while True:
            batches = [batch for shard in shards if (batch := next(shard, None)) is not None]
            if not batches:
                return
            yield from batches

    def _begin(self) -> None:
        """Reset the sampler to the beginning of the epoch."""
        if self._states is not None:
            self._states.begin(self.sampler.generator, self.epoch)
        elif isinstance(self.sampler, SeedableRandomSampler):
            self.sampler.set_epoch(self.epoch)


class _Order(BatchSampler):
    """An epoch's batches before they are distributed to ranks, iterated once for all of them."""

    def __init__(self, batches: Sequence[list[int]], batch_size: int | None, drop_last: bool) -> None:
        self._batches, self.batch_size, self.drop_last = batches, batch_size, drop_last  # type: ignore[assignment]

    def __iter__(self) -> Iterator[list[int]]:
        # The shard completes the last batch in place.
        return iter([list(batch) for batch in self._batches])

    def __len__(self) -> int:
        return len(self._batches)
