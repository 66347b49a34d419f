"""Generators are found wherever a loop can reach them, under names by which one finds them."""

from __future__ import annotations

import functools
import random
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from elastane.runtime.script_generators import (
    find_generators,
    locate,
    roots_of,
    state_reader,
)
from elastane.script_source.places import display_name, is_script_file

of_module = np.random.default_rng(1)


class Slotted:
    __slots__ = ("empty", "rng")

    def __init__(self) -> None:
        self.rng = random.Random(2)


class Nasty:
    """Everything about it raises."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)

    @property
    def generator(self) -> Any:
        raise AssertionError("a property was called")

    @property
    def __class__(self) -> Any:
        raise RuntimeError("class")


class Points(Dataset):  # type: ignore[type-arg]
    shared = torch.Generator()

    def __init__(self) -> None:
        self.nasty = Nasty()
        self.transforms = [Slotted(), Slotted()]
        self.by_name = {"noise": np.random.RandomState(3)}
        self.samples = list(range(100_000))

    def __len__(self) -> int:
        return 3


def capturing() -> Any:
    rng = np.random.default_rng(4)

    def collate(batch: Any, scale: Any = random.Random(5)) -> Any:  # noqa: B008
        return batch, rng, scale

    return collate


def draws() -> float:
    return float(of_module.random())


def names(**roots: object) -> list[str]:
    """Those found below the roots; the module of this test and pytest's own are left out."""
    return sorted(name for name in find_generators(roots) if name.split(".")[0].split("(")[0] in roots)


def test_in_attributes_slots_and_containers() -> None:
    # The class's own is nearer as a global of this module: it has its name from there.
    assert names(dataset=Points()) == [
        "dataset.by_name['noise']",
        "dataset.transforms[0].rng",
        "dataset.transforms[1].rng",
    ]
    assert any(name.endswith("test_generators.py: Points.shared") for name in find_generators())


def test_in_closures_defaults_partials_and_methods() -> None:
    class Holder:
        def __init__(self) -> None:
            self.rng = random.Random(6)

        def method(self) -> None: ...

    collate = functools.partial(capturing(), scale=random.Random(7))
    found = names(collate_fn=collate, worker_init_fn=Holder().method)
    assert found == [
        "collate_fn().rng",
        "collate_fn().scale",
        "collate_fn.keywords['scale']",
        "worker_init_fn.__self__.rng",
    ]


def test_in_modules_of_a_model() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Dropout())
    model[1].generator = torch.Generator()
    assert names(model=model) == ["model.1.generator"]


def test_globals_of_the_script_and_locals_of_its_running_functions() -> None:
    inside = random.Random(8)
    found = find_generators()
    assert any(name.endswith("test_generators.py: of_module") for name in found)
    place = "test_globals_of_the_script_and_locals_of_its_running_functions"
    assert any(name.endswith(f"test_generators.py: {place}().inside") for name in found)
    assert inside is not None


def test_the_generator_behind_a_function_has_the_name_of_the_global() -> None:
    found = [name for name in find_generators({"collate_fn": draws}) if "of_module" in name]
    assert len(found) == 1
    assert found[0].endswith(": of_module")


def test_global_generators_are_left_out() -> None:
    everything = {
        "torch": torch.default_generator,
        "python": random._inst,  # type: ignore[attr-defined]
        "numpy": np.random.mtrand._rand,
        "system": random.SystemRandom(),
    }
    assert names(**everything) == []


def test_known_objects_are_left_out_with_all_they_hold() -> None:
    points = Points()
    noise = points.by_name["noise"]
    found = find_generators({"data": points}, known={id(noise), id(points.transforms)})
    assert [name for name in found if name.startswith("data")] in ([], ["data.shared"])


@pytest.mark.parametrize(
    ("value", "draw"),
    [
        (np.random.default_rng(1), lambda g: g.random()),
        (np.random.Generator(np.random.MT19937(1)), lambda g: g.random()),
        (np.random.RandomState(1), lambda g: g.normal()),
        (random.Random(1), lambda g: g.gauss(0, 1)),
        (torch.Generator(), lambda g: torch.rand(1, generator=g)),
    ],
)
def test_equal_states_read_as_equal_bytes_and_a_draw_changes_them(value: Any, draw: Any) -> None:
    read = state_reader(value)
    assert read is not None
    before = read()
    assert read() == before
    draw(value)
    assert read() != before


def test_states_of_twins_are_equal() -> None:
    for make in (np.random.default_rng, np.random.RandomState, random.Random):
        one, two = state_reader(make(9)), state_reader(make(9))
        assert one is not None
        assert two is not None
        assert one() == two()


def test_suggestions_are_lines_of_python() -> None:
    noise = random.Random(1)
    found = {item.value: item.suggestion for item in locate({"dataset": Points()})}
    assert found[noise] == 'job.register("noise", noise)'
    slots = [text for text in found.values() if "transforms[1]" in text]
    assert slots == ['job.register("rng", dataset.transforms[1].rng)']
    for text in found.values():
        compile(text, "suggestion", "eval")


def test_roots_of_a_loader() -> None:
    loader = DataLoader(Points(), 2)
    roots = roots_of(torch.nn.Linear(1, 1), loader)
    assert roots["dataset"] is loader.dataset
    assert roots["collate_fn"] is loader.collate_fn
    assert "worker_init_fn" not in roots


def test_what_is_a_file_of_the_script() -> None:
    assert is_script_file(__file__)
    assert not is_script_file(torch.__file__)
    assert not is_script_file(random.__file__)
    assert not is_script_file("<string>")
    assert not is_script_file("_ops.py")
    assert display_name("/somewhere/else/train.py") == "train.py"


def test_large_object_graphs_end() -> None:
    chain: list[Any] = []
    for _ in range(50):
        chain = [chain, {"more": chain}, Slotted()]
    chain.append(chain)
    assert len(find_generators({"chain": chain})) < 1000
