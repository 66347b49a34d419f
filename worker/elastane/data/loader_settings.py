"""Checks of the script's DataLoader: options that keep the bits are read, others refused.

A stock script under DistributedDataParallel gives each rank a DataLoader with a sampler for its rank. From
the script's single DataLoader, `check_loader` reads how the ESTs' batches are chosen, and refuses, before
training, options that would silently give other batches than the stock ranks would get.
"""

from __future__ import annotations

import enum
import multiprocessing
from collections.abc import Sized
from dataclasses import dataclass
from typing import Any

from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    IterDataPipe,
    MapDataPipe,
    RandomSampler,
    SequentialSampler,
)
from torch.utils.data.datapipes.datapipe import (
    _IterDataPipeSerializationWrapper,
    _MapDataPipeSerializationWrapper,
)

from elastane_common.errors import UnsupportedError


class OrderKind(enum.Enum):
    """Source of a batch's samples."""

    DISTRIBUTED = "DistributedSampler"
    """Torch's DistributedSampler, also in place of shuffle=True and of no sampler."""
    SCRIPT = "the script's sampler"
    """A sampler or batch_sampler of the script, see `elastane.data.script_order`."""
    ITERABLE = "the IterableDataset"
    """The dataset itself, see `elastane.data.iterable`."""


@dataclass(frozen=True, slots=True)
class SamplerSettings:
    """Settings of every EST's DistributedSampler, except its rank."""

    num_replicas: int
    shuffle: bool
    seed: int
    drop_last: bool

    def build(self, dataset: Dataset[Any], rank: int) -> DistributedSampler[Any]:
        """Build torch's sampler of EST `rank`."""
        return DistributedSampler(
            dataset,
            num_replicas=self.num_replicas,
            rank=rank,
            shuffle=self.shuffle,
            seed=self.seed,
            drop_last=self.drop_last,
        )


def check_loader(loader: DataLoader[Any], num_ests: int, *, steps_per_epoch: int | None = None) -> OrderKind:
    """Return how the loader's batches are chosen. Called by `prepare` and by `elastane doctor`.

    steps_per_epoch: mini-batches of an EST in an epoch of a dataset without a length. Raises UnsupportedError
    that names the option and says what to do.
    """
    _check_dataset(loader)
    _check_options(loader)
    if isinstance(loader.dataset, IterableDataset):
        _check_iterable(loader, steps_per_epoch)
        return OrderKind.ITERABLE
    if steps_per_epoch is not None:
        raise _unsupported(
            "dataset",
            f"has a length, so that steps_per_epoch={steps_per_epoch} does not decide the epoch",
            "leave steps_per_epoch out; a sampler with num_samples= makes an epoch shorter",
        )
    settings = sampler_settings(loader, num_ests)
    if settings is None:
        return OrderKind.SCRIPT
    _check_steps(loader, settings)
    return OrderKind.DISTRIBUTED


def sampler_settings(loader: DataLoader[Any], num_ests: int) -> SamplerSettings | None:
    """Return the settings of the ESTs' DistributedSamplers, from the script's own or from shuffle=.

    None if the order is of another kind. Raises UnsupportedError for a DistributedSampler that does not fit.
    """
    if isinstance(loader.dataset, IterableDataset):
        return None
    if loader.batch_size is None and loader.batch_sampler is not None:
        return None
    if loader.batch_sampler is not None and type(loader.batch_sampler) is not BatchSampler:
        return None
    sampler = loader.sampler
    if type(sampler) is SequentialSampler:
        return SamplerSettings(num_ests, shuffle=False, seed=0, drop_last=False)
    if type(sampler) is RandomSampler and _is_shuffle(sampler, loader):
        return SamplerSettings(num_ests, shuffle=True, seed=0, drop_last=False)
    if type(sampler) is DistributedSampler:
        return _of_distributed_sampler(loader, sampler, num_ests)
    return None


def _is_shuffle(sampler: RandomSampler, loader: DataLoader[Any]) -> bool:
    """True if shuffle=True created the sampler; a stock rank has a DistributedSampler in its place."""
    return not sampler.replacement and sampler._num_samples is None and sampler.generator is loader.generator


def _check_dataset(loader: DataLoader[Any]) -> None:
    dataset = loader.dataset
    if isinstance(dataset, (MapDataPipe, _MapDataPipeSerializationWrapper)):
        raise _unsupported(
            "dataset", "is a MapDataPipe, which shards itself", "use a plain map-style Dataset"
        )
    if isinstance(dataset, (IterDataPipe, _IterDataPipeSerializationWrapper)):
        raise _unsupported(
            "dataset", "is an IterDataPipe, which shards and seeds itself", "use a plain IterableDataset"
        )
    if isinstance(dataset, IterableDataset):
        return
    if not isinstance(dataset, Sized):
        raise _unsupported("dataset", "has no length", "give it __len__")
    if len(dataset) == 0:
        raise _unsupported("dataset", "has 0 samples", "check its path and filters")


def _check_iterable(loader: DataLoader[Any], steps_per_epoch: int | None) -> None:
    if steps_per_epoch is None:
        if not isinstance(loader.dataset, Sized):
            raise _unsupported(
                "dataset",
                "is an IterableDataset without a length",
                "give the number of mini-batches that each EST takes per epoch, job.prepare(..., "
                "steps_per_epoch=...), or give the dataset __len__",
            )
        if len(loader) == 0:
            raise _unsupported("dataset", "has a length that leaves no step", "check __len__ and drop_last")
    if loader.persistent_workers:
        raise _unsupported(
            "persistent_workers",
            "is set for an IterableDataset, whose copies would continue from where prefetching left them",
            "leave it out: Elastane's data workers run through all epochs in any case",
        )


def _check_options(loader: DataLoader[Any]) -> None:
    kind = type(loader)
    if kind.__iter__ is not DataLoader.__iter__ or kind._get_iterator is not DataLoader._get_iterator:
        raise _unsupported(
            "loader",
            f"is a {kind.__name__} with its own iteration",
            "use torch's DataLoader: the job itself keeps where each EST is in the data, and goes on from"
            " there",
        )
    if not loader.in_order:
        raise _unsupported("in_order", "is False, so the order is nondeterministic", "leave it out")
    if loader.generator is not None and loader.generator.device.type != "cpu":
        raise _unsupported(
            "generator", "is on a device, where torch's DataLoader fails", "use one on the CPU"
        )
    context = loader.multiprocessing_context
    if loader.num_workers > 0 and context is not None and not _is_fork(context):
        raise _unsupported(
            "multiprocessing_context",
            "is not fork",
            "leave it out: data workers are forked before there are any threads or channels",
        )
    if loader.num_workers > 0 and loader.prefetch_factor == 0:
        raise _unsupported("prefetch_factor", "is 0", "set it to at least 1")
    if loader.num_workers == 0 and loader.timeout != 0:
        raise _unsupported("timeout", "is set without data workers", "leave it out or set num_workers")


def _is_fork(context: Any) -> bool:
    name = context if isinstance(context, str) else context.get_start_method()
    return (name or multiprocessing.get_start_method()) == "fork"


def _of_distributed_sampler(
    loader: DataLoader[Any], sampler: DistributedSampler[Any], num_ests: int
) -> SamplerSettings:
    if sampler.num_replicas != num_ests:
        raise _unsupported(
            "sampler",
            f"splits the data into {sampler.num_replicas} parts, but the job has {num_ests} ESTs",
            "pass num_replicas=job.num_ests",
        )
    if len(sampler.dataset) != len(loader.dataset):  # type: ignore[arg-type]
        raise _unsupported(
            "sampler", "uses a different dataset than the loader", "pass it the loader's dataset"
        )
    return SamplerSettings(num_ests, sampler.shuffle, sampler.seed, sampler.drop_last)


def _check_steps(loader: DataLoader[Any], settings: SamplerSettings) -> None:
    samples = len(settings.build(loader.dataset, 0))
    if samples == 0 or (loader.drop_last and samples < (loader.batch_size or 1)):
        raise _unsupported(
            "drop_last",
            f"leaves no step: each EST has {samples} samples, a batch is {loader.batch_size}",
            "omit drop_last, or use a smaller batch size",
        )


def _unsupported(option: str, what: str, hint: str) -> UnsupportedError:
    return UnsupportedError(f"the DataLoader's {option} {what}", hint=hint, option=option)
