"""Registered items that datasets draw from, in the trainer and in data workers, are those of stock ranks."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from elastane.data import BatchSource, current
from elastane_common.errors import UnsupportedError
from slow import further, slow, slow_except
from unit.data.elastic_runs import Build, Setup, Worker, check_elastic
from unit.data.loader_runs import DrawingDataset


class Transform:
    """Keeps a generator and a counter; its state holds both."""

    def __init__(self) -> None:
        self.rng = np.random.RandomState(4)
        self.calls = 0

    def state_dict(self) -> dict[str, Any]:
        return {"rng": self.rng.get_state(legacy=False), "calls": self.calls}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.rng.set_state(state["rng"])
        self.calls = state["calls"]

    def __call__(self, value: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return value + self.rng.randn() + self.calls


class WithOwn(DrawingDataset):
    """Draws from generators of its own beside the global ones."""

    def __init__(self, size: int = 20) -> None:
        super().__init__(size)
        self.numpy = np.random.default_rng(1)
        self.python = random.Random(2)
        self.torch = torch.Generator()
        self.torch.manual_seed(3)
        self.transforms = [Transform()]

    def __getitem__(self, index: int) -> Any:
        noise, number, more = super().__getitem__(index)
        noise = self.transforms[0](noise) + self.python.random()
        return noise, number, more, self.numpy.normal(), torch.rand(2, generator=self.torch)

    def registered(self) -> dict[str, Any]:
        return {
            "numpy": self.numpy,
            "python": self.python,
            "torch": self.torch,
            "transform": self.transforms[0],
        }


def build_of(*, loop_draws: bool, **options: Any) -> Build:
    def build() -> Setup:
        dataset = WithOwn()
        loader = DataLoader(dataset, **{"batch_size": 2, "shuffle": True, **options})
        setup = Setup(loader, dataset.registered())
        if loop_draws:
            setup.draw = lambda: (float(dataset.numpy.random()), dataset.python.random(), random.random())
        return setup

    return build


def init_that_draws(number: int) -> None:
    dataset = torch.utils.data.get_worker_info().dataset  # type: ignore[union-attr]
    for _ in range(number + 1):
        dataset.numpy.random(), dataset.python.random()  # type: ignore[attr-defined]
    random.random()


CASES: dict[str, dict[str, Any]] = {
    "in process": {},
    "data workers": {"num_workers": 2},
    "more data workers than batches": {"num_workers": 5, "batch_size": 4},
    "persistent": {"num_workers": 2, "persistent_workers": True},
    "worker_init_fn": {"num_workers": 2, "worker_init_fn": init_that_draws},
}


#: Beside those with more of the same: a function of the data workers, and fewer of them than batches.
FURTHER = ("data workers", "more data workers than batches")
#: Where the loop itself draws nothing, too.
NO_DRAWS = ("in process", "persistent")


@pytest.mark.parametrize(
    ("case", "loop_draws"),
    [
        *(
            pytest.param(case, True, marks=further if case in FURTHER else ())
            for case in CASES
            if case != "persistent"
        ),
        pytest.param("persistent", True, marks=slow),
        *(pytest.param(case, False, marks=slow) for case in NO_DRAWS),
    ],
)
def test_items_that_the_dataset_uses(case: str, loop_draws: bool) -> None:
    stock = check_elastic(build_of(loop_draws=loop_draws, **CASES[case]), ests=2, epochs=3)
    # Ranks share what a generator starts from, yet their batches are their own.
    assert stock[0].draws != stock[1].draws


class Seldom(WithOwn):
    """Draws from its own generators for a single sample, late in an epoch or early."""

    def __getitem__(self, index: int) -> Any:
        if index == 7:
            return super().__getitem__(index)
        return *DrawingDataset.__getitem__(self, index), 0.0, torch.zeros(2)


@pytest.mark.parametrize("persistent", slow_except([False, True], False, further=[True]))
def test_items_that_a_stream_has_not_used_yet(persistent: bool) -> None:
    """They are those of the epoch's start, however far the loop has drawn from them since."""

    def build() -> Setup:
        dataset = Seldom(20)
        loader = DataLoader(dataset, batch_size=2, shuffle=True, num_workers=2, persistent_workers=persistent)
        draw = lambda: (float(dataset.numpy.random()), dataset.python.random())  # noqa: E731
        return Setup(loader, dataset.registered(), draw=draw)

    check_elastic(build, ests=2, epochs=3, resume_at=(2, 3, 7, 8, 12))


def test_items_with_accumulated_mini_batches() -> None:
    check_elastic(build_of(loop_draws=True), accumulation_steps=2)


def test_stored_stream_items_are_those_of_the_last_batch_consumed() -> None:
    """Not of the batches made ahead; and items a stream has not changed are not sent again."""
    worker = Worker(build_of(loop_draws=False, num_workers=2), 1)
    try:
        contexts = [worker.initial_contexts(1)]
        worker.source.position(contexts[0], 0)
        contexts += worker.run(contexts[0], worker.source.steps_per_epoch, {}, [])
        first, second, third = (after[0] for after in contexts[1:4])
        assert first.stream(0)["item/numpy"] != first.parts["item/@fork.numpy"]
        assert not first.stream(1) and second.stream(1)["rng/python"] != second.stream(0)["rng/python"]
        assert second.parts["item/@fork.numpy"] == contexts[0][0].parts["item/numpy"]
        assert {name for name in third.delta(second) if "item" in name} == {
            f"stream/0/item/{name}" for name in worker.registry.names
        }
    finally:
        worker.close()


def test_hint_names_the_call_that_registers_the_generator() -> None:
    source = BatchSource(DataLoader(WithOwn(), batch_size=2), 1)
    worker = Worker(lambda: Setup(DataLoader(DrawingDataset(4))), 1)
    contexts = worker.initial_contexts(1)
    source.position(contexts, 0)
    with pytest.raises(UnsupportedError) as caught:
        source.begin(0)
    assert "own generator, dataset.numpy" in str(caught.value)
    assert 'job.register("numpy", dataset.numpy)' in caught.value.hint
    half = WithOwn()
    worker = Worker(lambda: Setup(DataLoader(half), {"a": half.numpy, "b": half.python, "c": half.torch}), 1)
    contexts = worker.initial_contexts(1)
    worker.source.position(contexts, 0)
    with pytest.raises(UnsupportedError, match=r'job.register\("transforms.0.rng", dataset.transforms\[0\]'):
        worker.source.begin(0)


class TellsRank(DrawingDataset):
    def __getitem__(self, index: int) -> Any:
        return index, -1 if current.rank is None else current.rank


@pytest.mark.parametrize("workers", [0, 2])
def test_the_present_rank_is_known_where_data_is_made(workers: int) -> None:
    def build() -> Setup:
        return Setup(DataLoader(TellsRank(12), batch_size=2, num_workers=workers))

    stock = check_elastic(build, ests=3)
    for rank, record in enumerate(stock):
        assert all(set(batch[1].tolist()) == {rank} for batch in record.batches)
    assert current.rank is None
