"""Options that would give other batches than stock ranks get are refused by name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    WeightedRandomSampler,
)

from elastane.data import BatchSource, SamplerSettings, sampler_settings
from elastane.errors import UnsupportedError


class Numbers(Dataset[int]):
    def __init__(self, size: int = 10) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> int:
        return index


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(10))


class NoLength(Dataset[int]):
    def __getitem__(self, index: int) -> int:
        return index


class OwnIteration(DataLoader[Any]):
    def __iter__(self) -> Any:
        return iter([1])


class OwnDistributed(DistributedSampler[Any]):
    pass


DATA = Numbers()
REFUSED = {
    "iterable": (lambda: DataLoader(Stream()), "dataset"),
    "no length": (lambda: DataLoader(NoLength()), "dataset"),
    "empty": (lambda: DataLoader(Numbers(0)), "dataset"),
    "batch_sampler": (
        lambda: DataLoader(DATA, batch_sampler=BatchSampler(SequentialSampler(DATA), 2, False)),
        "batch_sampler",
    ),
    "batch_size None": (lambda: DataLoader(DATA, batch_size=None), "batch_size"),
    "weighted": (lambda: DataLoader(DATA, sampler=WeightedRandomSampler([1.0] * 10, 10)), "sampler"),
    "own order": (lambda: DataLoader(DATA, sampler=[3, 1, 2]), "sampler"),
    "replacement": (lambda: DataLoader(DATA, sampler=RandomSampler(DATA, replacement=True)), "sampler"),
    "num_samples": (lambda: DataLoader(DATA, sampler=RandomSampler(DATA, num_samples=4)), "sampler"),
    "sampler generator": (
        lambda: DataLoader(DATA, sampler=RandomSampler(DATA, generator=torch.Generator())),
        "sampler",
    ),
    "other number of replicas": (
        lambda: DataLoader(DATA, sampler=DistributedSampler(DATA, num_replicas=2, rank=0)),
        "sampler",
    ),
    "other dataset": (
        lambda: DataLoader(DATA, sampler=DistributedSampler(Numbers(9), num_replicas=3, rank=0)),
        "sampler",
    ),
    "sampler subclass": (
        lambda: DataLoader(DATA, sampler=OwnDistributed(DATA, num_replicas=3, rank=0)),
        "sampler",
    ),
    "generator": (lambda: DataLoader(DATA, generator=torch.Generator()), "generator"),
    "in_order": (lambda: DataLoader(DATA, num_workers=1, in_order=False), "in_order"),
    "spawn": (
        lambda: DataLoader(DATA, num_workers=1, multiprocessing_context="spawn"),
        "multiprocessing_context",
    ),
    "loader subclass": (lambda: OwnIteration(DATA), "loader"),
    "timeout": (lambda: DataLoader(DATA, timeout=3), "timeout"),
    "no step": (lambda: DataLoader(DATA, batch_size=5, drop_last=True), "drop_last"),
}


@pytest.mark.parametrize(("build", "option"), REFUSED.values(), ids=REFUSED.keys())
def test_refused_with_the_name_of_the_option(build: Any, option: str) -> None:
    with pytest.raises(UnsupportedError) as caught:
        BatchSource(build(), 3)
    assert caught.value.facts["option"] == option
    assert option in str(caught.value) and caught.value.hint


def test_sampler_settings_follow_the_script() -> None:
    assert sampler_settings(DataLoader(DATA), 3) == SamplerSettings(3, False, 0, False)
    assert sampler_settings(DataLoader(DATA, shuffle=True), 3) == SamplerSettings(3, True, 0, False)
    own = DistributedSampler(DATA, num_replicas=3, rank=0, seed=4, drop_last=True)
    assert sampler_settings(DataLoader(DATA, sampler=own), 3) == SamplerSettings(3, True, 4, True)


def test_sizes() -> None:
    source = BatchSource(DataLoader(Numbers(20), batch_size=4, num_workers=0), 3)
    assert (source.dataset_size, source.batch_size, source.steps_per_epoch) == (20, 4, 2)
    assert BatchSource(DataLoader(Numbers(20), batch_size=4, drop_last=True), 3).steps_per_epoch == 1
