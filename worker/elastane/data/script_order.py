"""Order of a script's own sampler or batch_sampler, as a function of the epoch.

A stock rank iterates its sampler in its own process, from whatever state it is in. To be the same wherever an
EST runs, and when a step is replayed, an epoch's order must depend on nothing but the script and the epoch.
So each epoch iterates a copy of the sampler as it was at prepare, under global generators seeded from the
epoch; a generator that the sampler holds is seeded from its initial seed and the epoch, and `set_epoch` is
called if it exists. The stock run does the same, so both agree.

There are two kinds. A sampler that knows ranks (`num_replicas` and `rank`, as DistributedSampler and its
subclasses have them) is copied for every rank. Any other gives one order, whose batches are dealt out.
"""

from __future__ import annotations

import copy
import functools
import hashlib
import itertools
import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, NoReturn

import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from elastane.data.errors import DataError
from elastane.data.own_generators import walk
from elastane.rng import HAS_NUMPY, Generators, Parts
from elastane_common.errors import UnsupportedError
from elastane_shards.dealing import deal_batches

if HAS_NUMPY:
    import numpy as np

_EPOCHS_KEPT: Final = 2  # around an epoch's end, ESTs of one worker are in two epochs
_INDICES_AHEAD: Final = 8192
"""Approximate number of indices taken from the sampler at a time: a millisecond of Python."""
_INDICES_COUNTED: Final = 2**20
"""A longer order is not iterated to count its length, if it has one."""
_INDICES_MAX: Final = 2**27
"""A longer order without a length is refused: it may never end."""

_SKIPPED_AT_ONCE: Final = 2**20  # a multiple of 32
_SURE: Final = (
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
    list,
    range,
    tuple,
)


class ScriptOrder:
    """Batches of every epoch and EST by the script's own sampler.

    The order is that of `loader.batch_sampler`, or of `loader.sampler` if the loader does not batch. It is
    iterated only as far as batches are requested, and only the last few are kept: a sampler may be of any
    length. rounds_kept: number of past batches of an EST that can be requested without iterating the epoch
    from its start. Attributes: batches (of one EST in an epoch; the same in every epoch),
    kind (the sampler's class).
    """

    def __init__(self, loader: DataLoader[Any], num_ests: int, *, rounds_kept: int = 1) -> None:
        self._loader = loader
        self.batched = loader.batch_sampler is not None
        self.num_ests = num_ests
        self.rounds_kept = rounds_kept
        given: Any = loader.batch_sampler if self.batched else loader.sampler
        # As at prepare. The dataset is shared, not copied: copying it could take minutes.
        self._template = _copied(given, loader.dataset)
        self.kind = type(given.sampler if type(given) is BatchSampler else given).__name__
        self.batch_size = _declared(given, "batch_size", loader.batch_size) if self.batched else 1
        self.drop_last = bool(_declared(given, "drop_last", loader.drop_last))
        ranked = _ranked(self._template)
        self.knows_ranks = ranked is not None
        if ranked is not None and ranked.num_replicas != num_ests:
            raise UnsupportedError(
                f"the DataLoader's sampler splits the data in {ranked.num_replicas}, "
                f"but the job has {num_ests} ESTs",
                hint="pass num_replicas=job.num_ests",
                option="sampler",
            )
        self._epochs: dict[int, _Window] = {}
        self.length_believed = False
        self.batches = self._rounds_of(len(given)) if _sure_length(given) else self._count(given)
        if not self.batches:
            raise UnsupportedError(
                f"the DataLoader's {'batch_sampler' if self.batched else 'sampler'} leaves no step: its "
                f"order has fewer batches than the {num_ests} ESTs",
                hint="omit drop_last, or use a smaller batch size",
                option="sampler",
            )

    def index(self, epoch: int, rank: int, batch: int) -> Any:
        """Return the argument for the dataset: a list of indices, or one index if the loader does not batch.

        Raises DataError if the epoch turns out to have an unexpected number of batches.
        """
        window = self._epochs.get(epoch)
        if window is None or not window.first <= batch < window.reach:
            self._epochs.pop(epoch, None)
            while len(self._epochs) >= _EPOCHS_KEPT:
                del self._epochs[next(iter(self._epochs))]
            window = self._epochs[epoch] = _Window(self, epoch, batch)
        index = window.round(batch)[rank]
        return list(index) if self.batched else index

    def fresh(self, epoch: int, rank: int | None = None) -> Any:
        """Return a copy of the sampler as it was at prepare, set to the beginning of `epoch`."""
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

    def _rounds_of(self, length: int) -> int:
        """Return the batches of each EST if the sampler gives `length` batches."""
        if self.knows_ranks:
            return length
        return length // self.num_ests if self.drop_last else -(-length // self.num_ests)

    def _count(self, given: Any) -> int:
        """Count the batches of each EST in epoch 0; a very long order is not iterated if it has a length."""
        length = _length(given)
        source, rounds, indices = _Rounds(self, 0, 0), 0, 0
        while more := source.take():
            rounds += len(more)
            indices += sum(len(batch) for row in more for batch in row) if self.batched else len(more)
            if indices > _INDICES_COUNTED and length is not None:
                self.length_believed = True
                return self._rounds_of(length)
            if indices > _INDICES_MAX:
                raise UnsupportedError(
                    f"the DataLoader's sampler has no length, and gave more than {_INDICES_MAX} indices",
                    hint="give it __len__: an epoch must be finite",
                    option="sampler",
                )
        return rounds


class _Rounds:
    """Iterates an epoch's order once, from a round on: a round is the batch of one number of every EST."""

    def __init__(self, order: ScriptOrder, epoch: int, first: int) -> None:
        self._order, self._epoch = order, epoch
        size = order.batch_size or 1
        #: Number of rounds made at a time.
        self.at_once = max(1, _INDICES_AHEAD // (size * order.num_ests))
        ranks = range(order.num_ests)
        self._streams = (
            [_Paused(epoch, functools.partial(self._of_rank, rank, first)) for rank in ranks]
            if order.knows_ranks
            else [_Paused(epoch, functools.partial(self._dealt, first))]
        )

    def take(self) -> list[Sequence[Any]]:
        """Return the next few rounds; [] at the end."""
        order, count = self._order, self.at_once
        if not order.knows_ranks:
            dealt = self._streams[0].take(count * order.num_ests)
            return [dealt[at : at + order.num_ests] for at in range(0, len(dealt), order.num_ests)]
        columns = [stream.take(count) for stream in self._streams]
        # Ranks with different numbers of batches would hang a stock run in its all-reduce.
        lengths = {stream.taken for stream in self._streams}
        if len(lengths) > 1:
            raise DataError(
                f"the sampler gives ranks different numbers of batches: {sorted(lengths)}",
                hint="every rank needs the same number: DistributedSampler pads or truncates to it",
                epoch=self._epoch,
            )
        return list(zip(*columns, strict=True))

    def _of_rank(self, rank: int, first: int) -> Iterator[Any]:
        return itertools.islice(iter(self._order.fresh(self._epoch, rank)), first, None)

    def _dealt(self, first: int) -> Iterator[Any]:
        order, begun = self._order, []
        # the first round pads the last one; it is drawn separately, so that the rest can be skipped
        if first:
            with _seeded_from(self._epoch):
                begun = list(itertools.islice(self._batches(0), order.num_ests))
        dealt = deal_batches(
            self._batches(first * order.num_ests),
            order.num_ests,
            batch_size=order.batch_size,
            drop_last=order.drop_last,
            first_round=begun,
        )
        return dealt if order.batched else (index for (index,) in dealt)

    def _batches(self, first: int) -> Iterator[Any]:
        """Yield the sampler's batches from number `first` on.

        If the loader does not batch, each has one index.
        """
        batches = _from_batch(self._order.fresh(self._epoch), first, batched=self._order.batched)
        return batches if self._order.batched else ([index] for index in batches)


class _Paused:
    """Iterates `make()` with its own states of the global generators, seeded from the epoch.

    The states are swapped in only while it runs. taken: number of elements returned.
    """

    def __init__(self, epoch: int, make: Callable[[], Iterator[Any]]) -> None:
        self._epoch, self._make = epoch, make
        self._generators = Generators()
        self._iterator: Iterator[Any] | None = None
        self._states: Parts = {}
        self.taken = 0

    def take(self, count: int) -> list[Any]:
        """Return the next `count` elements, or the remaining ones."""
        with _seeded_from(self._epoch, self._generators):
            if self._iterator is None:
                self._iterator = self._make()
            else:
                self._generators.restore(self._states)
            found = list(itertools.islice(self._iterator, count))
            self._states = self._generators.capture()
        self.taken += len(found)
        return found


class _Window:
    """The rounds of an epoch that may still be requested. first: the number of the oldest one kept."""

    def __init__(self, order: ScriptOrder, epoch: int, first: int) -> None:
        self._order, self._epoch = order, epoch
        self._source = _Rounds(order, epoch, first)
        self._rounds: deque[Sequence[Any]] = deque()
        self._made = self._begun = self.first = first
        self._ended = False

    @property
    def reach(self) -> int:
        """Number of the round from which on it is cheaper to begin a new window."""
        return self._made + 4 * self._source.at_once

    def round(self, number: int) -> Sequence[Any]:
        """Return the batches of all ESTs; the last round only once the epoch is known to end with it."""
        expected = self._order.batches
        assert self.first <= number < expected, f"no batch {number} of {expected} from {self.first} on"
        # Before the last round is returned, read on to check that the sampler ends with it.
        while self._made <= number or (self._made >= expected and not self._ended):
            self._make_more()
        while self.first < number - self._order.rounds_kept:
            self._rounds.popleft()
            self.first += 1
        return self._rounds[number - self.first]

    def _make_more(self) -> None:
        more = self._source.take()
        self._rounds.extend(more)
        self._made += len(more)
        self._ended = len(more) < self._source.at_once
        expected = self._order.batches
        if self._made > expected or (self._ended and self._made < expected):
            self._wrong_length(expected)

    def _wrong_length(self, expected: int) -> NoReturn:
        given = str(self._made)
        if not self._ended:
            given = f"more than {expected}"
        elif self._made == self._begun:
            given = f"not more than {given}"
        believed = self._order.length_believed
        raise DataError(
            f"the sampler gives each EST {given} batches in epoch {self._epoch}, "
            f"but {expected} {'by its length' if believed else 'in epoch 0'}",
            hint="its __len__ must return the number of batches that it gives, in every epoch"
            if believed
            else "all epochs of a job have the same number of steps",
            epoch=self._epoch,
            batches=self._made,
            expected=expected,
        )


class RankOrder:
    """Order of one rank for a stock DataLoader: its batch_sampler, or its sampler without batching."""

    def __init__(self, order: ScriptOrder, rank: int) -> None:
        self._order = order
        self._rank = rank
        self._epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, as DistributedSampler's method; called before every epoch."""
        self._epoch = epoch

    def __iter__(self) -> Iterator[Any]:
        for batch in range(self._order.batches):
            yield self._order.index(self._epoch, self._rank, batch)

    def __len__(self) -> int:
        return self._order.batches


def _length(sampler: Any) -> int | None:
    try:
        return len(sampler)
    except (TypeError, NotImplementedError):
        return None


def _sure_length(sampler: Any) -> bool:
    """True if `len` is known to be correct: torch's own samplers and plain sequences."""
    if type(sampler) is BatchSampler:
        sampler = sampler.sampler
    return type(sampler) in _SURE


def _from_batch(sampler: Any, first: int, *, batched: bool) -> Iterator[Any]:
    """Return an iterator over the sampler's elements from number `first` on.

    Draws with replacement are skipped by advancing the generator, a hundred million in about half a second.
    """
    draws = sampler.sampler if batched and type(sampler) is BatchSampler else sampler
    if not first or type(draws) is not RandomSampler or not draws.replacement:
        return itertools.islice(iter(sampler), first, None)
    if draws is sampler:
        return itertools.islice(iter(draws), _skip_draws(draws, first), None)
    left = _skip_draws(draws, first * sampler.batch_size)
    sampler.sampler = itertools.islice(iter(draws), left, None)
    return iter(sampler)


def _skip_draws(sampler: RandomSampler, count: int) -> int:
    """Advance a RandomSampler with replacement, not yet begun, by `count` draws; return the number left to
    skip.

    It draws 32 at a time, so less than 32 are left.
    """
    if sampler.generator is None:  # like its __iter__
        sampler.generator = torch.Generator()
        sampler.generator.manual_seed(int(torch.empty((), dtype=torch.int64).random_().item()))
    total, high = sampler.num_samples, len(sampler.data_source)
    skipped = min(count, total) // 32 * 32
    for at in range(0, skipped, _SKIPPED_AT_ONCE):
        size = (min(_SKIPPED_AT_ONCE, skipped - at),)
        torch.randint(high=high, size=size, dtype=torch.int64, generator=sampler.generator)
    sampler._num_samples = total - skipped
    return count - skipped


def _declared(sampler: Any, name: str, otherwise: Any) -> Any:
    """Return a batch_sampler's attribute, which its loader lacks, or `otherwise`."""
    value = getattr(sampler, name, otherwise)
    return value if type(value) in (int, bool) else otherwise


def _ranked(sampler: Any) -> Any | None:
    """Return the sampler, or the one in a batch_sampler, if it knows ranks."""
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
            hint="make rank a plain attribute: every EST has a copy of the sampler with its own rank",
            option="sampler",
        ) from error


def _shared(sampler: Any, dataset: Any) -> list[Any]:
    """Return what copies share with the sampler: the data, and the global generators."""
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
            hint="every epoch iterates over a copy of it; do not keep iterators, files or locks in it",
            option="sampler",
        ) from error


def _seed_own(value: object, epoch: int) -> None:
    """Set a generator that the sampler holds to its state at the beginning of `epoch`."""
    if isinstance(value, torch.Generator):
        value.manual_seed(value.initial_seed() + epoch)
    elif epoch == 0:
        return  # as at prepare
    elif isinstance(value, random.Random) and not isinstance(value, random.SystemRandom):
        value.seed(_digest(repr(value.getstate()), epoch))
    elif HAS_NUMPY and isinstance(value, np.random.Generator):
        bits = value.bit_generator
        seed = _digest(_spelled(bits.state), epoch)
        bits.state = type(bits)(seed).state
    elif HAS_NUMPY and isinstance(value, np.random.RandomState):
        value.seed(_digest(_spelled(value.get_state(legacy=False)), epoch) % 2**32)


def _spelled(state: Any) -> str:
    """Return the state of a NumPy generator as text, with arrays in full."""
    if isinstance(state, dict):
        return repr([(key, _spelled(value)) for key, value in state.items()])
    if isinstance(state, np.ndarray):
        return repr(state.tolist())
    return repr(state)


def _digest(state: str, epoch: int) -> int:
    return int.from_bytes(hashlib.sha256(f"{epoch}:{state}".encode()).digest()[:8], "little")


@contextmanager
def _seeded_from(epoch: int, generators: Generators | None = None) -> Iterator[None]:
    """Seed the global CPU generators from the epoch within the block, and restore them after it."""
    generators = generators if generators is not None else Generators()
    before = generators.capture()
    random.seed(epoch)
    if HAS_NUMPY:
        np.random.seed(epoch % 2**32)
    torch.default_generator.manual_seed(epoch)
    try:
        yield
    finally:
        generators.restore(before)
