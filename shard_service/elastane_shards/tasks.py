"""What a task looks like from outside: leased, returned, listed."""

from __future__ import annotations

from enum import StrEnum

import msgspec

Parts = dict[str, bytes]
"""RNG states by name ("rng/python", ...), as raw bytes."""


class TaskState(StrEnum):
    """TODO: waits. DOING: is leased. DONE: is committed. FAILED: parked after max_attempts."""

    TODO = "todo"
    DOING = "doing"
    DONE = "done"
    FAILED = "failed"


class Outcome(StrEnum):
    """What became of a report. ACCEPTED: counted. STALE: of a lease that is over; nothing changed."""

    ACCEPTED = "accepted"
    STALE = "stale"


class QueueStatus(StrEnum):
    """What a worker that asks for tasks should do.

    HAS_TODO: it gets some. WAIT: nothing now, but a task in DOING may come back, the next epoch may start
    or the stream may grow, so it must not leave. COMPLETE: every task is DONE or FAILED.
    """

    HAS_TODO = "has_todo"
    WAIT = "wait"
    COMPLETE = "complete"


class AttemptError(msgspec.Struct, frozen=True, array_like=True):
    """How one attempt at a task ended badly: reported by the worker, timed out, or the worker was lost."""

    attempt: int
    worker: str
    error: str


class TaskLease(msgspec.Struct, frozen=True, gc=False):
    """A task as handed to a worker.

    count: tasks from `index` on that this lease covers. start, end: positions of all of them; with shuffle
    the worker permutes them. entries: what a list source says for the
    task, in the order to be consumed (already permuted); for byte offsets one more, the end of the last
    record. attempt: from 1. deadline: seconds, on the clock of `now`. rng: the states given with the first
    lease of the task, so a replay draws the same augmentation.
    """

    epoch: int
    index: int
    start: int
    end: int
    attempt: int
    worker: str
    deadline: float
    entries: tuple[int, ...] = ()
    rng: Parts = {}
    count: int = 1


class ReturnedTask(msgspec.Struct, frozen=True):
    """A task whose lease ended without it being done. state: TODO (at the front again) or FAILED."""

    epoch: int
    index: int
    worker: str
    attempt: int
    state: TaskState
    error: str


class TaskInfo(msgspec.Struct, frozen=True):
    """A task as `list_tasks` shows it.

    attempt, worker: of the lease in DOING; in TODO of the last lease (0 and "" before the first); of a DONE
    task they are in the committed history, not here. deadline: only in DOING.
    """

    epoch: int
    index: int
    start: int
    end: int
    state: TaskState
    attempt: int = 0
    worker: str = ""
    deadline: float | None = None
    errors: tuple[AttemptError, ...] = ()
