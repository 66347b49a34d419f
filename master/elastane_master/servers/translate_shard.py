"""Datasets, tasks, progress and the committed history between messages and values."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator, Sequence

from elastane_master.decisions.datasets import LOCKSTEP_DATASET
from elastane_master.decisions.effects import Commit
from elastane_master.decisions.events import Rejection, StepTask, TaskReport, TasksRequested
from elastane_master.decisions.lease_answers import LeaseResult
from elastane_master.decisions.views import ProgressView
from elastane_master.jobs.records import StoredCommit
from elastane_master.servers.translate import (
    NAMES,
    RANGE,
    checked_length,
    checked_name,
    invalid_field,
    shown,
    timestamp,
)
from elastane_proto import contexts
from elastane_proto.message_codec import Codec, Field, InvalidFieldError, enum_words, set_timestamp
from elastane_proto.v1 import common_pb2, shard_pb2
from elastane_shards.progress import Progress
from elastane_shards.settings import QueueSettings
from elastane_shards.tasks import Outcome, TaskInfo, TaskState

_OUTCOMES = {
    Outcome.ACCEPTED: shard_pb2.REPORT_OUTCOME_ACCEPTED,
    Outcome.STALE: shard_pb2.REPORT_OUTCOME_STALE,
    Outcome.RETURNED: shard_pb2.REPORT_OUTCOME_RETURNED,
}
_TASK_TOKEN = re.compile(r"([0-9]{1,18})-([0-9]{1,18})")


_TASKS: Codec = Codec(
    NAMES,
    {
        QueueSettings: {
            "size": "range.size",
            "entries": "list.entries",
            "watermark": "stream.watermark",
            "closed": "stream.closed",
        },
        ProgressView: {"progress": Field(put=lambda message, view: _TASKS.fill(message, view.progress))},
        Progress: {"failed_before": None},
        TaskInfo: RANGE,
        StepTask: RANGE,
    },
)


def dataset_settings(message: shard_pb2.DatasetSettings) -> QueueSettings:
    """The settings, with defaults where the message says nothing. Raises Rejection."""
    if message.WhichOneof("source") is None:
        raise Rejection(
            "invalid_argument", "the dataset has no source", hint="set range, list or stream", field="source"
        )
    try:
        return _TASKS.read(QueueSettings, message, zero_is_default=True)
    except InvalidFieldError as error:
        raise invalid_field(error) from None


# Requests for tasks and their answers are mapped by hand: there are thousands a second, of up to thousands of
# tasks each, and the codec takes up to twice the time.


def tasks_requested(request: shard_pb2.LeaseTasksRequest) -> TasksRequested:
    """The event of a LeaseTasks call. Raises Rejection."""
    request_id = request.request_id
    return TasksRequested(
        request_id=checked_length(request_id, "request_id") if request_id else uuid.uuid4().hex,
        dataset=checked_name(request.dataset, "dataset"),
        worker=checked_name(request.worker_id, "worker_id"),
        completed=tuple([_report(report) for report in request.completed]),
        max_tasks=request.max_tasks,
        rng=contexts.rng_from_proto(request.rng) if request.HasField("rng") else {},
        runs=request.runs,
        unanswered=request.unanswered,
        leaves=request.leaves,
    )


def _report(report: shard_pb2.TaskReport) -> TaskReport:
    error = report.error
    return TaskReport(
        report.epoch,
        report.index,
        report.attempt,
        shown(error) if error else "",
        report.count or 1,
        report.lives_sum if report.HasField("lives_sum") else None,
        report.returned,
        report.non_finite,
        tuple(report.map_generations),
    )


def lease_response(dataset: str, result: LeaseResult) -> shard_pb2.LeaseTasksResponse:
    """The answer to LeaseTasks."""
    response = shard_pb2.LeaseTasksResponse()
    fill_response(response, dataset, result)
    return response


def streamed_response(
    answers: Sequence[tuple[str, LeaseResult]], *, is_first: bool
) -> shard_pb2.StreamTasksResponse:
    """The answers to one or more requests of StreamTasks, each with its dataset.

    is_first: they are the first ones of their stream.
    """
    streamed = shard_pb2.StreamTasksResponse(reads_more=is_first)
    fill_response(streamed.response, *answers[0])
    for answer in answers[1:]:
        fill_response(streamed.more.add(), *answer)
    return streamed


def fill_response(response: shard_pb2.LeaseTasksResponse, dataset: str, result: LeaseResult) -> None:
    """Set a new answer, in place: a message made apart would be copied into its holder."""
    response.complete = result.complete
    for lease in result.tasks:
        task = response.tasks.add()
        task.dataset, task.epoch, task.index, task.attempt = dataset, lease.epoch, lease.index, lease.attempt
        task.range.start, task.range.end = lease.start, lease.end
        set_timestamp(task.deadline, lease.deadline)
        if lease.entries:
            task.entries.extend(lease.entries)
        if lease.rng:
            contexts.fill_rng(task.rng, lease.rng)
        if lease.count > 1:
            task.count = lease.count
        if lease.number:
            task.lease, task.map_generation = lease.number, lease.map_generation
    for report in result.outcomes:
        outcome = response.outcomes.add()
        outcome.epoch, outcome.index, outcome.outcome = report.epoch, report.index, _OUTCOMES[report.outcome]
        if report.count > 1:
            outcome.count = report.count


def progress_message(view: ProgressView) -> shard_pb2.Progress:
    """Progress of a dataset."""
    message = shard_pb2.Progress()
    _TASKS.fill(message, view)
    return message


def task_info(info: TaskInfo) -> shard_pb2.TaskInfo:
    """A task as it is listed."""
    message = shard_pb2.TaskInfo()
    _TASKS.fill(message, info)
    return message


def task_state(number: int) -> TaskState | None:
    """The state asked for; None: all. Raises Rejection on one this master does not know."""
    if number == shard_pb2.TASK_STATE_UNSPECIFIED:
        return None
    word = enum_words(shard_pb2.TaskState.DESCRIPTOR).get(number)
    if word is None:
        raise Rejection("invalid_argument", f"there is no task state {number}", field="state")
    return TaskState(word)


def task_token(info: TaskInfo) -> str:
    """The place behind a task, for the next page."""
    return f"{info.epoch}-{info.index}"


def after_token(token: str) -> tuple[int, int] | None:
    """Inverse of `task_token`; None for an empty one. Raises Rejection."""
    if not token:
        return None
    match = _TASK_TOKEN.fullmatch(token)
    if match is None:
        raise bad_token(token)
    return int(match[1]), int(match[2])


def bad_token(token: str) -> Rejection:
    """The refusal of a page token that was not given out by this master."""
    return Rejection(
        "invalid_argument",
        f"{token[:40]!r} is not a page token",
        hint="pass next_page_token of the page before, unchanged",
        field="page_token",
    )


def audit_entries(stored: StoredCommit, dataset: str) -> Iterator[shard_pb2.AuditEntry]:
    """The entries of one commit: N tasks of a step, or a run of dynamic ones; none if of another dataset.

    dataset: empty for all.
    """
    commit, committed = stored.commit, timestamp(stored.now)
    if isinstance(commit, Commit):
        if dataset in ("", LOCKSTEP_DATASET):
            for worker, task in commit.tasks:
                entry = shard_pb2.AuditEntry(
                    dataset=LOCKSTEP_DATASET,
                    epoch=commit.epoch,
                    step=commit.step,
                    worker_id=worker,
                    generation=commit.generation,
                    committed=committed,
                )
                _TASKS.fill(entry, task)
                yield entry
    elif dataset in ("", commit.dataset):
        for number in range(commit.count):
            start = commit.start + number * commit.task_size
            last = number == commit.count - 1
            entry = shard_pb2.AuditEntry(
                dataset=commit.dataset,
                epoch=commit.epoch,
                step=commit.index + number,
                worker_id=commit.worker,
                attempt=commit.attempt,
                range=common_pb2.Range(start=start, end=commit.end if last else start + commit.task_size),
                committed=committed,
            )
            if commit.reopened:
                entry.reopened = commit.reopened
            yield entry
