"""Answers to workers that lease tasks, as remembered for those that repeat a request (see `datasets.py`)."""

from __future__ import annotations

import msgspec

from elastane_master.decisions.events import TasksRequested
from elastane_shards.tasks import Outcome, TaskLease

UNANSWERED_MAX = 63
"""Limit of remembered requests per worker, besides its last.

A request with this many `unanswered` may be older than those decided on before it: a waiting one that is
retried, or one repeated after a disconnect.
"""
REMEMBERED_BYTES_MAX = 4 * 2**20
"""Limit for the size of a worker's remembered answers; its last one is always kept."""
TASK_BYTES = 120
OUTCOME_BYTES = 40
"""Approximate size in a snapshot, without RNG states."""


class TaskOutcome(msgspec.Struct, frozen=True, gc=False):
    """Outcome of the report of `count` tasks."""

    epoch: int
    index: int
    outcome: Outcome
    count: int = 1


class LeaseResult(msgspec.Struct, frozen=True, gc=False):
    """Answer to TasksRequested.

    wait: no tasks now, but some may come back or be added; submit the same event again once the state has
    changed. complete: every task is DONE or FAILED.
    """

    tasks: tuple[TaskLease, ...]
    outcomes: tuple[TaskOutcome, ...]
    complete: bool
    wait: bool


class RememberedRequest(msgspec.Struct, frozen=True, gc=False):
    """The last request of a worker and its answer. before: earlier unanswered ones, oldest first.

    late: decided after requests that may have been sent after it. size_bytes: approximate size of the answer.
    """

    request_id: str
    result: LeaseResult
    before: tuple[RememberedRequest, ...] = ()
    late: bool = False
    size_bytes: int = 0

    def found(self, request_id: str) -> RememberedRequest | None:
        """Return the remembered request with this id, or None."""
        if self.request_id == request_id:
            return self
        return next((one for one in self.before if one.request_id == request_id), None)

    def with_answer(self, request_id: str, result: LeaseResult) -> RememberedRequest:
        """Return a copy in which the request with this id, which must be remembered, has another answer."""
        if self.request_id == request_id:
            return msgspec.structs.replace(self, result=result, size_bytes=answer_bytes(result))
        before = tuple(
            one.with_answer(request_id, result) if one.request_id == request_id else one
            for one in self.before
        )
        return msgspec.structs.replace(self, before=before)

    def without_leases(self) -> RememberedRequest:
        """Return a copy in which the requests, when repeated, lease anew; their outcomes are the same."""
        result = msgspec.structs.replace(
            self.result, tasks=(), wait=self.result.wait or bool(self.result.tasks)
        )
        before = tuple(one.without_leases() for one in self.before)
        return msgspec.structs.replace(self, result=result, before=before, size_bytes=answer_bytes(result))

    def followed_by(self, event: TasksRequested, result: LeaseResult) -> RememberedRequest:
        """Return a copy with `event` as the last request, keeping earlier ones that its worker may repeat."""
        late = event.unanswered >= UNANSWERED_MAX
        before: tuple[RememberedRequest, ...] = ()
        if event.unanswered:
            before = (*self.before, msgspec.structs.replace(self, before=()))
            # A late request may be answered already and precede an unanswered one, so it must not displace
            # any.
            kept = min(event.unanswered + sum(one.late for one in before), UNANSWERED_MAX)
            before = before[-kept:]
        return RememberedRequest(event.request_id, result, before, late, answer_bytes(result))

    def bounded(self) -> RememberedRequest:
        """Return a copy without the oldest requests beyond the size limit."""
        if not self.before:
            return self
        room = REMEMBERED_BYTES_MAX - self.size_bytes
        if sum(one.size_bytes for one in self.before) <= room:
            return self
        kept = len(self.before)
        while kept and (room := room - self.before[kept - 1].size_bytes) >= 0:
            kept -= 1
        return msgspec.structs.replace(self, before=self.before[kept:])


def answer_bytes(result: LeaseResult) -> int:
    """Return the approximate size of an answer in a snapshot."""
    size = TASK_BYTES * len(result.tasks) + OUTCOME_BYTES * len(result.outcomes)
    for task in result.tasks:
        if task.rng or task.entries:
            size += 9 * len(task.entries) + sum(map(len, task.rng.values()))
    return size


class DatasetBook(msgspec.Struct):
    """Settings and remembered requests. task_sizes: by dataset.

    remembered: by dataset and worker, oldest first.
    """

    task_sizes: dict[str, int] = {}
    remembered: dict[str, dict[str, RememberedRequest]] = {}
