"""Options that would give other batches than stock ranks get are refused by name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset, WeightedRandomSampler
from torch.utils.data.datapipes.iter import IterableWrapper
from torch.utils.data.datapipes.map import SequenceWrapper

from elastane.data import BatchSource, OrderKind, SamplerSettings, check_loader, sampler_settings
from elastane_common.errors import UnsupportedError


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


class Sized(Stream):
    def __len__(self) -> int:
        return 3


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
    "other number of replicas": (
        lambda: DataLoader(DATA, sampler=DistributedSampler(DATA, num_replicas=2, rank=0)),
        "sampler",
    ),
    "other dataset": (
        lambda: DataLoader(DATA, sampler=DistributedSampler(Numbers(9), num_replicas=3, rank=0)),
        "sampler",
    ),
    "own sampler for other ranks": (
        lambda: DataLoader(DATA, sampler=OwnDistributed(DATA, num_replicas=2, rank=0)),
        "sampler",
    ),
    "own sampler, no step": (
        lambda: DataLoader(DATA, sampler=[1, 2, 3], drop_last=True, batch_size=2),
        "sampler",
    ),
    "iterable, no step": (lambda: DataLoader(Sized(), batch_size=5, drop_last=True), "dataset"),
    "iterable, persistent": (
        lambda: DataLoader(Sized(), num_workers=1, persistent_workers=True),
        "persistent_workers",
    ),
    "IterDataPipe": (lambda: DataLoader(IterableWrapper([1, 2])), "dataset"),
    "MapDataPipe": (lambda: DataLoader(SequenceWrapper([1, 2])), "dataset"),
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


def test_kinds_of_orders() -> None:
    weighted = DataLoader(DATA, sampler=WeightedRandomSampler([1.0] * 10, 10))
    assert sampler_settings(weighted, 3) is None and check_loader(weighted, 3) is OrderKind.SCRIPT
    assert check_loader(DataLoader(DATA, shuffle=True), 3) is OrderKind.DISTRIBUTED
    assert check_loader(DataLoader(Sized()), 3) is OrderKind.ITERABLE
    assert check_loader(DataLoader(Stream()), 3, steps_per_epoch=4) is OrderKind.ITERABLE
    with pytest.raises(UnsupportedError, match="steps_per_epoch=4 does not decide"):
        check_loader(DataLoader(DATA), 3, steps_per_epoch=4)


def test_steps_of_several_mini_batches() -> None:
    source = BatchSource(DataLoader(Numbers(20), batch_size=2), 2, accumulation_steps=3)
    assert (source.batches_per_epoch, source.steps_per_epoch, source.signature_batch_size) == (5, 2, 6)
    assert [source.batches_in_step(step) for step in range(4)] == [3, 2, 3, 2]
    infos = [source._orders.batch(0, rank, batch) for rank in (0, 1) for batch in (0, 1, 2)]
    assert [(info.start, info.end) for info in infos] == [(0, 2), (2, 4), (4, 6), (6, 8), (8, 10), (10, 12)]
    weighted = DataLoader(DATA, sampler=WeightedRandomSampler([1.0] * 10, 10), batch_size=2)
    source = BatchSource(weighted, 2, accumulation_steps=2)
    assert (source.batches_per_epoch, source.dataset_size, source.signature_batch_size) == (3, 6, 2)
    assert source._orders.batch(0, 0, 0).samples == ()


def test_sizes() -> None:
    source = BatchSource(DataLoader(Numbers(20), batch_size=4, num_workers=0), 3)
    assert (source.dataset_size, source.batch_size, source.steps_per_epoch) == (20, 4, 2)
    assert BatchSource(DataLoader(Numbers(20), batch_size=4, drop_last=True), 3).steps_per_epoch == 1
