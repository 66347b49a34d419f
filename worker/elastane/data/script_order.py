"""The order of a script's own sampler or batch_sampler, as a function of the epoch.

A stock rank iterates its sampler in its own process, from whatever state that is in. To be the same
wherever an EST runs, and when a step is replayed, an epoch's order must depend on nothing but the script and
the epoch. So each epoch iterates a copy of the sampler as prepare found it, under global generators seeded
from the epoch; a generator that the sampler holds is seeded from its initial seed and the epoch, and
`set_epoch` is called where there is one. The stock run does the same, so both agree.

Two kinds are told apart. A sampler that knows ranks (`num_replicas` and `rank`, as DistributedSampler and
its subclasses have them) is copied for every rank. Any other gives one order, whose batches are dealt out.
"""

from __future__ import annotations

import copy
import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch.utils.data import DataLoader

from elastane.data.errors import DataError
from elastane.data.own_generators import walk
from elastane.errors import UnsupportedError
from elastane.rng import HAS_NUMPY, Generators
from elastane_shards.dealing import deal_batches

if HAS_NUMPY:
    import numpy as np

_EPOCHS_KEPT: Final = 2  # around an epoch's end, ESTs of one worker are in two epochs


class ScriptOrder:
    """The batches of every epoch and EST by the script's own sampler.

    What the order is made of is `loader.batch_sampler`, or `loader.sampler` when the loader does not batch.
    Attributes: batches (of one EST in an epoch; the same in every epoch).
    """

    def __init__(self, loader: DataLoader[Any], num_ests: int) -> None:
        self._loader = loader
        self._batched = loader.batch_sampler is not None
        self._num_ests = num_ests
        given = loader.batch_sampler if self._batched else loader.sampler
        # As prepare finds it. The dataset is only referred to: copying it could take minutes.
        self._template = _copied(given, loader.dataset)
        self._batch_size = _declared(given, "batch_size", loader.batch_size)
        self._drop_last = bool(_declared(given, "drop_last", loader.drop_last))
        ranked = _ranked(self._template)
        self.knows_ranks = ranked is not None
        if ranked is not None and ranked.num_replicas != num_ests:
            raise UnsupportedError(
                f"the DataLoader's sampler splits the data in {ranked.num_replicas}, "
                f"but the job has {num_ests} ESTs",
                hint="pass num_replicas=job.num_ests",
                option="sampler",
            )
        self._epochs: dict[int, list[Any]] = {}
        first = self._epoch(0)
        if not first:
            raise UnsupportedError(
                f"the DataLoader's {'batch_sampler' if self._batched else 'sampler'} leaves no step: "
                f"its order has no batch for each of {num_ests} ESTs",
                hint="leave drop_last out, or make the batch smaller",
                option="sampler",
            )
        self.batches = len(first) // num_ests

    def index(self, epoch: int, rank: int, batch: int) -> Any:
        """What the dataset is asked for: a list of indices, or one index when the loader does not batch.

        Raises DataError when the epoch has another number of batches than epoch 0.
        """
        index = self._epoch(epoch)[batch * self._num_ests + rank]
        return list(index) if self._batched else index

    def _epoch(self, epoch: int) -> list[Any]:
        order = self._epochs.get(epoch)
        if order is None:
            while len(self._epochs) >= _EPOCHS_KEPT:
                del self._epochs[next(iter(self._epochs))]
            order = self._epochs[epoch] = self._make(epoch)
        return order

    def _make(self, epoch: int) -> list[Any]:
        with _seeded_from(epoch):
            if self.knows_ranks:
                order = self._of_ranks(epoch)
            else:
                order = self._dealt(list(self._fresh(epoch)))
        batches = len(order) // self._num_ests
        if epoch > 0 and batches != self.batches:
            raise DataError(
                f"the sampler gives each EST {batches} batches in epoch {epoch}, "
                f"but {self.batches} in epoch 0",
                hint="all epochs of a job have the same number of steps",
                epoch=epoch,
                batches=batches,
                expected=self.batches,
            )
        return order

    def _dealt(self, batches: list[Any]) -> list[Any]:
        if self._batched:
            return deal_batches(
                batches, self._num_ests, batch_size=self._batch_size, drop_last=self._drop_last
            )
        # Each index is a batch of its own, whatever it is made of.
        dealt = deal_batches(
            [[index] for index in batches], self._num_ests, batch_size=1, drop_last=self._drop_last
        )
        return [index for (index,) in dealt]

    def _of_ranks(self, epoch: int) -> list[Any]:
        orders = []
        for rank in range(self._num_ests):
            with _seeded_from(epoch):
                orders.append(list(self._fresh(epoch, rank)))
        lengths = {len(order) for order in orders}
        if len(lengths) > 1:
            raise DataError(
                f"the sampler gives ranks different numbers of batches: {sorted(lengths)}",
                hint="every rank needs as many, as DistributedSampler pads or cuts them",
                epoch=epoch,
            )
        return [batch for batches in zip(*orders, strict=True) for batch in batches]

    def _fresh(self, epoch: int, rank: int | None = None) -> Any:
        """A copy of the sampler as prepare found it, put at the beginning of `epoch`."""
        sampler = _copied(self._template, self._loader.dataset)
        if rank is not None:
            _set_rank(sampler, rank)
        inner = getattr(sampler, "sampler", None)
        for part in (sampler, inner):
            if callable(getattr(part, "set_epoch", None)):
                part.set_epoch(epoch)  # type: ignore[union-attr]
        for _, value in walk(sampler, skip=_shared(sampler, self._loader.dataset)):
            _seed_own(value, epoch)
        return sampler


class RankOrder:
    """The order of one rank for a stock DataLoader: its batch_sampler, or its sampler without batching."""

    def __init__(self, order: ScriptOrder, rank: int) -> None:
        self._order = order
        self._rank = rank
        self._epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """As DistributedSampler's: called before every epoch."""
        self._epoch = epoch

    def __iter__(self) -> Iterator[Any]:
        for batch in range(self._order.batches):
            yield self._order.index(self._epoch, self._rank, batch)

    def __len__(self) -> int:
        return self._order.batches


def _declared(sampler: Any, name: str, otherwise: Any) -> Any:
    """What a batch_sampler says of itself; a loader with one of the script's has no such options."""
    value = getattr(sampler, name, otherwise)
    return value if type(value) in (int, bool) else otherwise


def _ranked(sampler: Any) -> Any | None:
    """The sampler itself, or the one in a batch_sampler, if it knows ranks."""
    for part in (sampler, getattr(sampler, "sampler", None)):
        if type(getattr(part, "num_replicas", None)) is int and type(getattr(part, "rank", None)) is int:
            return part
    return None


def _set_rank(sampler: Any, rank: int) -> None:
    ranked = _ranked(sampler)
    assert ranked is not None
    try:
        ranked.rank = rank
    except AttributeError as error:
        raise UnsupportedError(
            f"the rank of a {type(ranked).__name__} cannot be set",
            hint="make rank a plain attribute: every EST has a copy of the sampler with its own",
            option="sampler",
        ) from error


def _shared(sampler: Any, dataset: Any) -> list[Any]:
    """What a copy of the sampler has in common with the sampler: the data, and the global generators."""
    shared = [dataset, torch.default_generator, getattr(random, "_inst", None)]
    if HAS_NUMPY:
        shared.append(np.random.mtrand._rand)
    for part in (sampler, getattr(sampler, "sampler", None)):
        shared.extend(getattr(part, name, None) for name in ("data_source", "dataset"))
    return [value for value in shared if value is not None]


def _copied(sampler: Any, dataset: Any) -> Any:
    memo = {id(value): value for value in _shared(sampler, dataset)}
    try:
        return copy.deepcopy(sampler, memo)
    except Exception as error:
        raise UnsupportedError(
            f"the DataLoader's sampler, a {type(sampler).__name__}, cannot be copied: {error}",
            hint="every epoch iterates a copy of it; keep no iterators, files or locks in it",
            option="sampler",
        ) from error


def _seed_own(value: object, epoch: int) -> None:
    """Puts a generator that the sampler holds where it stands at the beginning of `epoch`."""
    if isinstance(value, torch.Generator):
        value.manual_seed(value.initial_seed() + epoch)
    elif epoch == 0:
        return  # as prepare found it
    elif isinstance(value, random.Random) and not isinstance(value, random.SystemRandom):
        value.seed(_digest(repr(value.getstate()), epoch))
    elif HAS_NUMPY and isinstance(value, np.random.Generator):
        bits = value.bit_generator
        seed = _digest(_spelled(bits.state), epoch)
        bits.state = type(bits)(seed).state
    elif HAS_NUMPY and isinstance(value, np.random.RandomState):
        value.seed(_digest(_spelled(value.get_state(legacy=False)), epoch) % 2**32)


def _spelled(state: Any) -> str:
    """The state of a NumPy generator in text, arrays in full."""
    if isinstance(state, dict):
        return repr([(key, _spelled(value)) for key, value in state.items()])
    if isinstance(state, np.ndarray):
        return repr(state.tolist())
    return repr(state)


def _digest(state: str, epoch: int) -> int:
    return int.from_bytes(hashlib.sha256(f"{epoch}:{state}".encode()).digest()[:8], "little")


@contextmanager
def _seeded_from(epoch: int) -> Iterator[None]:
    """The global CPU generators seeded from the epoch; afterwards they are as before."""
    generators = Generators()
    before = generators.capture()
    random.seed(epoch)
    if HAS_NUMPY:
        np.random.seed(epoch % 2**32)
    torch.default_generator.manual_seed(epoch)
    try:
        yield
    finally:
        generators.restore(before)
