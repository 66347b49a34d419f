"""Positions of generators, beside the generators themselves: from draws to the bytes that the master has."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from elastane.rng import Generators
from elastane_proto.contexts import NUMPY, PYTHON, TORCH_CPU, TORCH_DEVICE
from elastane_proto.generator_positions import GeneratorPosition, PositionError, at_position, find_position

NAMES = (PYTHON, NUMPY, TORCH_CPU)
DRAWS: dict[str, Callable[[int], Any]] = {
    "python ints": lambda count: [random.getrandbits(32) for _ in range(count)],
    "python floats": lambda count: [random.random() for _ in range(count)],
    "python gauss": lambda count: [random.gauss(0, 1) for _ in range(count)],
    "python shuffle": lambda count: random.shuffle(list(range(count))),
    "numpy ints": lambda count: np.random.randint(0, 2**32, count, dtype=np.uint32),
    "numpy normal": lambda count: [np.random.standard_normal() for _ in range(count)],
    "numpy permutation": np.random.permutation,
    "torch rand": torch.rand,
    "torch randn": torch.randn,  # below 16 one by one, and one value is kept
    "torch double randn": lambda count: torch.randn(count, dtype=torch.float64),
    "torch randperm": torch.randperm,
    "torch dropout": lambda count: torch.nn.functional.dropout(torch.ones(count)),
    "torch seeded": torch.manual_seed,
    "python seeded": random.seed,
}


def seed(value: int) -> None:
    random.seed(value)
    np.random.seed(value)
    torch.manual_seed(value)


def draw(name: str, count: int) -> None:
    DRAW[name](count)


DRAW: dict[str, Callable[[int], object]] = {
    PYTHON: DRAWS["python ints"],
    NUMPY: DRAWS["numpy ints"],
    TORCH_CPU: lambda count: torch.empty(count, dtype=torch.int32).random_(),
}


def state(name: str) -> bytes:
    return Generators().capture()[name]


@settings(deadline=None)
@given(
    start=st.integers(0, 2**31),
    steps=st.lists(
        st.lists(st.tuples(st.sampled_from(sorted(DRAWS)), st.integers(0, 3_000)), max_size=3), max_size=6
    ),
)
def test_a_master_has_the_bytes_of_every_generator_after_every_step(
    start: int, steps: list[list[tuple[str, int]]]
) -> None:
    generators = Generators()
    seed(start)
    known = before = generators.capture()
    for step in steps:
        for kind, count in step:
            DRAWS[kind](count)
        after = generators.capture()
        for name in NAMES:
            position = find_position(name, before[name], after[name])
            if position is None:  # sent whole
                known = {**known, name: after[name]}
            else:
                sent = msgspec.msgpack.decode(msgspec.msgpack.encode(position), type=GeneratorPosition)
                known = {**known, name: at_position(name, known[name], sent)}
        assert known == after
        before = after


@pytest.mark.parametrize("name", NAMES)
def test_a_position_is_sent_until_the_block_is_used_up(name: str) -> None:
    for first, count, is_near in (
        (1, 1, True),
        (1, 623, True),
        (300, 324, True),
        (1, 624, False),
        (624, 1, False),
    ):
        seed(count)
        draw(name, first)
        before = state(name)
        draw(name, count)
        position = find_position(name, before, state(name))
        assert (position is not None) is is_near, (first, count)
        if position is not None:
            assert at_position(name, before, position) == state(name)
            back = find_position(name, state(name), before)
            assert back is not None and at_position(name, state(name), back) == before


@pytest.mark.parametrize("name", NAMES)
def test_a_state_of_a_stream_has_the_same_form(name: str) -> None:
    seed(1)
    draw(name, 1)
    before = state(name)
    draw(name, 300)
    position = find_position(f"stream/3/{name}", before, state(name))
    assert position is not None and at_position(f"stream/3/{name}", before, position) == state(name)


def test_a_kept_gaussian_value_travels_with_the_position() -> None:
    seed(1)
    random.random(), np.random.rand(), torch.rand(1)
    states = [Generators().capture()]
    for _ in range(2):  # made and kept, then used
        random.gauss(0, 1), np.random.standard_normal(), torch.randn(1)
        states.append(Generators().capture())
    for name in NAMES:
        for before, after in itertools.pairwise(states):
            position = find_position(name, before[name], after[name])
            assert position is not None and at_position(name, before[name], position) == after[name]


def test_what_is_no_generator_of_this_kind_is_sent_whole() -> None:
    seed(1)
    before = state(PYTHON)
    assert find_position(PYTHON, before, before[:-1]) is None
    assert find_position("item/x", before, before) is None
    assert find_position(TORCH_DEVICE, bytes(16), bytes(8) + b"\4" + bytes(7)) is None
    assert find_position(TORCH_CPU, before, before) is None


@pytest.mark.parametrize("name", NAMES)
def test_a_position_in_other_words_is_refused(name: str) -> None:
    seed(1)
    draw(name, 1)
    before = state(name)
    draw(name, 5)
    position = find_position(name, before, state(name))
    assert position is not None
    for wrong in (
        msgspec.structs.replace(position, checksum=position.checksum ^ 1),
        msgspec.structs.replace(position, beside_words=b""),
        msgspec.structs.replace(position, beside_words=bytes(len(position.beside_words))),
        msgspec.structs.replace(position, beside_words=bytes(4096)),
    ):
        with pytest.raises(PositionError):
            at_position(name, before, wrong)
    draw(name, 624)
    with pytest.raises(PositionError, match="other words"):
        at_position(name, state(name), position)
    for part in (name, "item/x"):
        with pytest.raises(PositionError, match="no position"):
            at_position(part, b"", position)
    with pytest.raises(PositionError, match="no position"):
        at_position("item/x", b"", GeneratorPosition(b"", 0))
