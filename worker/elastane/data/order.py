"""Samples of each EST's batches.

The rules (DistributedSampler's order, DataLoader's batches, the numbering of positions) are those of
`elastane_shards.samplers`, combined here with torch's permutation. An epoch's order is held once per worker,
whatever the number of its ESTs, in eight bytes a sample; stock keeps a Python list per rank.
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch.utils.data import DataLoader

from elastane.data.loader_settings import OrderKind, SamplerSettings, check_loader, sampler_settings
from elastane.data.script_order import ScriptOrder
from elastane_shards import samplers

_EPOCHS_KEPT = 2  # around an epoch's end, ESTs of one worker are in two epochs


@dataclass(frozen=True, slots=True)
class BatchInfo:
    """The samples of a batch.

    samples: dataset indices in the batch's order; empty if it is unknown whether each of them occurs once in
    an epoch (a script's own sampler, an IterableDataset). start, end: range of positions in the order of
    consumption (step by step, in a step EST by EST, and in an EST mini-batch by mini-batch): the ranges of an
    epoch's batches are contiguous. A position is a sample, or a whole batch if samples is empty. index:
    argument for a torch fetcher.
    """

    start: int
    end: int
    samples: tuple[int, ...]
    index: Any = None


class Orders(Protocol):
    """Batches of every epoch and EST.

    batches: of one EST in an epoch. dataset_size: positions in an epoch without a remainder. step_size:
    positions of one EST in a full global step.
    """

    batches: int
    dataset_size: int
    step_size: int

    def batch(self, epoch: int, rank: int, batch: int) -> BatchInfo:
        """Return batch number `batch` of EST `rank` in `epoch`."""
        ...

    def index(self, epoch: int, rank: int, batch: int) -> Any:
        """Return the `BatchInfo.index` of that batch alone."""
        ...


def orders_of(
    loader: DataLoader[Any], num_ests: int, *, accumulation_steps: int, steps_per_epoch: int | None
) -> Orders:
    """Return the orders of the script's loader.

    Raises UnsupportedError for a loader that cannot be reproduced exactly.
    """
    kind = check_loader(loader, num_ests, steps_per_epoch=steps_per_epoch)
    if kind is OrderKind.ITERABLE:
        batches = steps_per_epoch if steps_per_epoch is not None else len(loader)
        index = None if loader.batch_size is None else [None] * loader.batch_size
        return IterableOrders(batches, index, num_ests, accumulation_steps)
    if kind is OrderKind.SCRIPT:
        # A step may be run again, and data workers make batches in advance.
        ahead = loader.num_workers * max(1, loader.prefetch_factor or 0)
        order = ScriptOrder(loader, num_ests, rounds_kept=2 * accumulation_steps + ahead)
        return ScriptOrders(order, num_ests, accumulation_steps)
    settings = sampler_settings(loader, num_ests)
    assert settings is not None
    size = len(loader.dataset)  # type: ignore[arg-type]
    return DistributedOrders(size, loader.batch_size, loader.drop_last, settings, accumulation_steps)


class DistributedOrders:
    """Batches of DistributedSamplers; an epoch's order is computed at first use.

    size: samples in the dataset. batch_size: None: single samples, not batched. drop_last: the loader's, for
    the last batch (the sampler has its own). accumulation_steps: mini-batches of an EST in one global step.
    """

    def __init__(
        self,
        size: int,
        batch_size: int | None,
        drop_last: bool,
        settings: SamplerSettings,
        accumulation_steps: int = 1,
    ) -> None:
        self._batched = batch_size is not None
        self._batch_size = batch_size if batch_size is not None else 1
        self._drop_last = drop_last
        self._settings = settings
        self._accumulation_steps = accumulation_steps
        self._samples = samplers.samples_per_rank(size, settings.num_replicas, drop_last=settings.drop_last)
        self._orders: dict[int, Sequence[int]] = {}
        self.dataset_size = size
        self.step_size = self._batch_size * accumulation_steps
        self.batches = samplers.steps_per_epoch(self._samples, self._batch_size, drop_last=drop_last)

    def batch(self, epoch: int, rank: int, batch: int) -> BatchInfo:
        samples, size, ests = self._samples, self._batch_size, self._settings.num_replicas
        start, end = samplers.micro_bounds(
            rank,
            batch,
            samples=samples,
            batch_size=size,
            num_replicas=ests,
            drop_last=self._drop_last,
            accumulation_steps=self._accumulation_steps,
        )
        indices = self._indices(epoch, rank, batch)
        return BatchInfo(start, end, tuple(indices), indices if self._batched else indices[0])

    def index(self, epoch: int, rank: int, batch: int) -> Any:
        indices = self._indices(epoch, rank, batch)
        return indices if self._batched else indices[0]

    def _indices(self, epoch: int, rank: int, batch: int) -> list[int]:
        places = samplers.batch_places(
            rank,
            batch,
            samples=self._samples,
            batch_size=self._batch_size,
            num_replicas=self._settings.num_replicas,
            drop_last=self._drop_last,
        )
        return list(self.order(epoch)[places.start : places.stop : places.step])

    def order(self, epoch: int) -> Sequence[int]:
        """Return the epoch's order of all samples; the first call shuffles them."""
        order = self._orders.get(epoch)
        if order is None:
            while len(self._orders) >= _EPOCHS_KEPT:
                del self._orders[next(iter(self._orders))]
            order = self._orders[epoch] = samplers.distributed_order(
                self.dataset_size,
                seed=self._settings.seed,
                epoch=epoch,
                num_replicas=self._settings.num_replicas,
                shuffle=self._settings.shuffle,
                drop_last=self._settings.drop_last,
                randperm=_randperm,
            )
        return order


class _CountedOrders:
    """Orders of which only the number of batches is known: a batch is one position."""

    def __init__(self, batches: int, num_ests: int, accumulation_steps: int) -> None:
        self._num_ests = num_ests
        self._accumulation_steps = accumulation_steps
        self.batches = batches
        self.dataset_size = batches * num_ests
        self.step_size = accumulation_steps

    def _bounds(self, rank: int, batch: int) -> tuple[int, int]:
        return samplers.micro_bounds(
            rank,
            batch,
            samples=self.batches,
            batch_size=1,
            num_replicas=self._num_ests,
            drop_last=False,
            accumulation_steps=self._accumulation_steps,
        )


class ScriptOrders(_CountedOrders):
    """Batches of the script's own sampler, which may repeat samples or omit some."""

    def __init__(self, order: ScriptOrder, num_ests: int, accumulation_steps: int) -> None:
        super().__init__(order.batches, num_ests, accumulation_steps)
        self._order = order

    @property
    def dealt(self) -> str:
        """The sampler's class if it does not know ranks, so that its batches are dealt out; else empty."""
        return "" if self._order.knows_ranks else self._order.kind

    def batch(self, epoch: int, rank: int, batch: int) -> BatchInfo:
        return BatchInfo(*self._bounds(rank, batch), (), self.index(epoch, rank, batch))

    def index(self, epoch: int, rank: int, batch: int) -> Any:
        return self._order.index(epoch, rank, batch)


class IterableOrders(_CountedOrders):
    """Batches of an IterableDataset; its fetcher always gets the same index, a number of samples."""

    def __init__(self, batches: int, index: Any, num_ests: int, accumulation_steps: int) -> None:
        super().__init__(batches, num_ests, accumulation_steps)
        self._index = index

    def batch(self, epoch: int, rank: int, batch: int) -> BatchInfo:
        return BatchInfo(*self._bounds(rank, batch), (), self._index)

    def index(self, epoch: int, rank: int, batch: int) -> Any:
        return self._index


def _randperm(size: int, seed: int) -> Sequence[int]:
    """Return torch.randperm of a generator seeded with `seed`, as an array of int64."""
    generator = torch.Generator()
    generator.manual_seed(seed)
    order = torch.randperm(size, generator=generator, device="cpu")
    indices = array("q")
    indices.frombytes(ctypes.string_at(order.data_ptr(), order.nbytes))
    return indices
