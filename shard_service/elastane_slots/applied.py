"""Sets of task names, stored as runs: the tasks that a slot has applied.

Tasks are applied nearly in order, so the names of an epoch are few runs, however many tasks it has. Epochs
in which exactly the tasks 0..n-1 are applied are stored together, so that a million epochs take no more than
one. Only tasks in flight and FAILED tasks cost memory.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence

import msgspec

from elastane_shards.errors import InvalidRequest, InvalidSnapshot, InvariantViolated, ShardsError
from elastane_shards.intervals import IntervalSet
from elastane_slots.tasks import TaskName, TaskRun

VERSION = 1
#: Sets may have become equal: it is looked whether they have, each time that they have so many names more.
_SHARE_COUNTS = 256


class _Even(msgspec.Struct, frozen=True, array_like=True):
    """Epochs [start, end), of each of which exactly the tasks [0, count) are in the set; count > 0."""

    start: int
    end: int
    count: int


class _StoredDataset(msgspec.Struct, frozen=True, array_like=True):
    """even: ascending, as (start, end, count). open: other epochs, ascending, with the gaps of their runs."""

    name: str
    even: list[_Even]
    open: list[tuple[int, list[int]]]


class _Stored(msgspec.Struct, frozen=True, array_like=True):
    version: int
    datasets: list[_StoredDataset]


_decoder = msgspec.msgpack.Decoder(_Stored)


class _Epochs:
    """The names of one dataset. even: epochs before `newest`; open: the newest, and others with holes."""

    __slots__ = ("even", "newest", "open")

    def __init__(self) -> None:
        self.even: list[_Even] = []
        self.open: dict[int, IntervalSet] = {}
        self.newest = -1

    def even_of(self, epoch: int) -> int:
        """Position in `even` of the entry that has this epoch; -1 if none has."""
        place = bisect_right(self.even, epoch, key=lambda entry: entry.start) - 1
        return place if place >= 0 and epoch < self.even[place].end else -1

    def tasks(self, epoch: int) -> IntervalSet:
        """Names of an epoch; the result must not be changed."""
        found = self.open.get(epoch)
        if found is not None:
            return found
        place = self.even_of(epoch)
        return IntervalSet([(0, self.even[place].count)] if place >= 0 else [])

    def opened(self, epoch: int) -> IntervalSet:
        """Names of an epoch, to be added to."""
        found = self.open.get(epoch)
        if found is None:
            found = self.tasks(epoch)
            if (place := self.even_of(epoch)) >= 0:
                entry = self.even[place]
                around = [_Even(entry.start, epoch, entry.count), _Even(epoch + 1, entry.end, entry.count)]
                self.even[place : place + 1] = [part for part in around if part.start < part.end]
            self.open[epoch] = found
            if epoch > self.newest:
                self.newest = epoch
                self.fold()
        return found

    def fold(self) -> None:
        """Merge even epochs before the newest into `even`."""
        folded = [epoch for epoch, tasks in self.open.items() if epoch < self.newest and _is_even(tasks)]
        if folded:
            self.even = _joined([*self.even, *(_Even(e, e + 1, self.open.pop(e).count) for e in folded)])

    def stored(self, name: str) -> _StoredDataset:
        """Return the canonical stored form, independent of the order of additions."""
        even = [_Even(epoch, epoch + 1, tasks.count) for epoch, tasks in self.open.items() if _is_even(tasks)]
        rest = [(epoch, tasks.to_gaps()) for epoch, tasks in sorted(self.open.items()) if not _is_even(tasks)]
        return _StoredDataset(name, _joined([*self.even, *even]), rest)


class _Names:
    """Contents shared by equal sets. holders: at least the number of sets that share it."""

    __slots__ = ("count", "datasets", "holders")

    def __init__(self) -> None:
        self.datasets: dict[str, _Epochs] = {}
        self.count = 0
        self.holders = 1

    def has(self, name: TaskName) -> bool:
        epochs = self.datasets.get(name.dataset)
        if epochs is None:
            return False
        tasks = epochs.open.get(name.epoch)
        if tasks is not None:
            return name.task in tasks
        place = epochs.even_of(name.epoch)
        return place >= 0 and 0 <= name.task < epochs.even[place].count

    def add(self, run: TaskRun) -> int:
        dataset, epoch, start, end = run
        epochs = self.datasets.get(dataset)
        if epochs is None:
            epochs = self.datasets[dataset] = _Epochs()
        elif epoch not in epochs.open and epochs.tasks(epoch).covers(start, end):
            return 0  # nothing to open
        new = epochs.opened(epoch).add(start, end)
        self.count += new
        return new

    def left(self, leaving: int) -> _Names:
        """Return a copy for so many holders, which leave this."""
        copied = _Names()
        copied.count, copied.holders = self.count, leaving
        for dataset, epochs in self.datasets.items():
            copied.datasets[dataset] = found = _Epochs()
            found.even, found.newest = list(epochs.even), epochs.newest
            found.open = {epoch: IntervalSet(tasks.intervals()) for epoch, tasks in epochs.open.items()}
        # Only now: the last holder changes these names in place, and the copy would have what it adds. If two
        # threads subtract at once, one may be lost: that is a holder too many, never one too few.
        self.holders -= leaving
        return copied


class AppliedSet:
    """A mutable set of task names, of any number of datasets.

    Sets that `add_to_all` has made equal share their names until one of them is changed without the others.
    So sets that are changed in different threads need a lock each, and `add_to_all` all of theirs.
    """

    __slots__ = ("_names",)

    def __init__(self) -> None:
        self._names = _Names()

    def add(self, name: TaskName) -> bool:
        """Add a name; True if it was new. Raises InvalidRequest for a negative epoch or index."""
        return self.add_run(TaskRun(name.dataset, name.epoch, name.task, name.task + 1)) == 1

    def add_run(self, run: TaskRun) -> int:
        """Add the names of a run and return how many were new. Raises InvalidRequest."""
        _check(run)
        if run.start == run.end:
            return 0
        if self._names.holders > 1:
            self._names = self._names.left(1)
        return self._names.add(run)

    def __contains__(self, name: TaskName) -> bool:
        return self._names.has(name)

    def __len__(self) -> int:
        return self._names.count

    def __eq__(self, other: object) -> bool:
        return self.encode() == other.encode() if isinstance(other, AppliedSet) else NotImplemented

    __hash__ = None  # type: ignore[assignment] # mutable

    def __repr__(self) -> str:
        return f"AppliedSet({self._names.count} tasks of {self.datasets()})"

    @property
    def count(self) -> int:
        """Number of names."""
        return self._names.count

    def datasets(self) -> list[str]:
        """Datasets of which there are names, sorted."""
        return sorted(self._names.datasets)

    def newest_epoch(self, dataset: str) -> int:
        """The highest epoch of which there is a name; -1 without any."""
        epochs = self._names.datasets.get(dataset)
        return epochs.newest if epochs is not None else -1

    def tasks(self, dataset: str, epoch: int) -> IntervalSet:
        """Return the indices of an epoch's names; to be read only."""
        epochs = self._names.datasets.get(dataset)
        return epochs.tasks(epoch) if epochs is not None else IntervalSet()

    def even_until(self, dataset: str, epoch: int, count: int) -> int:
        """Return the end of the epochs from `epoch` on in which exactly the tasks [0, count) are known to be
        applied, without examining each; `epoch` itself if that one has to be examined."""
        epochs = self._names.datasets.get(dataset)
        place = epochs.even_of(epoch) if epochs is not None else -1
        if epochs is None or place < 0 or epochs.even[place].count != count:
            return epoch
        return epochs.even[place].end

    def runs(self) -> Iterator[TaskRun]:
        """Yield all names as runs, by dataset, epoch and index. Do not add while iterating."""
        for dataset in self.datasets():
            epochs = self._names.datasets[dataset]
            parts = [(entry.start, entry) for entry in epochs.even] + [(epoch, None) for epoch in epochs.open]
            for first, entry in sorted(parts, key=lambda part: part[0]):
                if entry is not None:
                    yield from (TaskRun(dataset, e, 0, entry.count) for e in range(entry.start, entry.end))
                else:
                    yield from (TaskRun(dataset, first, *run) for run in epochs.open[first].intervals())

    def encode(self) -> bytes:
        """Serialise as MessagePack. Equal sets have equal bytes."""
        datasets = [self._names.datasets[name].stored(name) for name in self.datasets()]
        return msgspec.msgpack.encode(_Stored(VERSION, datasets))

    @classmethod
    def decode(cls, stored: bytes) -> AppliedSet:
        """Inverse of `encode`. Raises InvalidSnapshot for bytes that `encode` cannot have written."""
        try:
            decoded = _decoder.decode(stored)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise InvalidSnapshot(f"these bytes are no set of tasks: {error}") from error
        if decoded.version != VERSION:
            raise InvalidSnapshot(f"a set of tasks in version {decoded.version}", version=decoded.version)
        result = cls()
        try:
            for dataset in decoded.datasets:
                if dataset.name in result._names.datasets:
                    raise InvariantViolated(f"dataset {dataset.name!r} stands twice in a set of tasks")
                result._names.datasets[dataset.name] = _restored(dataset)
            result._names.count = result._counted()
            result.validate()
        except ShardsError as error:
            raise InvalidSnapshot(f"the set of tasks contradicts itself: {error}", **error.facts) from error
        if result.encode() != stored:
            raise InvalidSnapshot("the set of tasks is not in the form that is written")
        return result

    def copy(self) -> AppliedSet:
        """Return an independent copy."""
        return AppliedSet.decode(self.encode())

    def validate(self) -> None:
        """Raise InvariantViolated if the set contradicts itself; for tests and after a restore."""
        for name, epochs in self._names.datasets.items():
            end = 0
            for entry in epochs.even:
                if not end <= entry.start < entry.end or entry.count <= 0:
                    raise InvariantViolated("even epochs overlap or are empty", dataset=name)
                end = entry.end
            for epoch, tasks in epochs.open.items():
                tasks.validate()
                if epoch < 0 or not tasks.count or epochs.even_of(epoch) >= 0:
                    raise InvariantViolated("an epoch is empty, negative or there twice", dataset=name)
            if epochs.newest != max([end - 1, *epochs.open]):
                raise InvariantViolated("the newest epoch is not the last", dataset=name)
        if self._names.count != self._counted():
            raise InvariantViolated("a set of tasks counts wrong", count=self._names.count)

    def _counted(self) -> int:
        return sum(
            sum((entry.end - entry.start) * entry.count for entry in epochs.even)
            + sum(tasks.count for tasks in epochs.open.values())
            for epochs in self._names.datasets.values()
        )


def add_to_all(sets: Sequence[AppliedSet], name: TaskName) -> bool:
    """Add a name to different sets, once for all that share their names. False, and nothing is changed, if
    one of them has it. Raises InvalidRequest as `add` does."""
    groups: dict[int, list[AppliedSet]] = {}
    for one in sets:
        groups.setdefault(id(one._names), []).append(one)
    run = TaskRun(name.dataset, name.epoch, name.task, name.task + 1)
    _check(run)
    if any(group[0]._names.has(name) for group in groups.values()):
        return False
    for group in groups.values():
        if group[0]._names.holders > len(group):
            names = group[0]._names.left(len(group))
            for one in group:
                one._names = names
        group[0]._names.add(run)
    if len(groups) > 1:  # nobody else holds any of these names now
        _share([group for group in groups.values() if group[0].count % _SHARE_COUNTS == 1])
    return True


def _check(run: TaskRun) -> None:
    dataset, epoch, start, end = run
    if epoch < 0 or not 0 <= start <= end:
        raise InvalidRequest(
            f"there are no tasks {start}..{end - 1} of epoch {epoch}", dataset=dataset, epoch=epoch
        )


def _share(groups: Sequence[list[AppliedSet]]) -> None:
    """Have equal sets share their names. groups: sets that do, all of each."""
    found: dict[bytes, _Names] = {}
    for group in groups:
        own = group[0]._names
        names = found.setdefault(group[0].encode(), own)
        if names is not own:
            names.holders += len(group)
            for one in group:
                one._names = names


def in_all(sets: Sequence[AppliedSet], name: TaskName) -> list[tuple[bool, int]]:
    """Return of each set whether it has a name, and its count; sets that share their names are asked once."""
    known: dict[_Names, tuple[bool, int]] = {}
    found = []
    for one in sets:
        names = one._names
        if names not in known:
            known[names] = names.has(name), names.count
        found.append(known[names])
    return found


def _is_even(tasks: IntervalSet) -> bool:
    return 0 < tasks.count == tasks.first_missing()


def _joined(entries: list[_Even]) -> list[_Even]:
    """Sort entries, and merge those that follow one another with equal counts."""
    joined: list[_Even] = []
    for entry in sorted(entries, key=lambda entry: entry.start):
        last = joined[-1] if joined else None
        if last is not None and (last.end, last.count) == (entry.start, entry.count):
            joined[-1] = _Even(last.start, entry.end, entry.count)
        else:
            joined.append(entry)
    return joined


def _restored(dataset: _StoredDataset) -> _Epochs:
    epochs = _Epochs()
    epochs.even = list(dataset.even)
    for epoch, gaps in dataset.open:
        epochs.open[epoch] = IntervalSet.from_gaps(gaps)
    epochs.newest = max([*epochs.open, *(entry.end - 1 for entry in epochs.even)], default=-1)
    return epochs
