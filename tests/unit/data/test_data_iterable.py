"""IterableDatasets: every EST sees a stock rank's batches, in whole runs and from the middle of an epoch."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from elastane.data import BatchSource, DataError, current, set_epoch, stock_loader
from elastane.data.pool import DataWorkerPool
from elastane_common.errors import UnsupportedError
from slow import further, slow, slow_except
from unit.data.elastic_runs import Build, Setup, Worker, check_elastic, run_stock_ranks

ESTS = 3


def draws() -> tuple[float, float, float]:
    return float(torch.rand(())), float(np.random.rand()), random.random()


def share(size: int) -> range:
    """The positions of this rank and data worker, as job.rank and get_worker_info tell them."""
    info = get_worker_info()
    workers, worker = (1, 0) if info is None else (info.num_workers, info.id)
    return range((current.rank or 0) * workers + worker, size, ESTS * workers)


class Plain(IterableDataset[Any]):
    """Without states. What it sets on itself while it is iterated is gone with the copy."""

    def __init__(self, size: int = 60) -> None:
        self.size = size
        self.epoch = 0
        self.given = 0

    def __iter__(self) -> Iterator[Any]:
        order = list(share(self.size))
        random.shuffle(order)
        for index in order:
            self.given += 1
            yield index, self.given, self.epoch, *draws()


class WithLength(Plain):
    """As many samples as a rank has, whatever its data workers make of it."""

    def __len__(self) -> int:
        return self.size // ESTS


class Stateful(IterableDataset[Any]):
    """The dataset has states; its iterator is a generator, which goes on from them."""

    def __init__(self, size: int = 60) -> None:
        self.size = size
        self.place = 0
        self.epoch = 0
        self.seen = 0
        self.rng = np.random.default_rng(5)

    def __iter__(self) -> Iterator[Any]:
        positions = share(self.size)
        while self.place < len(positions):
            self.place += 1
            self.seen += 1
            yield positions[self.place - 1], self.epoch, self.seen, self.rng.random(), *draws()
        self.place = 0

    def state_dict(self) -> dict[str, Any]:
        return {"place": self.place, "seen": self.seen, "rng": self.rng.bit_generator.state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.place, self.seen = state["place"], state["seen"]
        self.rng.bit_generator.state = state["rng"]


class Endless(Stateful):
    """Goes on where it was in the epoch before: nothing but its state tells where that is."""

    def __iter__(self) -> Iterator[Any]:
        positions = share(self.size)
        while True:
            self.place = (self.place + 1) % len(positions)
            yield positions[self.place], self.epoch, *draws()


class StatefulIterator:
    """Draws when it is made, so that making it again must leave no trace."""

    def __init__(self, size: int) -> None:
        self.order = list(share(size))
        random.shuffle(self.order)
        self.place = 0

    def __iter__(self) -> StatefulIterator:
        return self

    def __next__(self) -> Any:
        if self.place == len(self.order):
            raise StopIteration
        self.place += 1
        return self.order[self.place - 1], *draws()

    def state_dict(self) -> dict[str, Any]:
        return {"order": self.order, "place": self.place}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.order, self.place = state["order"], state["place"]


class OfIterators(IterableDataset[Any]):
    def __init__(self, size: int = 60) -> None:
        self.size = size

    def __iter__(self) -> Iterator[Any]:
        return StatefulIterator(self.size)


class ItsOwnIterator(Stateful):
    """__iter__ returns the dataset."""

    def __iter__(self) -> Iterator[Any]:
        self.positions = list(share(self.size))
        return self

    def __next__(self) -> Any:
        if self.place == len(self.positions):
            self.place = 0
            raise StopIteration
        self.place += 1
        return self.positions[self.place - 1], self.epoch, *draws()


class Closing(Stateful):
    """Its iterator tidies up when it is dropped, in the middle of the data, and the next one sees that."""

    def __iter__(self) -> Iterator[Any]:
        try:
            yield from super().__iter__()
        finally:
            self.seen += 1000
            self.place = 1


def build_of(kind: Callable[[], Any], steps: int | None = None, **options: Any) -> Build:
    def build() -> Setup:
        dataset = kind()
        setup = Setup(DataLoader(dataset, **{"batch_size": 4, **options}), steps_per_epoch=steps)
        if hasattr(dataset, "epoch"):
            setup.before_epoch = lambda epoch: setattr(dataset, "epoch", 10 * epoch)
        return setup

    return build


def split(number: int) -> None:
    """The usual worker_init_fn: changes the copy of the dataset in this data worker, and draws."""
    info = get_worker_info()
    assert info is not None and info.id == number
    info.dataset.size += 6 * number  # type: ignore[attr-defined]
    random.random()


CASES: dict[str, Build] = {
    "state of the dataset": build_of(Stateful, 5),
    "tidying up": build_of(Closing, 3),
    "endless": build_of(Endless, 4),
    "state of the iterator": build_of(OfIterators, 5),
    "its own iterator": build_of(ItsOwnIterator, 5),
    "no batching": build_of(Stateful, 10, batch_size=None),
    "fewer steps than there are batches": build_of(OfIterators, 3),
    "replayed": build_of(Plain, 6, num_workers=2),
    "length": build_of(WithLength, num_workers=2),
    "streams with states": build_of(Stateful, 5, num_workers=2),
    "streams with iterators": build_of(OfIterators, 4, num_workers=3),
    "streams of their own iterators": build_of(ItsOwnIterator, 4, num_workers=3),
    "worker_init_fn": build_of(Plain, 6, num_workers=2, worker_init_fn=split),
    "worker_init_fn, states": build_of(Stateful, 6, num_workers=2, worker_init_fn=split),
    "drop_last": build_of(Plain, 4, num_workers=2, drop_last=True),
    "no batching, replayed": build_of(Plain, 9, num_workers=2, batch_size=None, prefetch_factor=4),
}


#: Each kind of stream in data workers stays in `make test`, with a function of theirs where there is one.
FURTHER = (
    "replayed",
    "streams with states",
    "streams of their own iterators",
    "drop_last",
    "length",
    "worker_init_fn",
    "no batching, replayed",
)


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=further if case in FURTHER else ()) for case in CASES]
)
def test_iterables_give_the_stock_batches(case: str) -> None:
    build = CASES[case]
    if build().loader.num_workers == 0:
        stock = check_elastic(build, epochs=3)
    else:
        stock = check_elastic(build, epochs=2, resume_at=(2, 5))
    first = stock[0].batches[0][0], stock[1].batches[0][0]
    assert not torch.equal(*(torch.as_tensor(batch) for batch in first))


def test_accumulated_mini_batches() -> None:
    check_elastic(build_of(Stateful, 5), accumulation_steps=2)
    check_elastic(build_of(Plain, 5, num_workers=2), accumulation_steps=3, resume_at=(1, 2, 3))


class Uneven(Plain):
    """Data worker j has so many samples: streams end at different times, in other places on other ranks."""

    lengths = ((1, 9, 4), (8, 0, 5), (6, 6, 2))

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        assert info is not None
        for place in range(self.lengths[current.rank or 0][info.id]):
            yield (current.rank or 0) * 100 + info.id * 10 + place, *draws()


class UnevenStateful(Uneven):
    def __init__(self) -> None:
        super().__init__()
        self.place = 0

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        assert info is not None
        for place in range(self.place, self.lengths[current.rank or 0][info.id]):
            self.place += 1
            yield (current.rank or 0) * 100 + info.id * 10 + place, *draws()

    def state_dict(self) -> dict[str, Any]:
        return {"place": self.place}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.place = state["place"]


@pytest.mark.parametrize("kind", slow_except([Uneven, UnevenStateful], UnevenStateful))
@pytest.mark.parametrize("batch_size", slow_except([1, 2], 2, further=[1]))
def test_streams_that_end_are_passed_over_as_in_stock(kind: Callable[[], Any], batch_size: int) -> None:
    steps = 13 if batch_size == 1 else 7
    build = build_of(kind, steps, num_workers=3, batch_size=batch_size)
    check_elastic(build, epochs=2, resume_at=(3, steps + 4))


class OfAnyLength(Plain):
    """How long a stream is in an epoch is a matter of chance; the last has enough for all."""

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        assert info is not None
        for place in range(20 if info.id == 2 else random.choice((0, 1, 2, 7))):
            yield place, *draws()


@slow
def test_streams_that_end_and_are_longer_in_the_next_epoch() -> None:
    """What a stream answered after its end in one epoch must not be taken for a batch of the next."""

    def build() -> Setup:
        loader = DataLoader(OfAnyLength(), batch_size=1, num_workers=3, prefetch_factor=8)
        return Setup(loader, steps_per_epoch=10)

    check_elastic(build, epochs=6, resume_at=(15,))


def test_what_an_ended_stream_still_answers_is_discarded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stream 0 of rank 0 ends after one batch, with more asked of it (slot 3 was taken)."""
    discarded: list[tuple[int, int]] = []
    discard = DataWorkerPool.discard

    def note(pool: DataWorkerPool, rank: int, slot: int) -> None:
        discarded.append((rank, slot))
        discard(pool, rank, slot)

    monkeypatch.setattr(DataWorkerPool, "discard", note)
    worker = Worker(build_of(Uneven, 13, num_workers=3, batch_size=1, prefetch_factor=8), 1)
    try:
        contexts = worker.initial_contexts(1)
        worker.source.position(contexts, 0)
        worker.run(contexts, 4, {}, [])
        assert discarded == [(0, 6), (0, 9), (0, 12)]
    finally:
        worker.close()


def test_registered_items_of_an_iterable() -> None:
    """They are the same object in all copies, and start in every data worker as they are in the trainer."""

    class Registered(Plain):
        def __init__(self) -> None:
            super().__init__()
            self.noise = np.random.default_rng(4)

        def __iter__(self) -> Iterator[Any]:
            for sample in super().__iter__():
                yield *sample, self.noise.random()

    class RegisteredStateful(Stateful):
        def __init__(self) -> None:
            super().__init__()
            self.noise = np.random.default_rng(4)

        def __iter__(self) -> Iterator[Any]:
            for sample in super().__iter__():
                yield *sample, self.noise.random()

    def build_with(kind: Callable[[], Any], **options: Any) -> Build:
        def build() -> Setup:
            dataset = kind()
            loader = DataLoader(dataset, batch_size=2, **options)
            setup = Setup(loader, {"noise": dataset.noise}, steps_per_epoch=5)
            setup.draw = lambda: (dataset.noise.random(), random.random())
            return setup

        return build

    check_elastic(build_with(RegisteredStateful), epochs=2)
    for kind in (Registered, RegisteredStateful):
        check_elastic(build_with(kind, num_workers=2), epochs=2, resume_at=(3, 7))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_dataset_that_ends_early_is_an_error_in_both(workers: int) -> None:
    build = build_of(Stateful, 9, num_workers=workers)
    with pytest.raises(DataError, match=r"ended after \d mini-batches of an epoch of 9"):
        run_stock_ranks(build, 1, 1)
    worker = Worker(build, ESTS)
    try:
        contexts = worker.initial_contexts(1)
        worker.source.position(contexts, 0)
        with pytest.raises(DataError, match=r"ended after \d mini-batches of an epoch of 9") as caught:
            worker.run(contexts, 9, {}, [])
        assert "steps_per_epoch" in caught.value.hint
    finally:
        worker.close()


def test_without_states_and_data_workers_it_is_refused_before_training() -> None:
    for kind in (Plain, WithLength):
        with pytest.raises(UnsupportedError, match="without states") as caught:
            BatchSource(DataLoader(kind(), batch_size=4), ESTS, steps_per_epoch=4)
        assert "state_dict" in caught.value.hint and "num_workers=1" in caught.value.hint


class Forgetful(OfIterators):
    """Only its iterator has states, but iterating changes the dataset."""

    def __init__(self) -> None:
        super().__init__()
        self.rounds = 0

    def __iter__(self) -> Iterator[Any]:
        self.rounds += 1
        return StatefulIterator(self.size)


class DrawsItself(OfIterators):
    """Only its iterator has states, but it draws from a generator of the dataset."""

    def __init__(self) -> None:
        super().__init__()
        self.rng = np.random.default_rng(4)

    def __iter__(self) -> Iterator[Any]:
        rng = self.rng

        class Noisy(StatefulIterator):
            def __next__(self) -> Any:
                return rng.random(), *super().__next__()

        return Noisy(self.size)


@pytest.mark.parametrize(
    ("kind", "message"),
    [(Forgetful, r"iterating changed dataset\.rounds"), (DrawsItself, r"own generator, dataset\.rng")],
)
def test_state_of_the_dataset_that_no_one_keeps_is_an_error(kind: Callable[[], Any], message: str) -> None:
    worker = Worker(build_of(kind, 2), 1)
    contexts = worker.initial_contexts(1)
    worker.source.position(contexts, 0)
    with pytest.raises(UnsupportedError, match=message):
        worker.run(contexts, 4, {}, [])


class Clock(Plain):
    """Other batches every time it is asked."""

    count = 0

    def __iter__(self) -> Iterator[Any]:
        import time

        for index in range(50):
            for _ in range(time.monotonic_ns() % 97):
                random.random()
            yield index


def test_a_dataset_that_cannot_be_replayed_is_an_error() -> None:
    worker = Worker(build_of(Clock, 9, num_workers=1, batch_size=4), 1)
    try:
        contexts = worker.initial_contexts(1)
        worker.source.position(contexts, 0)
        after = worker.run(contexts, 4, {}, [])
        worker.source.position(after[-1], 4)
        with pytest.raises(DataError, match="gives different batches when its epoch is repeated"):
            worker.source.begin(0)
    finally:
        worker.close()


def test_a_dataset_that_cannot_be_copied_is_refused() -> None:
    class Holds(Stateful):
        def __init__(self) -> None:
            super().__init__()
            self.lines = (line for line in "abc")

    worker = Worker(build_of(Holds, 2, num_workers=1), 1)
    try:
        contexts = worker.initial_contexts(1)
        worker.source.position(contexts, 0)
        with pytest.raises(UnsupportedError, match="Holds, cannot be copied"):
            worker.source.begin(0)
    finally:
        worker.close()


def test_stock_loader_cuts_the_epoch() -> None:
    loader = DataLoader(WithLength(60), batch_size=4, num_workers=0)
    own = stock_loader(loader, ESTS, 0)
    set_epoch(own, 3)
    assert isinstance(own, DataLoader) and len(own) == 5 and len(list(own)) == 5
    assert len(list(stock_loader(loader, ESTS, 0, steps_per_epoch=2))) == 2
