"""Which samples belong to which EST, and to which batch.

The order of an epoch is that of `torch.utils.data.DistributedSampler`: a permutation of the dataset
(torch.randperm seeded with seed + epoch, or none), padded or cut to a multiple of N, dealt out to the
ranks one by one. It is held once per worker as one int64 tensor, whatever the number of its ESTs;
stock keeps a Python list per rank.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from elastane.data.settings import SamplerSettings

_EPOCHS_KEPT = 2  # around an epoch's end, ESTs of one worker are in two epochs


@dataclass(frozen=True, slots=True)
class BatchInfo:
    """Which samples a batch is made of.

    samples: their dataset indices, in the batch's order. start, end: the positions they count for in
    the epoch's order of all ranks, which is contiguous, step after step and in a step EST after EST:
    with n samples for each of N ESTs the batches of all steps and ESTs cover [0, n * N) exactly once.
    """

    start: int
    end: int
    samples: tuple[int, ...]


class EpochOrders:
    """The batches' indices of every epoch and EST; computed when an epoch is first asked for.

    size: samples in the dataset. samples_per_est: after padding or cutting, for one EST.
    """

    def __init__(
        self, size: int, samples_per_est: int, batch_size: int, drop_last: bool, settings: SamplerSettings
    ) -> None:
        self._size = size
        self._samples_per_est = samples_per_est
        self._batch_size = batch_size
        self._settings = settings
        self._orders: dict[int, torch.Tensor] = {}
        full, rest = divmod(samples_per_est, batch_size)
        self.batches = full if drop_last or not rest else full + 1

    def batch(self, epoch: int, rank: int, batch: int) -> BatchInfo:
        """The batch number `batch` of EST `rank` in `epoch`."""
        assert 0 <= batch < self.batches, f"batch {batch} of {self.batches}"
        ests = self._settings.num_replicas
        first = batch * self._batch_size
        last = min(first + self._batch_size, self._samples_per_est)
        samples = self._order(epoch)[first * ests + rank : last * ests : ests]
        start = first * ests + rank * (last - first)
        return BatchInfo(start, start + last - first, tuple(samples.tolist()))

    def _order(self, epoch: int) -> torch.Tensor:
        order = self._orders.get(epoch)
        if order is None:
            while len(self._orders) >= _EPOCHS_KEPT:
                del self._orders[next(iter(self._orders))]
            order = self._orders[epoch] = self._compute(epoch)
        return order

    def _compute(self, epoch: int) -> torch.Tensor:
        """int64 of shape (samples_per_est * N,); EST r has every N-th from r on."""
        if self._settings.shuffle:
            generator = torch.Generator()
            generator.manual_seed(self._settings.seed + epoch)
            order = torch.randperm(self._size, generator=generator, device="cpu")
        else:
            order = torch.arange(self._size, device="cpu")
        total = self._samples_per_est * self._settings.num_replicas
        if total <= self._size:
            return order[:total]
        return order.repeat(-(-total // self._size))[:total]
