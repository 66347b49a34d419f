"""States of generators as bytes: restored, they go on with the same draws."""

from __future__ import annotations

import random
import struct

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from elastane import rng
from elastane.rng import Generators, RngStateError, seed_all

DRAWS = {
    "random": random.random,
    "gauss": lambda: random.gauss(0.0, 1.0),
    "randrange": lambda: random.randrange(10**20),
    "numpy": lambda: float(np.random.rand()),
    "numpy gaussian": lambda: float(np.random.randn()),
    "numpy integer": lambda: int(np.random.randint(1000)),
    "torch": lambda: torch.rand(3).tolist(),
    "torch one gaussian": lambda: torch.randn(1).tolist(),
    "torch gaussians": lambda: torch.randn(40).tolist(),
    "torch permutation": lambda: torch.randperm(9).tolist(),
}
names = st.lists(st.sampled_from(sorted(DRAWS)), max_size=12)


def draw(sequence: list[str]) -> list[object]:
    return [DRAWS[name]() for name in sequence]


@given(seed=st.integers(0, 2**63 - 1), before=names, between=names, after=names)
@settings(max_examples=60, deadline=None)
def test_restored_generators_draw_the_same(
    seed: int, before: list[str], between: list[str], after: list[str]
) -> None:
    generators = Generators()
    seed_all(seed)
    draw(before)
    parts = generators.capture()
    expected = draw(after)
    draw(between)
    generators.restore(parts)
    assert generators.capture() == parts
    assert draw(after) == expected


@given(turns=st.lists(st.tuples(st.integers(0, 2), names), max_size=12))
@settings(max_examples=40, deadline=None)
def test_exchanged_generators_are_as_many_separate_ones(turns: list[tuple[int, list[str]]]) -> None:
    """Three that take turns by `exchange` draw what each draws alone."""
    generators = Generators()
    contexts = {}
    for which in range(3):
        seed_all(which % 2)  # two of them start alike
        contexts[which] = generators.capture()
    start = dict(contexts)
    drawn: dict[int, list[object]] = {0: [], 1: [], 2: []}
    present = None
    for which, sequence in turns:
        captured = generators.exchange(contexts[which])
        if present is not None:
            contexts[present] = captured
            if present == which:
                generators.restore(captured)
        present = which
        drawn[which] += draw(sequence)
    for which in range(3):
        generators.restore(start[which])
        alone = draw([name for turn, sequence in turns if turn == which for name in sequence])
        assert alone == drawn[which]


def test_exchange_sees_draws_made_behind_its_back() -> None:
    generators = Generators()
    seed_all(1)
    parts = generators.capture()
    expected = draw(sorted(DRAWS))
    generators.exchange(parts)
    assert draw(sorted(DRAWS)) == expected


def test_capture_gives_the_same_object_for_an_unchanged_state() -> None:
    generators = Generators()
    first = generators.capture()
    random.random()
    second = generators.capture()
    assert second[rng.NUMPY] is first[rng.NUMPY] and second[rng.TORCH_CPU] is first[rng.TORCH_CPU]
    assert second[rng.PYTHON] != first[rng.PYTHON]


def test_seed_all_is_what_scripts_do() -> None:
    seed_all(2**33 + 5)
    ours = Generators().capture()
    random.seed(2**33 + 5)
    np.random.seed(5)
    torch.manual_seed(2**33 + 5)
    assert Generators().capture() == ours


def test_layouts_are_the_documented_ones() -> None:
    random.seed(3)
    random.gauss(0.0, 1.0)
    np.random.seed(3)
    np.random.randn()
    parts = Generators().capture()
    version, words, kept = random.getstate()
    assert struct.unpack("<I625IBd", parts["rng/python"]) == (version, *words, 1, kept)
    name, key, position, has_gaussian, gaussian = np.random.get_state()
    assert name == "MT19937"
    tail = struct.pack("<iid", position, has_gaussian, gaussian)
    assert parts["rng/numpy"] == key.astype("<u4").tobytes() + tail
    assert parts["rng/torch_cpu"] == torch.get_rng_state().numpy().tobytes()
    assert [len(parts[name]) for name in sorted(parts)] == [2512, 2513, 5056]


def broken(name: str, offset: int, layout: str, value: object) -> tuple[str, bytes]:
    state = bytearray(Generators().capture()[name])
    struct.pack_into(layout, state, offset, value)
    return name, bytes(state)


CORRUPTED = {
    "short python": lambda: (rng.PYTHON, b"abc"),
    "python version": lambda: broken(rng.PYTHON, 0, "<I", 2),
    "python position": lambda: broken(rng.PYTHON, 4 * 625, "<I", 625),
    "python flag": lambda: broken(rng.PYTHON, 4 * 626, "<B", 2),
    "short numpy": lambda: (rng.NUMPY, b""),
    "numpy position": lambda: broken(rng.NUMPY, 4 * 624, "<i", 625),
    "numpy negative position": lambda: broken(rng.NUMPY, 4 * 624, "<i", -1),
    "numpy flag": lambda: broken(rng.NUMPY, 4 * 625, "<i", 7),
    "short torch": lambda: (rng.TORCH_CPU, b"\0" * 100),
    "empty torch": lambda: (rng.TORCH_CPU, b""),
    "torch words": lambda: (rng.TORCH_CPU, b"\xff" * 5056),
}


@pytest.mark.parametrize("corrupt", CORRUPTED.values(), ids=CORRUPTED.keys())
def test_corrupted_state_is_an_error(corrupt) -> None:  # type: ignore[no-untyped-def]
    name, state = corrupt()
    parts = {**Generators().capture(), name: state}
    for set_states in (Generators().restore, Generators().exchange):
        with pytest.raises(RngStateError) as caught:
            set_states(parts)
        assert caught.value.facts["part"] == name


def test_states_of_other_generators_are_refused() -> None:
    parts = Generators().capture()
    with pytest.raises(RngStateError, match="torch_device"):
        Generators().restore({**parts, rng.TORCH_DEVICE: b"0" * 16})
    del parts[rng.NUMPY]
    with pytest.raises(RngStateError, match="NumPy"):
        Generators().restore(parts)


def test_without_numpy_there_is_no_numpy_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rng, "HAS_NUMPY", False)
    monkeypatch.setattr(rng, "np", None)
    generators = Generators()
    seed_all(1)
    parts = generators.capture()
    assert set(parts) == {rng.PYTHON, rng.TORCH_CPU}
    expected = draw(["random", "torch"])
    generators.restore(parts)
    assert draw(["random", "torch"]) == expected


def test_another_numpy_bit_generator_is_refused() -> None:
    before = np.random.get_bit_generator()
    np.random.set_bit_generator(np.random.PCG64(1))
    try:
        with pytest.raises(RngStateError, match="PCG64"):
            Generators().capture()
    finally:
        np.random.set_bit_generator(before)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_device_generator_is_kept() -> None:
    generators = Generators(torch.device("cuda"))
    seed_all(4)
    torch.rand(5, device="cuda")
    parts = generators.capture()
    assert len(parts[rng.TORCH_DEVICE]) == 16
    expected = torch.randn(5, device="cuda").tolist()
    seed_all(9)
    generators.restore(parts)
    assert torch.randn(5, device="cuda").tolist() == expected
    with pytest.raises(RngStateError):
        generators.restore({**parts, rng.TORCH_DEVICE: b"short"})


def test_seed_all_where_torch_refuses_to_tell_its_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    """As torch 2.6 does where it was built for none."""

    def refuse() -> None:
        raise RuntimeError("Cannot access accelerator device when none is available.")

    monkeypatch.setattr(torch.accelerator, "current_accelerator", refuse)
    seed_all(11)
    drawn = torch.rand(3)
    torch.manual_seed(11)
    assert torch.equal(drawn, torch.rand(3))
