"""Samplers of every kind: ESTs get what a stock rank's DataLoader gets, wherever they run."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from elastane.data import BatchSource, DataError, set_epoch, stock_loader
from elastane.rng import Generators
from elastane_common.errors import UnsupportedError
from slow import further, slow_except
from unit.data.elastic_runs import Setup, check_elastic
from unit.data.loader_runs import DrawingDataset

SIZE = 37


def seeded(seed: int = 5) -> torch.Generator:
    generator = torch.Generator()
    generator.manual_seed(seed)
    return generator


class DrawingSampler(Sampler[int]):
    """Draws from all global generators, and from one of its own of each kind."""

    def __init__(self, dataset: DrawingDataset) -> None:
        self.data_source = dataset
        self.own = {"numpy": np.random.default_rng(3), "legacy": np.random.RandomState(4)}
        self.python = random.Random(5)
        self.torch = seeded(6)
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        order = list(range(len(self.data_source)))
        random.shuffle(order)
        self.python.shuffle(order)
        shift = int(np.random.randint(9)) + int(self.own["numpy"].integers(9)) + self.epoch
        shift += int(self.own["legacy"].randint(9)) + int(torch.randint(9, (1,), generator=self.torch))
        yield from order[shift:] + order[:shift]

    def __len__(self) -> int:
        return len(self.data_source)


class ByLength:
    """A batch_sampler whose batches are of different sizes, shuffled."""

    def __init__(self, dataset: DrawingDataset) -> None:
        self.dataset = dataset

    def __iter__(self) -> Iterator[list[int]]:
        batches = [[place, place + 1] if place % 4 else [place] for place in range(0, SIZE - 1, 2)]
        for number in torch.randperm(len(batches)).tolist():
            yield batches[number]

    def __len__(self) -> int:
        return SIZE // 2


class OwnDistributed(DistributedSampler[Any]):
    """Every rank sees its samples twice."""

    def __iter__(self) -> Iterator[int]:
        for index in super().__iter__():
            yield from (index, index)


def distributed(dataset: DrawingDataset) -> DistributedSampler[Any]:
    return DistributedSampler(dataset, num_replicas=3, rank=0, seed=2)


SAMPLERS: dict[str, Callable[[DrawingDataset], dict[str, Any]]] = {
    "weighted": lambda data: {"sampler": WeightedRandomSampler([1.0, 3.0] * 15, 31), "batch_size": 4},
    "weighted, generator": lambda data: {
        "sampler": WeightedRandomSampler([1.0, 3.0] * 15, 31, generator=seeded()),
        "batch_size": 4,
        "drop_last": True,
    },
    "replacement": lambda data: {"sampler": RandomSampler(data, replacement=True), "batch_size": 4},
    "num_samples": lambda data: {"sampler": RandomSampler(data, num_samples=50), "batch_size": 4},
    "generator": lambda data: {"sampler": RandomSampler(data, generator=seeded()), "batch_size": 5},
    "subset": lambda data: {"sampler": SubsetRandomSampler(range(3, 36)), "batch_size": 3},
    "list": lambda data: {"sampler": list(range(5, 30)), "batch_size": 2, "drop_last": True},
    "own": lambda data: {"sampler": DrawingSampler(data), "batch_size": 4},
    "batch_sampler": lambda data: {"batch_sampler": ByLength(data)},
    "BatchSampler": lambda data: {"batch_sampler": BatchSampler(SequentialSampler(data), 4, False)},
    "BatchSampler, own": lambda data: {"batch_sampler": BatchSampler(DrawingSampler(data), 4, True)},
    "subclass of DistributedSampler": lambda data: {
        "sampler": OwnDistributed(data, num_replicas=3, rank=0, seed=9),
        "batch_size": 5,
    },
    "BatchSampler of DistributedSampler": lambda data: {
        "batch_sampler": BatchSampler(distributed(data), 4, False)
    },
    "DistributedSampler": lambda data: {"sampler": distributed(data), "batch_size": 4},
    "no batching": lambda data: {"batch_size": None, "shuffle": True},
    "no batching, own": lambda data: {"batch_size": None, "sampler": DrawingSampler(data)},
    "shuffle, generator": lambda data: {"batch_size": 4, "shuffle": True, "generator": seeded()},
    "in order, generator": lambda data: {"batch_size": 4, "generator": seeded(), "drop_last": True},
}


def setup_of(name: str, **options: Any) -> Callable[[], Setup]:
    def build() -> Setup:
        dataset = DrawingDataset(SIZE)
        given = SAMPLERS[name](dataset)
        # The setup of a script may draw what it likes.
        random.seed(), np.random.seed(), torch.seed()
        return Setup(DataLoader(dataset, **given, **options))

    return build


@pytest.mark.parametrize("name", SAMPLERS)
def test_every_sampler_gives_the_stock_batches(name: str) -> None:
    check_elastic(setup_of(name))


@pytest.mark.parametrize(
    "name",
    slow_except(
        ["weighted", "batch_sampler", "no batching, own", "shuffle, generator"],
        "batch_sampler",
        "shuffle, generator",
    ),
)
def test_every_sampler_gives_the_stock_batches_with_data_workers(name: str) -> None:
    check_elastic(setup_of(name, num_workers=2), ests=2, resume_at=(2,))


@pytest.mark.parametrize(
    "name", ["weighted", "batch_sampler", "subclass of DistributedSampler", "no batching"]
)
@pytest.mark.parametrize("accumulation_steps", [2, 3])
def test_steps_of_several_mini_batches(name: str, accumulation_steps: int) -> None:
    check_elastic(setup_of(name), accumulation_steps=accumulation_steps)


@pytest.mark.parametrize(
    "options",
    [
        {},
        pytest.param({"num_workers": 2}, marks=further),
        {"num_workers": 2, "persistent_workers": True},
    ],
)
def test_the_loop_may_draw_from_the_loaders_generator(options: dict[str, Any]) -> None:
    def build() -> Setup:
        generator = seeded()
        loader = DataLoader(DrawingDataset(20), batch_size=2, shuffle=True, generator=generator, **options)
        return Setup(loader, draw=lambda: float(torch.rand((), generator=generator)))

    check_elastic(build, ests=2, epochs=3, resume_at=(3, 5, 7))


def test_a_generator_that_is_registered_or_global_is_kept_once() -> None:
    def registered() -> Setup:
        generator = seeded()
        loader = DataLoader(DrawingDataset(20), batch_size=2, shuffle=True, generator=generator)
        draw = lambda: float(torch.rand((), generator=generator))  # noqa: E731
        return Setup(loader, {"order": generator}, draw=draw)

    def of_torch() -> Setup:
        loader = DataLoader(DrawingDataset(20), batch_size=2, generator=torch.default_generator)
        return Setup(loader)

    check_elastic(registered)
    check_elastic(of_torch)


def orders(loader: DataLoader[Any], ranks: int, epoch: int) -> list[list[Any]]:
    """What the samplers of a stock run's loaders give each rank."""
    result = []
    for rank in range(ranks):
        own = stock_loader(loader, ranks, rank)
        set_epoch(own, epoch)
        result.append([list(batch) for batch in own.batch_sampler or ()])
    return result


def test_orders_differ_from_epoch_to_epoch_and_are_the_same_when_asked_again() -> None:
    for name in ("weighted", "replacement", "generator", "own", "batch_sampler"):
        loader = setup_of(name)().loader
        assert orders(loader, 2, 0) != orders(loader, 2, 1)
        assert orders(loader, 2, 1) == orders(setup_of(name)().loader, 2, 1)


def test_every_generator_of_a_sampler_moves_with_the_epoch() -> None:
    for left_out in ("numpy", "legacy", "python", "torch"):
        sampler = DrawingSampler(DrawingDataset(SIZE))
        sampler.set_epoch = lambda epoch: None  # type: ignore[method-assign]
        drawn = []
        for epoch in range(2):
            fresh = copy.deepcopy(sampler)
            loader = DataLoader(DrawingDataset(SIZE), sampler=fresh, batch_size=4)
            drawn.append(orders(loader, 1, epoch))
        assert drawn[0] != drawn[1], left_out


def test_a_single_list_is_dealt_in_turn_and_filled_up_from_its_start() -> None:
    loader = DataLoader(DrawingDataset(40), sampler=list(range(10)), batch_size=2)
    assert orders(loader, 3, 0) == [[[0, 1], [6, 7]], [[2, 3], [8, 9]], [[4, 5], [0, 1]]]
    loader = DataLoader(DrawingDataset(40), sampler=list(range(10)), batch_size=2, drop_last=True)
    assert orders(loader, 3, 0) == [[[0, 1]], [[2, 3]], [[4, 5]]]


def test_making_an_order_leaves_generators_and_the_script_s_sampler_as_they_were() -> None:
    dataset = DrawingDataset(SIZE)
    sampler = DrawingSampler(dataset)
    before, own = Generators().capture(), copy.deepcopy(sampler)
    source = BatchSource(DataLoader(dataset, sampler=sampler, batch_size=4), 2)
    source._orders.batch(3, 0, 0)
    assert Generators().capture() == before
    assert sampler.python.getstate() == own.python.getstate() and sampler.epoch == 0
    assert sampler.own["numpy"].bit_generator.state == own.own["numpy"].bit_generator.state
    assert torch.equal(sampler.torch.get_state(), own.torch.get_state())


def test_a_generator_of_the_dataset_is_none_of_the_sampler_s() -> None:
    """The sampler holds the dataset, which is neither copied nor seeded."""
    dataset = DrawingDataset(SIZE)
    dataset.generator = seeded(8)  # type: ignore[attr-defined]
    before = dataset.generator.get_state()  # type: ignore[attr-defined]
    BatchSource(DataLoader(dataset, sampler=DrawingSampler(dataset), batch_size=4), 2)
    assert torch.equal(dataset.generator.get_state(), before)  # type: ignore[attr-defined]


class Growing(Sampler[int]):
    def __init__(self) -> None:
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        return iter(range(8 + 8 * self.epoch))


def test_epochs_of_different_lengths_are_an_error() -> None:
    loader = DataLoader(DrawingDataset(SIZE), sampler=Growing(), batch_size=2)
    source = BatchSource(loader, 2)
    with pytest.raises(DataError, match="4 batches in epoch 1, but 2 in epoch 0"):
        source._orders.batch(1, 0, 0)
    own = stock_loader(loader, 2, 0)
    set_epoch(own, 1)
    with pytest.raises(DataError, match="in epoch 1"):
        list(own)


def test_sampler_that_cannot_be_copied_is_refused() -> None:
    sampler = iter([1, 2, 3])
    running = (index for index in sampler)
    with pytest.raises(UnsupportedError, match="cannot be copied") as caught:
        BatchSource(DataLoader(DrawingDataset(SIZE), sampler=running, batch_size=1), 2)
    assert caught.value.facts["option"] == "sampler"


class FixedRank(DistributedSampler[Any]):
    @property  # type: ignore[override]
    def rank(self) -> int:
        return 0

    @rank.setter
    def rank(self, value: int) -> None:
        if value:
            raise AttributeError("fixed")


def test_sampler_whose_rank_is_fixed_is_refused() -> None:
    sampler = FixedRank(DrawingDataset(SIZE), num_replicas=2, rank=0)
    with pytest.raises(UnsupportedError, match="rank of a FixedRank cannot be set"):
        BatchSource(DataLoader(DrawingDataset(SIZE), sampler=sampler, batch_size=1), 2)


def test_of_a_sampler_that_does_not_know_ranks_a_warning_says_so() -> None:
    data = DrawingDataset(SIZE)
    weighted = WeightedRandomSampler([1.0] * SIZE, SIZE)
    ranked = DistributedSampler(data, num_replicas=2, rank=0)
    loaders = {
        "WeightedRandomSampler": DataLoader(data, 4, sampler=weighted),
        "DrawingSampler": DataLoader(data, batch_sampler=BatchSampler(DrawingSampler(data), 4, False)),
    }
    for name, loader in loaders.items():
        assert BatchSource(loader, 2).order_warning().startswith(f"the loader's {name} does not know ranks")
        assert not BatchSource(loader, 1).order_warning()
    for loader in (
        DataLoader(data, 4, shuffle=True),
        DataLoader(data, 4),
        DataLoader(data, 4, sampler=ranked),
    ):
        assert not BatchSource(loader, 2).order_warning()
