"""The order and the batches of each EST against torch's own DistributedSampler and DataLoader."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, DistributedSampler

from elastane_shards.errors import InvalidRequest, InvalidSettings, InvalidSource
from elastane_shards.samplers import (
    batch_places,
    distributed_order,
    samples_per_rank,
    steps_per_epoch,
    task_bounds,
)


def randperm(n: int, seed: int) -> list[int]:
    return torch.randperm(n, generator=torch.Generator().manual_seed(seed)).tolist()


def order_of(size: int, ranks: int, *, shuffle: bool = True, drop_last: bool = False) -> list[int]:
    return list(
        distributed_order(
            size, seed=5, epoch=3, num_replicas=ranks, shuffle=shuffle, drop_last=drop_last, randperm=randperm
        )
    )


def stock(size: int, ranks: int, rank: int, *, shuffle: bool, drop_last: bool) -> DistributedSampler[int]:
    dataset: list[int] = list(range(size))
    sampler = DistributedSampler(dataset, ranks, rank, shuffle=shuffle, seed=5, drop_last=drop_last)  # type: ignore[arg-type]
    sampler.set_epoch(3)
    return sampler


@settings(max_examples=150)
@given(st.integers(1, 70), st.integers(1, 9), st.booleans(), st.booleans())
def test_order_is_that_of_distributed_sampler(size: int, ranks: int, shuffle: bool, drop_last: bool) -> None:
    order = order_of(size, ranks, shuffle=shuffle, drop_last=drop_last)
    for rank in range(ranks):
        sampler = stock(size, ranks, rank, shuffle=shuffle, drop_last=drop_last)
        assert order[rank::ranks] == list(sampler)
        assert samples_per_rank(size, ranks, drop_last=drop_last) == len(sampler)


@settings(max_examples=60)
@given(st.integers(1, 70), st.integers(1, 5), st.integers(1, 9), st.booleans(), st.booleans(), st.booleans())
def test_batches_are_those_of_the_loader(
    size: int, ranks: int, batch_size: int, shuffle: bool, sampler_drops: bool, loader_drops: bool
) -> None:
    order = order_of(size, ranks, shuffle=shuffle, drop_last=sampler_drops)
    samples = samples_per_rank(size, ranks, drop_last=sampler_drops)
    steps = steps_per_epoch(samples, batch_size, drop_last=loader_drops)
    for rank in range(ranks):
        loader = DataLoader(
            list(range(size)),  # type: ignore[arg-type]
            batch_size,
            sampler=stock(size, ranks, rank, shuffle=shuffle, drop_last=sampler_drops),
            drop_last=loader_drops,
        )
        ours = [
            [
                order[place]
                for place in batch_places(
                    rank,
                    step,
                    samples=samples,
                    batch_size=batch_size,
                    num_replicas=ranks,
                    drop_last=loader_drops,
                )
            ]
            for step in range(steps)
        ]
        assert ours == [batch.tolist() for batch in loader]
        assert steps == len(loader)


@given(st.integers(0, 50), st.integers(1, 5), st.integers(1, 9), st.booleans())
def test_positions_lie_end_to_end(samples: int, ranks: int, batch_size: int, drop_last: bool) -> None:
    steps = steps_per_epoch(samples, batch_size, drop_last=drop_last)
    positions = [
        position
        for step in range(steps)
        for rank in range(ranks)
        for position in range(
            *task_bounds(
                rank,
                step,
                samples=samples,
                batch_size=batch_size,
                num_replicas=ranks,
                drop_last=drop_last,
            )
        )
    ]
    consumed = samples - samples % batch_size if drop_last else samples
    assert positions == list(range(consumed * ranks))


def test_an_unshuffled_order_takes_no_memory() -> None:
    order = distributed_order(
        10**12, seed=0, epoch=0, num_replicas=8, shuffle=False, drop_last=False, randperm=randperm
    )
    assert isinstance(order, range)
    assert order[7::8][-1] == 10**12 - 1


def test_impossible_arguments_are_refused() -> None:
    with pytest.raises(InvalidSource):
        order_of(0, 2)
    with pytest.raises(InvalidSettings):
        order_of(5, 0)
    with pytest.raises(InvalidSettings):
        steps_per_epoch(5, 0, drop_last=False)
    with pytest.raises(InvalidRequest):
        batch_places(2, 0, samples=1, batch_size=1, num_replicas=2, drop_last=False)
    with pytest.raises(InvalidRequest):
        batch_places(0, 2, samples=5, batch_size=2, num_replicas=2, drop_last=True)
    with pytest.raises(InvalidSettings):
        distributed_order(
            5,
            seed=0,
            epoch=0,
            num_replicas=2,
            shuffle=True,
            drop_last=False,
            randperm=lambda n, seed: [0] * (n - 1),
        )
