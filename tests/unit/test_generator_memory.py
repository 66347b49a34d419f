"""The generators' memory shows what their public calls say, and a memory that does not is not used."""

from __future__ import annotations

import ctypes
import random
import struct

import numpy as np
import pytest
import torch

from elastane import generator_memory, rng
from elastane.generator_memory import (
    find_numpy,
    find_python,
    find_torch,
    numpy_bytes,
    torch_bytes,
    write_torch,
)
from elastane.rng import Generators, seed_all


@pytest.fixture
def without_memory(monkeypatch):
    """The public calls are used, as where the layout is another."""
    monkeypatch.setattr(rng, "_python_memory", lambda: None)
    monkeypatch.setattr(rng, "_numpy_memory", lambda: None)
    monkeypatch.setattr(rng, "_torch_memory", lambda: None)


def _draw():
    values = [random.random(), random.gauss(0.0, 1.0), random.getrandbits(70)]
    return [*values, np.random.randn(), np.random.rand(), int(np.random.randint(9))]


def test_the_memory_of_this_interpreter_is_found():
    assert find_python(random.Random(3)) is not None
    assert find_numpy(np.random.RandomState(3)) is not None
    for seed in range(20):  # what is between the fields differs from seed to seed
        assert find_torch(torch.Generator().manual_seed(seed)) is not None


def test_bytes_are_those_of_the_public_calls(without_memory):
    generators = Generators()
    seed_all(5)
    for _ in range(400):  # past the end of the words
        public = generators.capture()
        python, numpy = find_python(random._inst), find_numpy(np.random.mtrand._rand)
        assert python is not None and numpy is not None
        assert (python.read(), numpy.read()) == (public[rng.PYTHON], public[rng.NUMPY])
        following = _draw()
        _draw()
        python.write(public[rng.PYTHON])
        numpy.write(public[rng.NUMPY])
        assert _draw() == following


def test_a_gaussian_that_was_consumed_is_seen():
    """It changes the kept value only: no word, no position."""
    generators = Generators()
    seed_all(1)
    np.random.randn()
    random.gauss(0.0, 1.0)
    kept = generators.capture()
    draws = np.random.randn(), random.gauss(0.0, 1.0)
    consumed = generators.capture()
    assert kept[rng.NUMPY] != consumed[rng.NUMPY] and kept[rng.PYTHON] != consumed[rng.PYTHON]
    generators.restore(kept)
    assert (np.random.randn(), random.gauss(0.0, 1.0)) == draws


@pytest.mark.parametrize("find", ["python", "numpy"])
def test_a_state_that_is_still_there_is_the_same_object(find):
    generator = random.Random(3) if find == "python" else np.random.RandomState(3)
    memory = find_python(generator) if find == "python" else find_numpy(generator)
    assert memory is not None
    one, gauss = memory.read(), generator.gauss if find == "python" else generator.normal
    assert memory.read() is one
    gauss(0.0, 1.0)
    other = memory.read()
    assert other != one and memory.read() is other
    gauss(0.0, 1.0)  # the cached value: no word changes
    assert memory.read() not in (one, other)
    memory.write(one)
    assert memory.read() is one
    memory.write(other)
    assert memory.read() is other


def test_another_bit_generator_is_not_written_to():
    before = np.random.mtrand._rand._bit_generator
    memory = find_numpy(np.random.mtrand._rand)
    assert memory is not None and memory.stands
    np.random.set_bit_generator(np.random.MT19937(7))
    try:
        assert not memory.stands
        parts = Generators().capture()
        assert parts[rng.NUMPY] == numpy_bytes(np.random.mtrand._rand)
        expected = np.random.rand()
        Generators().restore(parts)
        assert np.random.rand() == expected
    finally:
        np.random.set_bit_generator(before)


@pytest.mark.parametrize("damage", ["head", "words", "gaussian"])
def test_a_layout_that_differs_is_not_used(monkeypatch, damage):
    if damage == "head":
        monkeypatch.setattr(generator_memory, "_HEAD", generator_memory._HEAD + 8)
    elif damage == "words":
        monkeypatch.setattr(generator_memory, "_memory", lambda place, size: (ctypes.c_char * size)())
    else:
        monkeypatch.setattr(generator_memory, "_gaussian_offset", lambda probe: None)
    if damage != "gaussian":
        assert find_python(random.Random(1)) is None
    if damage != "head":
        assert find_numpy(np.random.RandomState(1)) is None


def test_kinds_whose_layout_is_not_known_are_left_alone():
    class Own(random.Random):
        pass

    assert find_python(Own(1)) is None
    assert find_numpy(np.random.RandomState(np.random.PCG64(1))) is None


def _torch():
    generator = torch.Generator().manual_seed(3)
    memory = find_torch(generator)
    assert memory is not None
    return generator, memory


def test_the_memory_of_torch_s_generator_shows_every_draw():
    generator, memory = _torch()
    for size in (1, 1, 3, 40, 5000, 1):  # the second takes the cached gaussian: no word changes
        before = memory.read()
        assert memory.read() is before
        torch.randn(size, generator=generator)
        assert memory.read() == torch_bytes(generator) != before


def test_states_of_torch_s_generator_are_written_as_by_the_public_call():
    generator, memory = _torch()
    plain, states = torch.Generator(), []
    for size in (1, 1, 40, 700, 1):
        states.append(memory.read())
        torch.randn(size, generator=generator)
    torch.manual_seed(9)
    states.append(torch_bytes(torch.default_generator))  # this generator has not had it
    for state in [*states, *reversed(states), *states[::2]]:
        memory.write(state)
        write_torch(plain, state)
        assert torch_bytes(generator) == state and memory.read() is state
        for size in (1, 1, 40):
            assert torch.equal(torch.randn(size, generator=generator), torch.randn(size, generator=plain))
        assert memory.read() == torch_bytes(plain)


def test_states_that_were_forgotten_are_written_all_the_same(monkeypatch):
    monkeypatch.setattr(generator_memory, "_IMAGES_MAX", 2)
    generator, memory = _torch()
    states = []
    for _ in range(5):
        states.append(memory.read())
        torch.rand(1, generator=generator)
    for state in states:
        memory.write(state)
        assert torch_bytes(generator) == state
    assert len(memory._images) == 2


@pytest.mark.parametrize("state", [b"", b"x", bytes(5056)])
def test_what_is_not_a_state_of_torch_s_generator_is_refused(state):
    generator, memory = _torch()
    before = memory.read()
    with pytest.raises((RuntimeError, ValueError)):
        memory.write(state)
    assert memory.read() is before and torch_bytes(generator) == before


@pytest.mark.parametrize("damage", ["words", "end", "elsewhere", "refused"])
def test_a_layout_of_torch_s_generator_that_differs_is_not_used(monkeypatch, damage):
    if damage == "words":  # not behind the position
        monkeypatch.setattr(generator_memory, "_TORCH_HEAD", struct.Struct("<QiB3xIQ"))
    elif damage == "refused":  # a state that this version of torch does not take
        monkeypatch.setattr(generator_memory, "_TORCH_STATE", struct.Struct("<iiQQ624Q3di4xfB3x"))
    elif damage == "end":  # the object is shorter
        monkeypatch.setattr(generator_memory, "_TORCH_BYTES", generator_memory._TORCH_BYTES + 64)
    else:  # the gaussians are not behind the words
        monkeypatch.setattr(generator_memory, "_TORCH_BYTES", generator_memory._TORCH_BYTES - 28)
    assert find_torch(torch.Generator().manual_seed(1)) is None


def test_a_generator_that_is_found_or_tried_is_left_as_it_was():
    generator = torch.Generator().manual_seed(4)
    torch.randn(3, generator=generator)
    before = torch_bytes(generator)
    assert find_torch(generator) is not None
    assert torch_bytes(generator) == before
