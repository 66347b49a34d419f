"""Which samples belong to which EST, and to which batch.

The rules (DistributedSampler's order, DataLoader's batches, the numbering of positions) are those of
`elastane_shards.samplers`; torch's permutation comes in here. An epoch's order is held once per worker,
whatever the number of its ESTs, in eight bytes a sample; stock keeps a Python list per rank.
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from elastane.data.settings import SamplerSettings
from elastane_shards import samplers

_EPOCHS_KEPT = 2  # around an epoch's end, ESTs of one worker are in two epochs


@dataclass(frozen=True, slots=True)
class BatchInfo:
    """Which samples a batch is made of.

    samples: their dataset indices, in the batch's order. start, end: the positions they count for, in
    the order of consumption (step by step, and in a step EST by EST): the batches of an epoch lie end to end.
    """

    start: int
    end: int
    samples: tuple[int, ...]


class EpochOrders:
    """The batches of every epoch and EST; an epoch's order is computed when it is first asked for.

    size: samples in the dataset. drop_last: the loader's, for the last batch (the sampler has its own).
    """

    def __init__(self, size: int, batch_size: int, drop_last: bool, settings: SamplerSettings) -> None:
        self._size = size
        self._batch_size = batch_size
        self._drop_last = drop_last
        self._settings = settings
        self._samples = samplers.samples_per_rank(size, settings.num_replicas, drop_last=settings.drop_last)
        self._orders: dict[int, Sequence[int]] = {}
        self.batches = samplers.steps_per_epoch(self._samples, batch_size, drop_last=drop_last)

    def batch(self, epoch: int, rank: int, batch: int) -> BatchInfo:
        """Batch number `batch` of EST `rank` in `epoch`."""
        samples, size, ests = self._samples, self._batch_size, self._settings.num_replicas
        places = samplers.batch_places(
            rank, batch, samples=samples, batch_size=size, num_replicas=ests, drop_last=self._drop_last
        )
        start, end = samplers.task_bounds(
            rank, batch, samples=samples, batch_size=size, num_replicas=ests, drop_last=self._drop_last
        )
        order = self._order(epoch)
        return BatchInfo(start, end, tuple(order[places.start : places.stop : places.step]))

    def _order(self, epoch: int) -> Sequence[int]:
        order = self._orders.get(epoch)
        if order is None:
            while len(self._orders) >= _EPOCHS_KEPT:
                del self._orders[next(iter(self._orders))]
            order = self._orders[epoch] = samplers.distributed_order(
                self._size,
                seed=self._settings.seed,
                epoch=epoch,
                num_replicas=self._settings.num_replicas,
                shuffle=self._settings.shuffle,
                drop_last=self._settings.drop_last,
                randperm=_randperm,
            )
        return order


def _randperm(size: int, seed: int) -> Sequence[int]:
    """torch.randperm of a generator seeded with `seed`, as an array of int64."""
    generator = torch.Generator()
    generator.manual_seed(seed)
    order = torch.randperm(size, generator=generator, device="cpu")
    indices = array("q")
    indices.frombytes(ctypes.string_at(order.data_ptr(), order.nbytes))
    return indices
