"""Makes the batches of one stream of every EST, in a data worker.

Before each batch, generators, registered items and torch's worker info are set to the state of stream j of
that EST; after it they are captured. A new stream is seeded as torch's `_worker_loop` seeds worker j, and its
items start as they were in the EST's main process, from which stock forks its data workers.
"""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._utils import ExceptionWrapper
from torch.utils.data import Dataset, _utils
from torch.utils.data._utils.fetch import _MapDatasetFetcher
from torch.utils.data._utils.worker import WorkerInfo, _generate_state

from elastane.data import current
from elastane.data.dataset_attributes import Path, apply
from elastane.data.errors import DataError
from elastane.data.iterable import ITERATOR, IterableStream, StreamEnd, copied_dataset
from elastane.data.own_generators import OwnGenerators
from elastane.registry import ITEM, RESERVED, Registry
from elastane.rng import HAS_NUMPY, Generators, Parts

if HAS_NUMPY:
    import numpy as np


@dataclass(frozen=True, slots=True)
class DataWork:
    """Everything a data worker needs to make a batch; inherited through the fork, never pickled."""

    dataset: Dataset[Any]
    collate_fn: Callable[[Any], Any]
    init_fn: Callable[[int], None] | None
    drop_last: bool
    num_workers: int
    auto_collation: bool = True
    iterable: bool = False
    registry: Registry = field(default_factory=Registry)

    def map_fetcher(self) -> _MapDatasetFetcher:
        """Return torch's fetcher for a map-style dataset."""
        return _MapDatasetFetcher(self.dataset, self.auto_collation, self.collate_fn, self.drop_last)

    def new_stream(self) -> IterableStream:
        """Return a stream over a copy of the IterableDataset, not yet begun."""
        return IterableStream(
            copied_dataset(self.dataset, self.registry.objects),
            auto_collation=self.auto_collation,
            collate_fn=self.collate_fn,
            drop_last=self.drop_last,
        )


@dataclass(frozen=True, slots=True)
class StreamTask:
    """One batch to make, and the state its stream starts from.

    `start` holds states "rng/..." and "item/...", or is None for a stream newly seeded from base_seed; with
    `follows` the stream continues from its last batch. index: passed to the dataset. forked: registered items
    as they were in the EST's main process at the start of the epoch. made: batches of the stream that were
    consumed in this epoch before this session.
    """

    session: int
    rank: int
    batch: int
    index: Any
    base_seed: int
    follows: bool
    start: Parts | None = None
    forked: Parts = field(default_factory=dict)
    made: int = 0


@dataclass(frozen=True, slots=True)
class AttributeChange:
    """A change of plain attributes of the dataset by the script: path of names -> new value."""

    values: dict[Path, Any]


class BatchMaker:
    """Makes the batches of stream `number`, and keeps each EST's stream states after its last batch."""

    def __init__(self, number: int, work: DataWork) -> None:
        self._number = number
        self._work = work
        self._generators = Generators()
        self._fetcher = None if work.iterable else work.map_fetcher()
        self._own = None if work.iterable else _own_generators(work, work.dataset)
        self._streams: dict[int, IterableStream] = {}
        self._initialised = False
        self._states: dict[int, Parts] = {}
        self._failures: dict[int, ExceptionWrapper] = {}
        self._last: int | None = None  # the EST whose states are now in the generators

    def make(self, task: StreamTask) -> tuple[Any, Parts | None]:
        """Return the batch (or the wrapped exception) and the stream states that changed with it.

        Changed means in comparison with the states the trainer knows: those before the batch.
        """
        with current.making_for(task.rank):
            try:
                self._enter(task)
            except Exception:  # noqa: BLE001  # worker_init_fn and the dataset are the script's code
                self._failures[task.rank] = wrapped(self._number)
            failure = self._failures.get(task.rank)
            if failure is not None:
                self._last = None
                return failure, None
            try:
                batch, states = self._fetch(task.rank, task.index), self._capture(task.rank)
            except Exception:  # noqa: BLE001
                batch, states = wrapped(self._number), self._generators.capture()
        before = self._states.get(task.rank, {})
        self._states[task.rank] = states
        self._last = task.rank
        return batch, {name: state for name, state in states.items() if before.get(name) != state}

    def change_attributes(self, change: AttributeChange) -> None:
        """Set the values, also for copies of an IterableDataset made from now on."""
        apply(self._work.dataset, change.values)

    def _fetch(self, rank: int, index: Any) -> Any:
        if self._fetcher is None:
            return self._streams[rank].fetch(index)
        batch = self._fetcher.fetch(index)
        assert self._own is not None
        self._own.check()
        return batch

    def _capture(self, rank: int) -> Parts:
        states = {**self._generators.capture(), **self._work.registry.capture()}
        stream = self._streams.get(rank)
        state = stream.state() if stream is not None else None
        if state is not None:
            states[ITERATOR] = state
        return states

    def _restore(self, states: Parts) -> None:
        self._generators.restore({name: part for name, part in states.items() if name.startswith("rng/")})
        self._work.registry.restore(states)

    def _enter(self, task: StreamTask) -> None:
        """Restore generators, items and worker info of the task's stream."""
        if not task.follows:
            self._failures.pop(task.rank, None)
            self._last = None
            self._begin_stream(task)
            self._last = task.rank
        elif self._last != task.rank and task.rank not in self._failures:
            self._restore(self._states[task.rank])
        stream = self._streams.get(task.rank)
        self._set_info(task, self._work.dataset if stream is None else stream.dataset)

    def _begin_stream(self, task: StreamTask) -> None:
        if self._work.iterable:
            self._begin_iterable(task)
        elif task.start is None or (self._work.init_fn is not None and not self._initialised):
            self._seed(task, self._work.dataset)
        if task.start is None:
            self._states[task.rank] = dict(task.forked)
            return
        # worker_init_fn has just run if this was its first run in the process; its draws are in these states.
        self._restore(task.start)
        self._states[task.rank] = task.start

    def _begin_iterable(self, task: StreamTask) -> None:
        """Make a new copy of the dataset and bring it to the position of the stream."""
        # Release the old copy first: two copies of a large dataset may not fit into memory.
        self._streams.pop(task.rank, None)
        stream = self._work.new_stream()
        self._seed(task, stream.dataset)
        registered = self._work.registry.objects
        stored = task.start.get(ITERATOR) if task.start is not None else None
        if stored is not None:
            stream.resume(stored, registered)
        else:
            stream.begin(registered)
        self._streams[task.rank] = stream
        if task.start is not None and stored is None:
            self._replay(task, stream, task.start)

    def _replay(self, task: StreamTask, stream: IterableStream, expected: Parts) -> None:
        """Repeat the epoch's consumed batches and discard them.

        Raises DataError if the states differ afterwards.
        """
        for _ in range(task.made):
            if isinstance(stream.fetch(task.index), StreamEnd):
                raise _not_repeatable(task)
        present = {**self._generators.capture(), **self._work.registry.capture()}
        kept = {name: part for name, part in expected.items() if not name.startswith(ITEM + RESERVED)}
        if present != kept:
            raise _not_repeatable(task)

    def _seed(self, task: StreamTask, dataset: Any) -> None:
        """Seed like torch's `_worker_loop` for worker `number`, then run the script's worker_init_fn."""
        self._work.registry.restore(task.forked)
        random.seed(task.base_seed + self._number)
        torch.manual_seed(task.base_seed + self._number)
        if HAS_NUMPY:
            np.random.seed(_generate_state(task.base_seed, self._number))
        self._set_info(task, dataset)
        if self._work.init_fn is not None:
            self._initialised = True
            self._work.init_fn(self._number)
            if self._own is not None:
                self._own = _own_generators(self._work, dataset)

    def _set_info(self, task: StreamTask, dataset: Any) -> None:
        _utils.worker._worker_info = WorkerInfo(
            id=self._number,
            num_workers=self._work.num_workers,
            seed=task.base_seed + self._number,
            dataset=dataset,
        )


def _own_generators(work: DataWork, dataset: object) -> OwnGenerators:
    return OwnGenerators(dataset, work.registry.objects, (work.collate_fn, work.init_fn))


def wrapped(number: int) -> ExceptionWrapper:
    """Wrap the exception being handled, as stock sends it.

    Its type becomes RuntimeError if the class cannot be pickled.
    """
    wrapper = ExceptionWrapper(where=f"in DataLoader worker process {number}")
    try:
        pickle.dumps(wrapper)
    except (pickle.PicklingError, AttributeError, TypeError):
        wrapper.exc_type = RuntimeError
    return wrapper


def _not_repeatable(task: StreamTask) -> DataError:
    return DataError(
        "the IterableDataset gives different batches when its epoch is repeated from the start",
        hint="give it state_dict and load_state_dict, or let it depend only on the global generators",
        virtual_rank=task.rank,
        batches=task.made,
    )
