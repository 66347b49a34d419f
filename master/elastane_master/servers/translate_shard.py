"""Datasets, tasks, progress and the committed history between messages and values."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator

from elastane_master.decisions.datasets import LOCKSTEP_DATASET
from elastane_master.decisions.effects import Commit
from elastane_master.decisions.events import DatasetSettings, Rejection, TaskReport, TasksRequested
from elastane_master.decisions.lease_answers import LeaseResult
from elastane_master.decisions.views import ProgressView
from elastane_master.jobs.records import StoredCommit
from elastane_master.servers.translate import (
    as_range,
    checked_length,
    checked_name,
    duration,
    seconds,
    set_timestamp,
    shown,
    timestamp,
)
from elastane_proto import contexts
from elastane_proto.v1 import shard_pb2
from elastane_shards.tasks import Outcome, TaskInfo, TaskState

_DEFAULTS = DatasetSettings(task_size=1)
_STATES = {
    TaskState.TODO: shard_pb2.TASK_STATE_TODO,
    TaskState.DOING: shard_pb2.TASK_STATE_DOING,
    TaskState.DONE: shard_pb2.TASK_STATE_DONE,
    TaskState.FAILED: shard_pb2.TASK_STATE_FAILED,
}
_STATE_OF: dict[int, TaskState] = {number: state for state, number in _STATES.items()}
_OUTCOMES = {
    Outcome.ACCEPTED: shard_pb2.REPORT_OUTCOME_ACCEPTED,
    Outcome.STALE: shard_pb2.REPORT_OUTCOME_STALE,
}
_TASK_TOKEN = re.compile(r"([0-9]{1,18})-([0-9]{1,18})")


def dataset_settings(message: shard_pb2.DatasetSettings) -> DatasetSettings:
    """The settings, with the defaults of shard.proto. Raises Rejection."""
    source = message.WhichOneof("source")
    if source is None:
        raise Rejection(
            "invalid_argument", "the dataset has no source", hint="set range, list or stream", field="source"
        )
    has_lease = message.HasField("lease")
    return DatasetSettings(
        task_size=message.task_size,
        size=message.range.size if source == "range" else None,
        entries=tuple(message.list.entries) if source == "list" else None,
        watermark=message.stream.watermark if source == "stream" else None,
        closed=message.stream.closed,
        epochs=message.epochs or _DEFAULTS.epochs,
        lease_seconds=seconds(message.lease, "lease") if has_lease else _DEFAULTS.lease_seconds,
        max_attempts=message.max_attempts or _DEFAULTS.max_attempts,
        shuffle=message.shuffle,
        seed=message.seed,
    )


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
    )


def _report(report: shard_pb2.TaskReport) -> TaskReport:
    error = report.error
    return TaskReport(
        report.epoch, report.index, report.attempt, shown(error) if error else "", report.count or 1
    )


def lease_response(dataset: str, result: LeaseResult) -> shard_pb2.LeaseTasksResponse:
    """The answer to LeaseTasks."""
    response = shard_pb2.LeaseTasksResponse()
    fill_response(response, dataset, result)
    return response


def streamed_response(dataset: str, result: LeaseResult) -> shard_pb2.StreamTasksResponse:
    """The answer to a request of StreamTasks."""
    streamed = shard_pb2.StreamTasksResponse()
    fill_response(streamed.response, dataset, result)
    return streamed


def fill_response(response: shard_pb2.LeaseTasksResponse, dataset: str, result: LeaseResult) -> None:
    """Everything is filled in place: a message made apart is copied into its holder."""
    response.complete = result.complete
    for lease in result.tasks:
        task = response.tasks.add(
            dataset=dataset, epoch=lease.epoch, index=lease.index, attempt=lease.attempt
        )
        task.range.start, task.range.end = lease.start, lease.end
        set_timestamp(task.deadline, lease.deadline)
        if lease.entries:
            task.entries.extend(lease.entries)
        if lease.rng:
            task.rng.CopyFrom(contexts.rng_to_proto(lease.rng))
        if lease.count > 1:
            task.count = lease.count
    for report in result.outcomes:
        outcome = response.outcomes.add(
            epoch=report.epoch, index=report.index, outcome=_OUTCOMES[report.outcome]
        )
        if report.count > 1:
            outcome.count = report.count


def progress_message(view: ProgressView) -> shard_pb2.Progress:
    """How far a dataset is."""
    progress = view.progress
    eta = progress.eta_seconds
    return shard_pb2.Progress(
        dataset=view.dataset,
        epoch=progress.epoch,
        epochs=progress.epochs,
        todo=progress.todo,
        doing=progress.doing,
        done=progress.done,
        failed=progress.failed,
        total=progress.total,
        requeued=progress.requeued,
        timed_out=progress.timed_out,
        samples_done=progress.samples_done,
        samples_per_second=progress.samples_per_second,
        eta=duration(eta) if eta is not None else None,
        complete=progress.complete,
        holders=[task_info(info) for info in view.holders],
    )


def task_info(info: TaskInfo) -> shard_pb2.TaskInfo:
    """A task as it is listed."""
    return shard_pb2.TaskInfo(
        epoch=info.epoch,
        index=info.index,
        range=as_range(info.start, info.end),
        state=_STATES[info.state],
        attempt=info.attempt,
        worker_id=info.worker,
        deadline=timestamp(info.deadline) if info.deadline is not None else None,
        errors=[
            shard_pb2.ErrorOfAttempt(attempt=error.attempt, worker_id=error.worker, error=error.error)
            for error in info.errors
        ],
    )


def task_state(number: int) -> TaskState | None:
    """The state asked for; None: all. Raises Rejection on one this master does not know."""
    if number == shard_pb2.TASK_STATE_UNSPECIFIED:
        return None
    state = _STATE_OF.get(number)
    if state is None:
        raise Rejection("invalid_argument", f"there is no task state {number}", field="state")
    return state


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
                yield shard_pb2.AuditEntry(
                    dataset=LOCKSTEP_DATASET,
                    epoch=commit.epoch,
                    step=commit.step,
                    virtual_rank=task.virtual_rank,
                    worker_id=worker,
                    generation=commit.generation,
                    range=as_range(task.start, task.end),
                    samples=task.samples,
                    metrics=task.metrics,
                    committed=committed,
                )
    elif dataset in ("", commit.dataset):
        for number in range(commit.count):
            start = commit.start + number * commit.task_size
            last = number == commit.count - 1
            yield shard_pb2.AuditEntry(
                dataset=commit.dataset,
                epoch=commit.epoch,
                step=commit.index + number,
                worker_id=commit.worker,
                attempt=commit.attempt,
                range=as_range(start, commit.end if last else start + commit.task_size),
                committed=committed,
            )
