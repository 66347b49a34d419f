"""The generators' memory shows what their public calls say, and a memory that does not is not used."""

from __future__ import annotations

import ctypes
import random

import numpy as np
import pytest

from elastane import generator_memory, rng
from elastane.generator_memory import find_numpy, find_python, numpy_bytes
from elastane.rng import Generators, seed_all


@pytest.fixture
def without_memory(monkeypatch):
    """The public calls are used, as where the layout is another."""
    monkeypatch.setattr(rng, "_python_memory", lambda: None)
    monkeypatch.setattr(rng, "_numpy_memory", lambda: None)


def _draw():
    values = [random.random(), random.gauss(0.0, 1.0), random.getrandbits(70)]
    return [*values, np.random.randn(), np.random.rand(), int(np.random.randint(9))]


def test_the_memory_of_this_interpreter_is_found():
    assert find_python(random.Random(3)) is not None
    assert find_numpy(np.random.RandomState(3)) is not None


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
