"""Sources of the batches of an examined step, which allow the step to be repeated.

`ElasticSupply` makes them as training would: from a `BatchSource`, from the context of EST 0, repositioned
for every replay. So it detects what training would refuse. In that case `ScriptSupply` takes over with the
script's own DataLoader, so that the rest of the script is examined all the same.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any, Protocol

from torch.utils.data import DataLoader

from elastane.context import EstContext, Parts
from elastane.data.iterable import ITERATOR
from elastane.data.source import BatchSource
from elastane.registry import Registry
from elastane.rng import Generators

RANK = 0  # the EST that is examined


class Supply(Protocol):
    """The batches of one EST, step by step. Sets generators and registered items as the step needs them."""

    @property
    def batches(self) -> int:
        """Mini-batches of the next step."""
        ...

    def rewind(self) -> None:
        """Return to the start of the step."""
        ...

    def begin(self) -> Any:
        """Return the next mini-batch; call `finish` after the loop body."""
        ...

    def finish(self) -> None: ...

    def advance(self) -> None:
        """End the step: the next one begins from the current states."""
        ...

    def close(self) -> None: ...


class ElasticSupply:
    """Batches from a `BatchSource`, as in a ring of one worker that hosts EST 0."""

    def __init__(
        self, source: BatchSource, generators: Generators, registry: Registry, *, iterable: bool = False
    ) -> None:
        self._source = source
        self._iterable = iterable
        self._generators = generators
        self._registry = registry
        self._context = EstContext.initial(RANK, {**generators.capture(), **registry.capture()})
        self._parts: Parts = {}

    @property
    def batches(self) -> int:
        return self._source.batches_in_step(self._context.step)

    @property
    def remakes_epoch(self) -> bool:
        """True if data workers are in the middle of an IterableDataset that has no state."""
        streams = [name for name in self._context.parts if name.startswith("stream/")]
        return self._iterable and bool(streams) and not any(name.endswith(ITERATOR) for name in streams)

    def rewind(self) -> None:
        self._parts = {}
        self._generators.restore(self._context.rng)
        self._registry.restore(self._context.parts)
        self._source.position({RANK: self._context}, self._context.step)

    def begin(self) -> Any:
        return self._source.begin(RANK)[0]

    def finish(self) -> None:
        self._parts |= self._source.finish(RANK)

    def advance(self) -> None:
        present = {**self._generators.capture(), **self._registry.capture()}
        self._context = self._context.next(present, self._parts)
        self._parts = {}

    def close(self) -> None:
        self._source.close()


class ScriptSupply:
    """Batches from the script's own DataLoader; a replay gets copies of the step's batches."""

    def __init__(
        self, loader: DataLoader[Any], steps: int, generators: Generators, registry: Registry
    ) -> None:
        self._loader = loader
        self._generators = generators
        self._registry = registry
        self._iterator: Iterator[Any] = iter(())
        self._kept: list[tuple[Any, Parts]] = []
        self._place = 0
        self._start = self._present()
        self.batches = steps

    def rewind(self) -> None:
        self._place = 0
        self._put(self._start)

    def begin(self) -> Any:
        if self._place == len(self._kept):
            batch = self._fetch()
            self._kept.append((copy.deepcopy(batch), self._present()))
        else:
            kept, after = self._kept[self._place]
            batch = copy.deepcopy(kept)
            self._put(after)  # making the batch had drawn from the generators
        self._place += 1
        return batch

    def finish(self) -> None:
        """Nothing to do: the generators already have the body's draws."""

    def advance(self) -> None:
        self._kept, self._place = [], 0
        self._start = self._present()

    def close(self) -> None:
        self._iterator = iter(())

    def _fetch(self) -> Any:
        try:
            return next(self._iterator)
        except StopIteration:
            self._iterator = iter(self._loader)
            return next(self._iterator)

    def _present(self) -> Parts:
        return {**self._generators.capture(), **self._registry.capture()}

    def _put(self, parts: Parts) -> None:
        self._generators.restore(parts)
        self._registry.restore(parts)
