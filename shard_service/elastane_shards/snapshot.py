"""Serialised form of a `DynamicQueue`.

DONE is stored as gaps between runs, mostly one byte each. The RNG states of leased tasks take about 10 KB
each but are shared by all tasks of one call, so they go into a table and tasks refer to a row of it. Tasks
leased as a run are one entry.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from elastane_shards.epoch import EpochTasks, Held
from elastane_shards.errors import InvalidSnapshot
from elastane_shards.intervals import IntervalSet
from elastane_shards.progress import RateWindow
from elastane_shards.settings import QueueSettings
from elastane_shards.splitters import Source
from elastane_shards.tasks import AttemptError, Parts

VERSION = 2
PUSHES_VERSION = 3
"""Version of queues with pushing tasks, which an older release must not lease."""
VERSIONS_READ = (1, VERSION, PUSHES_VERSION)


class HeldSnapshot(msgspec.Struct, frozen=True, array_like=True):
    """The `Held` of `count` tasks from `index` on; `rng` is a row of the snapshot's table."""

    index: int
    worker: str
    attempt: int
    deadline: float
    rng: int
    errors: tuple[AttemptError, ...]
    count: int = 1

    def restored(self, rng: list[Parts]) -> dict[int, Held]:
        """Rebuild the tasks; they share the row `rng` of the table. Raises InvalidSnapshot."""
        if not 0 <= self.rng < len(rng):
            raise InvalidSnapshot(f"task {self.index} names RNG states that are not there", row=self.rng)
        held = Held(self.worker, self.attempt, self.deadline, rng[self.rng], self.errors)
        return dict.fromkeys(range(self.index, self.index + self.count), held)


class TasksSnapshot(msgspec.Struct, frozen=True, array_like=True):
    """An `EpochTasks`: cursor, gaps of DONE, leased, re-queued and failed tasks, table of RNG states.

    reopened: gaps of the reopened tasks.
    """

    counter: int
    done: list[int]
    doing: list[HeldSnapshot]
    requeued: list[HeldSnapshot]
    failed: list[tuple[int, tuple[AttemptError, ...]]]
    rng: list[Parts]
    reopened: list[int] = []

    def restored(self) -> EpochTasks:
        """Rebuild the `EpochTasks`. Raises InvalidSnapshot, InvariantViolated."""
        tasks = EpochTasks()
        tasks.counter = self.counter
        tasks.done = IntervalSet.from_gaps(self.done)
        for group, stored in ((tasks.doing, self.doing), (tasks.requeued, self.requeued)):
            for held in stored:
                group.update(held.restored(self.rng))
        tasks.failed = dict(self.failed)
        tasks.reopened = IntervalSet.from_gaps(self.reopened)
        return tasks


class ReopenedSnapshot(msgspec.Struct, frozen=True):
    """A `ReopenedTasks`: epochs with unfinished tasks, and gaps of the tasks reopened once, twice, ..."""

    epochs: dict[int, TasksSnapshot]
    times: dict[int, list[list[int]]]
    count: int


class QueueSnapshot(msgspec.Struct, frozen=True, kw_only=True, tag="dynamic"):
    """Full state of a `DynamicQueue`; settings and source are None if the caller stores them."""

    version: int = VERSION
    settings: QueueSettings | None
    source: Source | None
    epoch: int
    tasks: TasksSnapshot
    failed_before: list[tuple[int, int, tuple[AttemptError, ...]]]
    now: float | None
    requeued: int
    timed_out: int
    samples_done: int
    epoch_samples: int
    rate: RateWindow
    reopened: ReopenedSnapshot | None = None


_decoder = msgspec.msgpack.Decoder(QueueSnapshot)


def _runs(group: dict[int, Held]) -> Iterator[tuple[int, int, Held]]:
    """Yield (first task, number of tasks, their Held) for consecutive tasks that share one Held."""
    start, count, shared = 0, 0, None
    for index, held in group.items():
        if held is shared and index == start + count:
            count += 1
            continue
        if shared is not None:
            yield start, count, shared
        start, count, shared = index, 1, held
    if shared is not None:
        yield start, count, shared


def tasks_of(tasks: EpochTasks) -> TasksSnapshot:
    """Build the snapshot of an epoch's tasks."""
    rows: dict[int, int] = {}
    table: list[Parts] = []

    def row(rng: Parts) -> int:
        # By identity: all tasks leased in one call share one dict of RNG states, and comparing 10 KB each is
        # slow.
        if id(rng) not in rows:
            rows[id(rng)] = len(table)
            table.append(rng)
        return rows[id(rng)]

    def held(group: dict[int, Held]) -> list[HeldSnapshot]:
        return [
            HeldSnapshot(start, task.worker, task.attempt, task.deadline, row(task.rng), task.errors, count)
            for start, count, task in _runs(group)
        ]

    return TasksSnapshot(
        counter=tasks.counter,
        done=tasks.done.to_gaps(),
        doing=held(tasks.doing),
        requeued=held(tasks.requeued),
        failed=list(tasks.failed.items()),
        rng=table,
        reopened=tasks.reopened.to_gaps(),
    )


def encode_queue(state: QueueSnapshot) -> bytes:
    """Encode as MessagePack."""
    return msgspec.msgpack.encode(state)


def decode_queue(snapshot: bytes) -> QueueSnapshot:
    """Inverse of `encode_queue`. Raises InvalidSnapshot for other bytes or an unknown version."""
    try:
        state = _decoder.decode(snapshot)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InvalidSnapshot(f"these bytes are no snapshot of a dynamic queue: {error}") from error
    if state.version not in VERSIONS_READ:
        raise InvalidSnapshot(
            f"a snapshot of version {state.version}; this program reads {PUSHES_VERSION}",
            version=state.version,
        )
    return state
