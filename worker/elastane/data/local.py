"""Batches made in the trainer itself, for loaders without data workers.

As in stock the dataset draws from the EST's own generators, and its registered items stand where the EST has
them. A map-style dataset is the script's own object; of an IterableDataset every EST has a copy.
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

    own: generators that the loader holds and the ESTs' contexts keep. ended_early: makes the error for an
    IterableDataset at its end, from the number of batches it gave. Raises UnsupportedError for an
    IterableDataset that could not be continued in the middle of an epoch.
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
        """Forgets all iterators; each EST goes on from the parts of its context."""
        self._streams.clear()
        self._stored = {rank: parts.get(ITERATOR) for rank, parts in contexts.items()}

    def take_in(self, rank: int, parts: Mapping[str, bytes]) -> None:
        """One EST more, which goes on from these parts."""
        self._stored[rank] = parts.get(ITERATOR)

    def forget(self, rank: int) -> None:
        """Inverse of `take_in`."""
        self._streams.pop(rank, None)
        self._stored.pop(rank, None)

    def change_attributes(self, values: dict[Path, Any]) -> None:
        """What the script set on its IterableDataset, the copies have too."""
        for stream in self._streams.values():
            apply(stream.dataset, values)

    def make(self, rank: int, index: Any, batch: int) -> Any:
        """Batch number `batch` of an epoch of EST `rank`. Raises what the dataset raises."""
        if self._fetcher is not None:
            made = self._fetcher.fetch(index)
            assert self._own is not None
            self._own.check()
            return made
        with current.making_for(rank):
            stream = self._stream(rank, first=batch == 0)
            made = stream.fetch(index)
            if batch == 0 and isinstance(made, StreamEnd):
                # The last epoch was cut off at the dataset's very end, which it has noticed only now.
                stream.begin(self._work.registry.objects)
                made = stream.fetch(index)
        if isinstance(made, StreamEnd):
            raise self._ended_early(batch)
        return made

    @property
    def remakes(self) -> bool:
        """Whether a batch can be made once more: a stream has gone on."""
        return self._fetcher is not None

    def finish(self, rank: int, *, last: bool) -> Parts:
        """The iterator's part of the context after the batch made; last: it was the epoch's last."""
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
                # Whatever this draws was drawn before, when the iterator began.
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
    """What is drawn inside leaves no trace in generators and registered items."""

    def __init__(self, work: DataWork) -> None:
        self._registry = work.registry
        self._generators = Generators()

    def __enter__(self) -> None:
        self._before = (self._generators.capture(), self._registry.capture())

    def __exit__(self, *_: object) -> None:
        states, items = self._before
        self._generators.restore(states)
        self._registry.restore(items)
