"""What the script's DataLoader becomes: the options that keep the bits, and a refusal for the others.

A stock script under DistributedDataParallel gives each rank a DataLoader with a DistributedSampler.
`sampler_settings` reads from the one DataLoader a script has what those samplers must be, and refuses,
before training, whatever would silently give other batches than the stock ranks would get.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Sized
from dataclasses import dataclass
from typing import Any

from torch.utils.data import (
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    MapDataPipe,
    RandomSampler,
    SequentialSampler,
)
from torch.utils.data.datapipes.datapipe import _MapDataPipeSerializationWrapper

from elastane.errors import UnsupportedError


@dataclass(frozen=True, slots=True)
class SamplerSettings:
    """The DistributedSampler of every EST, but for its rank."""

    num_replicas: int
    shuffle: bool
    seed: int
    drop_last: bool

    def build(self, dataset: Dataset[Any], rank: int) -> DistributedSampler[Any]:
        """Torch's own sampler of EST `rank`."""
        return DistributedSampler(
            dataset,
            num_replicas=self.num_replicas,
            rank=rank,
            shuffle=self.shuffle,
            seed=self.seed,
            drop_last=self.drop_last,
        )


def sampler_settings(loader: DataLoader[Any], num_ests: int) -> SamplerSettings:
    """The settings of the ESTs' samplers: from the script's DistributedSampler, else from shuffle=.

    Called once, by `prepare`. Raises UnsupportedError that names the option and says what to do.
    """
    _check_dataset(loader)
    _check_options(loader)
    sampler = loader.sampler
    if type(sampler) is SequentialSampler:
        settings = SamplerSettings(num_ests, shuffle=False, seed=0, drop_last=False)
    elif type(sampler) is RandomSampler:
        _check_random_sampler(sampler)
        settings = SamplerSettings(num_ests, shuffle=True, seed=0, drop_last=False)
    elif type(sampler) is DistributedSampler:
        settings = _of_distributed_sampler(loader, sampler, num_ests)
    else:
        raise _unsupported(
            "sampler",
            f"is a {type(sampler).__name__}",
            "use shuffle=True, or a DistributedSampler(dataset, num_replicas=job.num_ests, rank=0)",
        )
    _check_steps(loader, settings)
    return settings


def stock_loader(loader: DataLoader[Any], num_replicas: int, rank: int) -> DataLoader[Any]:
    """The DataLoader that rank `rank` of a stock run has; the caller calls `sampler.set_epoch`."""
    settings = sampler_settings(loader, num_replicas)
    return DataLoader(
        loader.dataset,
        batch_size=loader.batch_size,
        sampler=settings.build(loader.dataset, rank),
        num_workers=loader.num_workers,
        collate_fn=loader.collate_fn,
        pin_memory=loader.pin_memory,
        drop_last=loader.drop_last,
        timeout=loader.timeout,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
        prefetch_factor=loader.prefetch_factor,
        persistent_workers=loader.persistent_workers,
    )


def _check_dataset(loader: DataLoader[Any]) -> None:
    dataset = loader.dataset
    if isinstance(dataset, IterableDataset):
        raise _unsupported(
            "dataset",
            "is an IterableDataset, which cannot be split by sample or continued in the middle",
            "give it __len__ and __getitem__, or go through it with a dynamic dataset of the task queue",
        )
    if isinstance(dataset, (MapDataPipe, _MapDataPipeSerializationWrapper)):
        raise _unsupported(
            "dataset", "is a MapDataPipe, which shards itself", "use a plain map-style Dataset"
        )
    if not isinstance(dataset, Sized):
        raise _unsupported("dataset", "has no length", "give it __len__")
    if len(dataset) == 0:
        raise _unsupported("dataset", "has 0 samples", "check its path and filters")


def _check_options(loader: DataLoader[Any]) -> None:
    kind = type(loader)
    if kind.__iter__ is not DataLoader.__iter__ or kind._get_iterator is not DataLoader._get_iterator:
        raise _unsupported("loader", f"is a {kind.__name__} with its own iteration", "use torch's DataLoader")
    if loader.batch_size is None:
        if loader.batch_sampler is not None:
            raise _unsupported("batch_sampler", "is the script's own", "use batch_size and shuffle")
        raise _unsupported("batch_size", "is None (no batching)", "set batch_size")
    if loader.generator is not None:
        raise _unsupported(
            "generator",
            "is set, and its state belongs to no EST",
            "leave it out and seed with elastane.init(seed=...)",
        )
    if not loader.in_order:
        raise _unsupported("in_order", "is False, so the order is left to chance", "leave it out")
    context = loader.multiprocessing_context
    if loader.num_workers > 0 and context is not None and not _is_fork(context):
        raise _unsupported(
            "multiprocessing_context",
            "is not fork",
            "leave it out: data workers are forked before there is a thread or channel to hurt",
        )
    if loader.num_workers > 0 and loader.prefetch_factor == 0:
        raise _unsupported("prefetch_factor", "is 0", "set at least 1")
    if loader.num_workers == 0 and loader.timeout != 0:
        raise _unsupported("timeout", "is set without data workers", "leave it out or set num_workers")


def _is_fork(context: Any) -> bool:
    name = context if isinstance(context, str) else context.get_start_method()
    return (name or multiprocessing.get_start_method()) == "fork"


def _check_random_sampler(sampler: RandomSampler) -> None:
    if sampler.replacement:
        raise _unsupported("sampler", "draws with replacement", "use shuffle=True")
    if sampler._num_samples is not None:
        raise _unsupported("sampler", "sets num_samples", "use shuffle=True, on a Subset to shorten an epoch")
    if sampler.generator is not None:
        raise _unsupported(
            "sampler", "has its own generator", "use a DistributedSampler with seed= to choose the order"
        )


def _of_distributed_sampler(
    loader: DataLoader[Any], sampler: DistributedSampler[Any], num_ests: int
) -> SamplerSettings:
    if sampler.num_replicas != num_ests:
        raise _unsupported(
            "sampler",
            f"splits the data in {sampler.num_replicas}, but the job has {num_ests} ESTs",
            "pass num_replicas=job.num_ests",
        )
    if len(sampler.dataset) != len(loader.dataset):  # type: ignore[arg-type]
        raise _unsupported("sampler", "is of another dataset than the loader", "pass it the loader's dataset")
    return SamplerSettings(num_ests, sampler.shuffle, sampler.seed, sampler.drop_last)


def _check_steps(loader: DataLoader[Any], settings: SamplerSettings) -> None:
    samples = len(settings.build(loader.dataset, 0))
    if samples == 0 or (loader.drop_last and samples < (loader.batch_size or 1)):
        raise _unsupported(
            "drop_last",
            f"leaves no step: each EST has {samples} samples, a batch is {loader.batch_size}",
            "leave drop_last out, or make the batch smaller",
        )


def _unsupported(option: str, what: str, hint: str) -> UnsupportedError:
    return UnsupportedError(f"the DataLoader's {option} {what}", hint=hint, option=option)
