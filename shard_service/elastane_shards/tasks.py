"""Tasks as callers of the queues see them: leased, returned, listed."""

from __future__ import annotations

from enum import StrEnum

import msgspec

Parts = dict[str, bytes]
"""RNG states by name ("rng/python", ...), as raw bytes."""


class TaskState(StrEnum):
    """State of a task. TODO: waiting. DOING: leased. DONE: committed. FAILED: given up after max_attempts."""

    TODO = "todo"
    DOING = "doing"
    DONE = "done"
    FAILED = "failed"


class Outcome(StrEnum):
    """Outcome of a report. ACCEPTED: counted. STALE: its lease has ended; nothing changed.

    RETURNED: the task is leased again, without counting an attempt.
    """

    ACCEPTED = "accepted"
    STALE = "stale"
    RETURNED = "returned"


class QueueStatus(StrEnum):
    """Instruction to a worker that asks for tasks.

    HAS_TODO: lease again, there are tasks. WAIT: none now, but a task in DOING may come back, the next epoch
    may start or the stream may grow, so the worker must stay. COMPLETE: every task is DONE or FAILED.
    """

    HAS_TODO = "has_todo"
    WAIT = "wait"
    COMPLETE = "complete"


class AttemptError(msgspec.Struct, frozen=True, array_like=True):
    """A failed attempt at a task: the worker reported an error, timed out, or was lost."""

    attempt: int
    worker: str
    error: str


class TaskLease(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A task, or a run of tasks, leased to a worker.

    count: number of tasks, from `index` on, that this lease covers. start, end: positions of all of them;
    with shuffle the worker permutes them. entries: the task's entries of a list source in the order of
    consumption (already permuted).
    attempt: from 1. deadline: seconds, on the clock of `now`. rng: RNG states passed with the first lease of
    the task, so that a replay draws the same augmentation. number, map_generation: in a queue that pushes,
    set by its caller: the lease's number, and the generation of the slot map.
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
    number: int = 0
    map_generation: int = 0


class ReturnedTask(msgspec.Struct, frozen=True):
    """A task whose lease ended without DONE. state: TODO (at the front again) or FAILED."""

    epoch: int
    index: int
    worker: str
    attempt: int
    state: TaskState
    error: str


class TaskInfo(msgspec.Struct, frozen=True):
    """A task as returned by `list_tasks`.

    attempt, worker: those of the current lease in DOING and of the last lease in TODO (0 and "" before the
    first); a DONE task has them in the committed history, not here. deadline: set only in DOING.
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
