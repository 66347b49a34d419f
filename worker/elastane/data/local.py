"""Batches made in the trainer's process, for loaders without data workers.

As in stock, the dataset draws from the EST's generators, and registered items are in the EST's state. A
map-style dataset is the script's own object; every EST has a copy of an IterableDataset.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from elastane.data import current
from elastane.data.batch_maker import DataWork
from elastane.data.dataset_attributes import Path, apply
from elastane.data.errors import DataError
from elastane.data.iterable import ITERATOR, IterableStream, StreamEnd, refuse_without_state
from elastane.data.own_generators import OwnGenerators
from elastane.rng import Generators, Parts


class LocalMaker:
    """Makes batches in the calling thread.

    own: generators that the loader holds and that are part of the ESTs' contexts. ended_early: builds the
    error for an exhausted IterableDataset from the number of batches it gave. Raises UnsupportedError for an
    IterableDataset that cannot be continued in the middle of an epoch.
    """

    def __init__(self, work: DataWork, own: list[Any], ended_early: Callable[[int], DataError]) -> None:
        self._work = work
        self._ended_early = ended_early
        self._fetcher = None if work.iterable else work.map_fetcher()
        self._own = None if work.iterable else OwnGenerators(work.dataset, [*work.registry.objects, *own])
        self._streams: dict[int, IterableStream] = {}
        self._stored: dict[int, bytes | None] = {}
        if work.iterable and work.num_workers == 0:
            self._check_stateful()

    def position(self, contexts: Mapping[int, Mapping[str, bytes]]) -> None:
        """Drop all iterators; each EST continues from the parts of its context."""
        self._streams.clear()
        self._stored = {rank: parts.get(ITERATOR) for rank, parts in contexts.items()}

    def take_in(self, rank: int, parts: Mapping[str, bytes]) -> None:
        """Add one EST, which continues from these parts."""
        self._stored[rank] = parts.get(ITERATOR)

    def forget(self, rank: int) -> None:
        """Inverse of `take_in`."""
        self._streams.pop(rank, None)
        self._stored.pop(rank, None)

    def change_attributes(self, values: dict[Path, Any]) -> None:
        """Set attributes that the script changed on its IterableDataset in the copies too."""
        for stream in self._streams.values():
            apply(stream.dataset, values)

    def make(self, rank: int, index: Any, batch: int) -> Any:
        """Return batch number `batch` of an epoch of EST `rank`. Errors of the dataset pass through."""
        if self._fetcher is not None:
            made = self._fetcher.fetch(index)
            assert self._own is not None
            self._own.check()
            return made
        with current.making_for(rank):
            stream = self._stream(rank, first=batch == 0)
            made = stream.fetch(index)
            if batch == 0 and isinstance(made, StreamEnd):
                # The last epoch was cut off exactly at the dataset's end, which the iterator detects only
                # now.
                stream.begin(self._work.registry.objects)
                made = stream.fetch(index)
        if isinstance(made, StreamEnd):
            raise self._ended_early(batch)
        return made

    @property
    def remakes(self) -> bool:
        """True if a batch can be made again; a stream cannot go back."""
        return self._fetcher is not None

    def finish(self, rank: int, *, last: bool) -> Parts:
        """Return the iterator's part of the context after a batch; last: the batch was the epoch's last."""
        stream = self._streams.get(rank)
        if stream is None:
            return {}
        if last:
            stream.end()
        state = stream.state()
        return {} if state is None else {ITERATOR: state}

    def _stream(self, rank: int, *, first: bool) -> IterableStream:
        stream = self._streams.get(rank)
        stored = self._stored.get(rank)
        registered = self._work.registry.objects
        if stream is None:
            stream = self._work.new_stream()
            if stored is not None:
                # The draws of resuming were already made when the iterator first began.
                with _Isolated(self._work):
                    if first:
                        stream.resume_dataset(stored)
                    else:
                        stream.resume(stored, registered)
            self._streams[rank] = stream
        if first:
            stream.begin(registered)
        elif not stream.begun:
            raise DataError(
                f"the context of EST {rank} is in the middle of an epoch without a state of its iterator",
                hint="all workers must run the same script",
                virtual_rank=rank,
            )
        return stream

    def _check_stateful(self) -> None:
        with _Isolated(self._work), current.making_for(0):
            stream = self._work.new_stream()
            if not stream.stateful:
                stream.begin()
        if not stream.stateful:
            raise refuse_without_state()


class _Isolated:
    """Restores generators and registered items after the block."""

    def __init__(self, work: DataWork) -> None:
        self._registry = work.registry
        self._generators = Generators()

    def __enter__(self) -> None:
        self._before = (self._generators.capture(), self._registry.capture())

    def __exit__(self, *_: object) -> None:
        states, items = self._before
        self._generators.restore(states)
        self._registry.restore(items)
