"""Registered items: every kind goes to bytes and back with the same draws; what cannot be kept is refused."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from elastane.registry import ITEM_BYTES_MAX, Registry, RegistryError, StateNotCarriedError


class Counter:
    """Anything with states."""

    def __init__(self) -> None:
        self.state: dict[str, Any] = {"count": 0, "mean": torch.zeros(3, 2).t(), "seen": [1, (2, "x")]}

    def state_dict(self) -> dict[str, Any]:
        return self.state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state = state


def torch_generator() -> torch.Generator:
    generator = torch.Generator()
    generator.manual_seed(4)
    return generator


def count(counter: Counter) -> int:
    counter.state = {**counter.state, "count": counter.state["count"] + 1}
    return int(counter.state["count"])


Kind = tuple[Callable[[], Any], Callable[[Any], Any]]
KINDS: dict[str, Kind] = {
    "PCG64": (lambda: np.random.default_rng(1), lambda g: (g.integers(2**32, dtype=np.uint32), g.random())),
    **{
        bits.__name__: (lambda bits=bits: np.random.Generator(bits(2)), lambda g: (g.random(), g.normal()))
        for bits in (np.random.MT19937, np.random.Philox, np.random.SFC64, np.random.PCG64DXSM)
    },
    "RandomState": (lambda: np.random.RandomState(3), lambda g: (g.randn(), g.randint(9))),
    "random.Random": (lambda: random.Random(3), lambda g: (g.gauss(0, 1), g.random())),
    "torch.Generator": (torch_generator, lambda g: float(torch.rand((), generator=g))),
    "state_dict": (Counter, count),
    "dict": (
        lambda: {"hits": 0, "sums": torch.zeros(2)},
        lambda d: d.update(hits=d["hits"] + 1) or d["hits"],
    ),
    "tensor": (lambda: torch.zeros(2), lambda t: t.add_(1).tolist()),
}


@pytest.mark.parametrize(("make", "draw"), KINDS.values(), ids=KINDS.keys())
def test_every_kind_goes_on_where_it_was(make: Callable[[], Any], draw: Callable[[Any], Any]) -> None:
    value, other = make(), make()
    here, there = Registry(), Registry()
    here.register("x", value), there.register("x", other)
    assert here.capture() == there.capture()
    draw(value)  # an odd number: a second gaussian is kept by some
    stored = here.capture()
    expected = [draw(value) for _ in range(5)]
    draw(other), draw(other)
    there.restore({**stored, "rng/python": b"", "item/@generator": b"reserved"})
    assert there.capture() == stored
    assert [draw(other) for _ in range(5)] == expected
    assert here.capture() == there.capture()


def test_unchanged_states_are_the_same_bytes_objects() -> None:
    registry, generator = Registry(), np.random.default_rng(1)
    registry.register("a", generator), registry.register("b", Counter())
    first = registry.capture()
    generator.random()
    second = registry.capture()
    assert first["item/a"] != second["item/a"] and first["item/b"] is second["item/b"]
    copied = {name: bytes(bytearray(part)) for name, part in first.items()}
    registry.restore(copied)
    assert all(registry.capture()[name] is part for name, part in copied.items())


def test_exchange_switches_only_what_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    registry, counter, generator = Registry(), Counter(), np.random.default_rng(1)
    loads: list[Any] = []
    monkeypatch.setattr(Counter, "load_state_dict", lambda self, state: loads.append(state))
    registry.register("counter", counter), registry.register("generator", generator)
    start = registry.capture()
    expected = generator.random()
    present = registry.exchange(start)
    assert present["item/generator"] != start["item/generator"] and not loads
    assert generator.random() == expected


def test_tensors_keep_dtype_stride_and_bits() -> None:
    here, there, value, other = Registry(), Registry(), Counter(), Counter()
    value.state = {
        "nan": torch.tensor([float("nan"), -0.0]),
        "half": torch.randn(3, dtype=torch.bfloat16),
        "last": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        "empty": torch.empty(0, 3),
        "array": np.arange(6, dtype=">i2").reshape(2, 3),
        "none": None,
        "big": 2**80,
    }
    other.state = {}
    here.register("x", value), there.register("x", other)
    there.restore(here.capture())
    assert there.capture() == here.capture()
    for name in ("nan", "half", "last", "empty"):
        mine, its = value.state[name], other.state[name]
        assert mine.dtype == its.dtype and mine.stride() == its.stride() and mine.shape == its.shape
    assert other.state["array"].dtype == value.state["array"].dtype and other.state["big"] == 2**80


NAME_FAULTS = ["", "a b", "a/b", "@own", "ä"]


@pytest.mark.parametrize("name", NAME_FAULTS)
def test_bad_names_are_refused(name: str) -> None:
    with pytest.raises(RegistryError, match="invalid item name"):
        Registry().register(name, Counter())


BAD = {
    "number": 3,
    "class": Counter,
    "system": random.SystemRandom(),
    "module random": random,
    "half": type("Half", (), {"state_dict": dict})(),
}


@pytest.mark.parametrize("value", BAD.values(), ids=BAD.keys())
def test_objects_of_other_kinds_are_refused(value: Any) -> None:
    with pytest.raises(RegistryError, match="item 'x' is") as caught:
        Registry().register("x", value)
    assert "state_dict" in caught.value.hint


def test_twice_after_prepare_and_too_big_are_refused() -> None:
    registry, counter = Registry(), Counter()
    registry.register("a", counter)
    with pytest.raises(RegistryError, match="'a' is registered twice"):
        registry.register("a", Counter())
    with pytest.raises(RegistryError, match="'b' is the same object as 'a'"):
        registry.register("b", counter)
    big = Counter()
    big.state = {"table": torch.zeros(ITEM_BYTES_MAX, dtype=torch.uint8)}
    with pytest.raises(RegistryError, match="at most 1,048,576"):
        registry.register("big", big)
    counter.state = big.state
    with pytest.raises(RegistryError, match="'a' has"):
        registry.capture()
    bad = Counter()
    bad.state = {"inner": {"thing": object()}}
    with pytest.raises(StateNotCarriedError, match=r"bad.*inner\.thing"):
        registry.register("bad", bad)
    registry.freeze()
    with pytest.raises(RegistryError, match="after prepare"):
        registry.register("late", Counter())
    assert registry.names == ("a",) and len(registry) == 1 and registry.holds(counter)


def test_stored_items_that_do_not_fit_are_refused() -> None:
    registry = Registry()
    registry.register("a", Counter())
    good = registry.capture()
    with pytest.raises(RegistryError) as caught:
        registry.restore({"item/b": b""})
    assert caught.value.facts["missing"] == ["a"] and caught.value.facts["unknown"] == ["b"]
    other = Registry()
    other.register("a", np.random.default_rng(1))
    with pytest.raises(RegistryError, match="stored item 'a' is a state_dict, here it is a numpy PCG64"):
        other.restore(good)


@given(st.data())
def test_damaged_bytes_are_a_typed_error_or_another_state(data: st.DataObject) -> None:
    registry, counter = Registry(), Counter()
    registry.register("a", counter)
    stored = bytearray(registry.capture()["item/a"])
    place = data.draw(st.integers(0, len(stored) - 1))
    if data.draw(st.booleans()):
        del stored[place:]
    else:
        stored[place] ^= data.draw(st.integers(1, 255))
    with contextlib.suppress(RegistryError):
        registry.restore({"item/a": bytes(stored)})
