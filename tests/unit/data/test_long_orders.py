"""A script's sampler is iterated as far as it is needed: nothing depends on how long it is."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, RandomSampler, Sampler

from elastane.data import BatchSource, DataError, order, script_order, stock_loader
from elastane.data.order import orders_of
from elastane.data.script_order import ScriptOrder
from elastane_common.errors import UnsupportedError

DATA = list(range(1000))


def seeded() -> torch.Generator:
    generator = torch.Generator()
    generator.manual_seed(4)
    return generator


class Drawing(Sampler[int]):
    """Draws each index from global generators, when it is asked for it."""

    def __init__(self, length: int, told: int | None = None) -> None:
        self.length, self.told = length, told if told is not None else length

    def __iter__(self) -> Iterator[int]:
        for _ in range(self.length):
            yield random.randrange(500) + int(torch.randint(500, ()))

    def __len__(self) -> int:
        return self.told


class Endless(Sampler[int]):
    def __iter__(self) -> Iterator[int]:
        return itertools.count()  # type: ignore[return-value]


DRAWS = 32 * 700 + 5
ORDERS: dict[str, Callable[[], dict[str, Any]]] = {
    "replacement": lambda: {"sampler": RandomSampler(DATA, True, DRAWS), "batch_size": 3},
    "replacement, generator": lambda: {
        "sampler": RandomSampler(DATA, True, DRAWS, generator=seeded()),
        "batch_size": 7,
        "drop_last": True,
    },
    "replacement, batch_sampler": lambda: {
        "batch_sampler": BatchSampler(RandomSampler(DATA, True, DRAWS), 5, False)
    },
    "replacement, no batching": lambda: {"sampler": RandomSampler(DATA, True, DRAWS), "batch_size": None},
    "permutations": lambda: {"sampler": RandomSampler(DATA, num_samples=DRAWS), "batch_size": 4},
    "own": lambda: {"sampler": Drawing(DRAWS), "batch_size": 4},
    "knows ranks": lambda: {
        "batch_sampler": BatchSampler(DistributedSampler(range(DRAWS), 4, 0, seed=2), 3, True)  # type: ignore[arg-type]
    },
}


@pytest.mark.parametrize("name", ORDERS)
def test_an_order_begun_anywhere_is_the_whole_one_from_there_on(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader = DataLoader(DATA, **ORDERS[name]())  # type: ignore[arg-type]
    monkeypatch.setattr(script_order, "_SKIPPED_AT_ONCE", 32 * 99)
    order = ScriptOrder(loader, 4)
    whole = [order.index(1, rank, batch) for batch in range(order.batches) for rank in range(4)]
    for batch in (0, 1, 31, order.batches // 2, order.batches - 1, 2, order.batches - 2):
        for rank in (3, 0):
            assert order.index(1, rank, batch) == whole[batch * 4 + rank]
    late = ScriptOrder(loader, 4)
    assert late.index(1, 2, order.batches - 1) == whole[-2]


def test_the_order_is_that_of_the_sampler_gone_through_at_once() -> None:
    """And the script draws from the same generators in between."""
    torch.manual_seed(1), random.seed(1)
    expected = list(Drawing(DRAWS))
    order = ScriptOrder(DataLoader(DATA, batch_size=4, sampler=Drawing(DRAWS)), 2)  # type: ignore[arg-type]
    given: list[int] = []
    for batch in range(order.batches):
        for rank in range(2):
            given += order.index(1, rank, batch)
        torch.rand(3), random.random()
    assert given[:DRAWS] == expected and given[DRAWS:] == expected[: len(given) - DRAWS]


def test_ten_thousand_million_draws_cost_what_is_asked_for() -> None:
    sampler = RandomSampler(DATA, replacement=True, num_samples=10**10)
    loader = DataLoader(DATA, batch_size=5, sampler=sampler)  # type: ignore[arg-type]
    orders = orders_of(loader, 4, accumulation_steps=1, steps_per_epoch=None)
    assert orders.batches == 10**10 // 20 and orders.dataset_size == 10**10 // 5
    assert len(orders.batch(0, 3, 0).index) == 5
    stock = iter(stock_loader(loader, 4, 3).batch_sampler)  # type: ignore[call-overload]
    assert next(stock) == orders.index(0, 3, 0)
    far = orders.index(0, 1, 500_000)  # ten million draws on
    assert far == orders.index(0, 1, 500_000) and orders.index(0, 1, 500_001) != far
    windows = orders._order._epochs.values()  # type: ignore[attr-defined]
    assert sum(len(window._rounds) for window in windows) < 1000


def test_the_rounds_of_a_step_are_kept_for_all_ests_and_for_a_replay() -> None:
    taken: list[int] = []

    class Watched(Drawing):
        def __iter__(self) -> Iterator[int]:
            taken.append(0)
            return super().__iter__()

    loader = DataLoader(DATA, batch_size=4096, sampler=Watched(4096 * 26))  # type: ignore[arg-type]
    orders = orders_of(loader, 2, accumulation_steps=4, steps_per_epoch=None)
    taken.clear()
    for step in (0, 0, 1, 2):
        for rank in range(2):
            for batch in range(4):
                orders.index(0, rank, 4 * step + batch)
    assert len(taken) == 1


def test_a_length_that_was_believed_is_checked_at_the_epoch_s_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script_order, "_INDICES_COUNTED", 10_000)
    for told, given in ((DRAWS * 2, str(DRAWS // 8 + 1)), (DRAWS // 2, "more than 1401|2048")):
        sampler = Drawing(DRAWS, told)
        order = ScriptOrder(DataLoader(DATA, batch_size=4, sampler=sampler), 2)  # type: ignore[arg-type]
        assert order.batches == math.ceil(math.ceil(told / 4) / 2)
        order.index(0, 0, 0)
        with pytest.raises(DataError, match=rf"({given}) batches in epoch 0, but {order.batches} by its len"):
            for batch in range(order.batches):
                order.index(0, 0, batch)


def test_an_order_without_an_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script_order, "_INDICES_MAX", 50_000)
    loader = DataLoader(DATA, batch_size=4, sampler=Endless())  # type: ignore[arg-type]
    with pytest.raises(UnsupportedError, match="more than 50000 indices") as caught:
        ScriptOrder(loader, 2)
    assert "__len__" in caught.value.hint


def test_an_order_that_is_expected_is_shuffled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds: list[int] = []
    shuffled = order._randperm
    monkeypatch.setattr(order, "_randperm", lambda size, seed: (seeds.append(seed), shuffled(size, seed))[1])
    source = BatchSource(DataLoader(DATA, 10, shuffle=True), 2)  # type: ignore[arg-type]
    source.expect(3 * source.steps_per_epoch - 1)
    assert len(seeds) == 1
    expected = BatchSource(DataLoader(DATA, 10, shuffle=True), 2).index(2, 1, 4)  # type: ignore[arg-type]
    assert source.index(2, 1, 4) == expected and seeds == [seeds[0]] * 2


def test_a_scripts_sampler_is_not_called_before_its_time() -> None:
    calls: list[int] = []

    class Told(Sampler[int]):
        def __iter__(self) -> Iterator[int]:
            calls.append(1)
            return iter(range(len(DATA)))

        def __len__(self) -> int:
            return len(DATA)

    source = BatchSource(DataLoader(DATA, 10, sampler=Told()), 2)  # type: ignore[arg-type]
    counted = len(calls)
    source.expect(3 * source.steps_per_epoch)
    assert len(calls) == counted
    source.index(3, 0, 0)
    assert len(calls) > counted
