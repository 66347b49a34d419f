"""Distances between generator states, beside the generators themselves."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
import torch

from elastane.rng import Generators
from elastane.rng_draws import advance, draws_between
from elastane_proto.contexts import NUMPY, PYTHON, TORCH_CPU, TORCH_DEVICE

COUNTS = (1, 2, 622, 623, 624, 625, 1247, 1248, 1249, 100_003)
DRAW: dict[str, Callable[[int], object]] = {
    PYTHON: lambda count: [random.getrandbits(32) for _ in range(count)],
    NUMPY: lambda count: np.random.randint(0, 2**32, count, dtype=np.uint32),
    TORCH_CPU: lambda count: torch.empty(count, dtype=torch.int32).random_(),
}


def seed(value: int) -> None:
    random.seed(value)
    np.random.seed(value)
    torch.manual_seed(value)


def state(name: str) -> bytes:
    return Generators().capture()[name]


@pytest.mark.parametrize("name", DRAW)
@pytest.mark.parametrize("first", [0, 1, 300, 624])
def test_the_number_and_the_state_after_it_are_those_of_the_generator(name: str, first: int) -> None:
    for count in COUNTS:
        seed(count)
        DRAW[name](first)  # 0: newly seeded
        before = state(name)
        DRAW[name](count)
        after = state(name)
        assert draws_between(name, before, after) == count
        assert advance(name, before, count) == after
        assert draws_between(name, after, before, 10_000) is None


@pytest.mark.parametrize("name", DRAW)
def test_an_advanced_state_draws_on_as_the_generator_does(name: str) -> None:
    generators = Generators()
    seed(5)
    before = generators.capture()
    DRAW[name](1_000)
    here = str(DRAW[name](700))
    generators.restore({**before, name: advance(name, before[name], 1_000)})
    assert str(DRAW[name](700)) == here


@pytest.mark.parametrize("name", DRAW)
def test_a_generator_seeded_anew_is_at_no_distance(name: str) -> None:
    seed(1)
    before = state(name)
    seed(2)
    assert draws_between(name, before, state(name), 100_000) is None


def test_a_kept_gaussian_says_nothing_of_other_states() -> None:
    seed(1)
    before = Generators().capture()
    random.gauss(0, 1)
    np.random.standard_normal()
    torch.randn(1)
    after = Generators().capture()
    assert [draws_between(name, before[name], after[name], 10_000) for name in DRAW] == [None] * 3
    random.gauss(0, 1)  # now it is used up again, and two values were drawn for both
    assert draws_between(PYTHON, before[PYTHON], state(PYTHON)) == 4


def test_no_further_than_asked_for() -> None:
    seed(1)
    before = state(PYTHON)
    DRAW[PYTHON](5_000)
    assert draws_between(PYTHON, before, state(PYTHON), 4_999) is None
    assert draws_between(PYTHON, before, state(PYTHON), 5_000) == 5_000


def test_a_device_generator_counts_by_itself() -> None:
    before, after = (b"\1" + bytes(7) + offset.to_bytes(8, "little") for offset in (8, 20))
    assert draws_between(TORCH_DEVICE, before, after) == 12
    assert advance(TORCH_DEVICE, before, 12) == after
    assert draws_between(TORCH_DEVICE, after, before) is None
    assert draws_between(TORCH_DEVICE, before, b"\2" + after[1:]) is None
