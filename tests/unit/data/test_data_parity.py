"""The batches and states of every EST are those of stock DataLoaders, bit for bit."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, DistributedSampler, get_worker_info

from elastane.data import BatchSource
from slow import further, slow, slow_except
from unit.data.loader_runs import (
    DrawingDataset,
    Record,
    initial_contexts,
    run_ests,
    run_stock,
    through_the_wire,
)


@contextmanager
def started(loader: DataLoader[Any], num_ests: int) -> Iterator[BatchSource]:
    source = BatchSource(loader, num_ests)
    source.start()
    try:
        yield source
    finally:
        source.close()


def check_whole_run(loader: DataLoader[Any], ests: int, epochs: int) -> None:
    stock = run_stock(loader, ests, epochs)
    with started(loader, ests) as source:
        contexts = initial_contexts(ests)
        source.position(contexts, 0)
        records: dict[int, Record] = {}
        contexts, infos = run_ests(source, contexts, epochs * source.steps_per_epoch, records)
        positions = [(info.start, info.end) for info in infos]
        assert all(info.end - info.start == len(info.samples) for info in infos)
        assert contexts[0].position.epoch == epochs and contexts[0].position.batch == 0
    for rank, record in records.items():
        record.assert_equals(stock[rank])
    per_epoch = len(positions) // epochs
    for epoch in range(epochs):
        one = positions[epoch * per_epoch : (epoch + 1) * per_epoch]
        assert [start for start, _ in one] == [0, *(end for _, end in one[:-1])]


def init_that_draws(number: int) -> None:
    info = get_worker_info()
    assert info is not None and info.id == number
    seed = torch.initial_seed() % 2**32
    np.random.seed((seed + info.seed) % 2**32)
    random.seed(seed)
    torch.rand(3)


def keep_as_list(samples: list[Any]) -> dict[str, Any]:
    return {"list": samples, "draw": torch.rand(2), "sum": sum(sample[0] for sample in samples)}


CASES: dict[str, dict[str, Any]] = {
    "in process": {"num_workers": 0, "shuffle": True},
    "in process, in order, drop_last": {"num_workers": 0, "shuffle": False, "drop_last": True},
    "two data workers": {"num_workers": 2, "shuffle": True},
    "in order, drop_last": {"num_workers": 2, "drop_last": True},
    "three, deep prefetch": {"num_workers": 3, "shuffle": True, "prefetch_factor": 4},
    "more data workers than batches": {"num_workers": 5, "shuffle": True, "batch_size": 6},
    "worker_init_fn": {"num_workers": 2, "shuffle": True, "worker_init_fn": init_that_draws},
    "collate_fn": {"num_workers": 2, "shuffle": True, "collate_fn": keep_as_list},
    "persistent": {"num_workers": 2, "shuffle": True, "persistent_workers": True},
    "persistent, many": {"num_workers": 5, "shuffle": True, "persistent_workers": True, "batch_size": 6},
}


#: Beside cases with more: a function that draws, a sampler that shuffles, more data workers.
FURTHER = (
    "two data workers",
    "in order, drop_last",
    "persistent",
    "collate_fn",
    "more data workers than batches",
    "three, deep prefetch",  # with four ESTs
)
#: An even number of ESTs as well, in the trainer, in data workers that are forked anew, and in kept ones.
FOUR = ("in process, in order, drop_last", "three, deep prefetch", "persistent, many")


@pytest.mark.parametrize(
    ("case", "ests"),
    [
        *(pytest.param(case, 3, marks=further if case in FURTHER else ()) for case in CASES),
        *(pytest.param(case, 4, marks=slow) for case in FOUR),
    ],
)
def test_whole_run_equals_stock(case: str, ests: int) -> None:
    loader = DataLoader(DrawingDataset(), **{"batch_size": 2, **CASES[case]})
    check_whole_run(loader, ests, epochs=3)


@pytest.mark.parametrize(("shuffle", "drop_last"), [(True, True), (True, False), (False, True)])
def test_sampler_of_the_script_is_the_template(shuffle: bool, drop_last: bool) -> None:
    dataset = DrawingDataset(size=38)
    sampler = DistributedSampler(
        dataset, num_replicas=3, rank=0, shuffle=shuffle, seed=7, drop_last=drop_last
    )
    check_whole_run(DataLoader(dataset, batch_size=4, sampler=sampler, num_workers=0), 3, epochs=2)


def test_fewer_samples_than_ests_are_repeated_as_stock_does() -> None:
    check_whole_run(DataLoader(DrawingDataset(size=2), batch_size=3, shuffle=True), 5, epochs=2)


def test_big_batches_go_through_shared_memory() -> None:
    loader = DataLoader(DrawingDataset(size=18, floats=20_000), batch_size=4, shuffle=True, num_workers=2)
    check_whole_run(loader, 2, epochs=1)


class WholeBatches(DrawingDataset):
    def __getitems__(self, indices: list[int]) -> list[Any]:
        order = torch.randperm(len(indices)).tolist()
        return [self[indices[place]] for place in order]


@pytest.mark.parametrize("workers", [0, 2])
def test_getitems_of_the_dataset_is_used(workers: int) -> None:
    check_whole_run(DataLoader(WholeBatches(), batch_size=4, num_workers=workers), 2, epochs=1)


@pytest.mark.parametrize(
    "case", slow_except(["two data workers", "persistent", "in process"], "persistent", "in process")
)
def test_goes_on_in_the_middle_of_an_epoch_from_stored_contexts(case: str) -> None:
    loader = DataLoader(DrawingDataset(), **{"batch_size": 2, **CASES[case]})
    stock = run_stock(loader, 3, epochs=2)
    with started(loader, 3) as source:
        contexts = initial_contexts(3)
        source.position(contexts, 0)
        stored = [contexts]
        for _ in range(2 * source.steps_per_epoch):
            contexts, _ = run_ests(source, contexts, 1, {})
            stored.append(contexts)
        for step in (0, 1, 2, source.steps_per_epoch - 1, source.steps_per_epoch, len(stored) - 3):
            records: dict[int, Record] = {}
            again = through_the_wire(stored[step].values())
            source.position(again, step)
            run_ests(source, again, len(stored) - 1 - step, records)
            for rank, record in records.items():
                record.assert_equals(stock[rank], start=step)


@given(data=st.data())
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@pytest.mark.parametrize(
    "options",
    slow_except(
        [CASES["worker_init_fn"], CASES["persistent"], CASES["in process"]],
        CASES["in process"],
        further=[CASES["worker_init_fn"]],
    ),
)
def test_migration_between_workers(options: dict[str, Any], data: st.DataObject) -> None:
    """ESTs move at random between two workers, and uncommitted steps are replayed from old contexts."""
    loader = DataLoader(DrawingDataset(size=20), **{"batch_size": 2, **options})
    ests, epochs = 3, 2
    stock = run_stock(loader, ests, epochs)
    with started(loader, ests) as one, started(loader, ests) as other:
        stored = [initial_contexts(ests)]
        seen: dict[int, Record] = {rank: Record() for rank in range(ests)}
        while len(stored) <= epochs * one.steps_per_epoch:
            step = max(0, len(stored) - 1 - data.draw(st.integers(0, 1), label="replayed"))
            contexts = stored[step]
            del stored[step + 1 :]
            for record in seen.values():
                del record.batches[step:], record.draws[step:], record.states[step:]
            cut = data.draw(st.integers(0, ests), label="ESTs of the first worker")
            first = {rank: contexts[rank] for rank in range(cut)}
            second = {rank: contexts[rank] for rank in range(cut, ests)}
            one.position(first, step)
            other.position(second, step)
            left = epochs * one.steps_per_epoch - step
            for _ in range(data.draw(st.integers(1, max(1, left)), label="steps")):
                if len(stored) > epochs * one.steps_per_epoch:
                    break
                first, _ = run_ests(one, first, 1, seen)
                second, _ = run_ests(other, second, 1, seen)
                stored.append({**first, **second})
        for rank, record in seen.items():
            record.assert_equals(stock[rank])
