"""Dynamic datasets: leases and reports on top of `DynamicQueue`, made safe to retry.

A worker that did not receive an answer repeats the request with the same id. Its reports must not count twice
and it must get the same leases, so the last request of each worker is remembered; for a worker with several
requests in flight, earlier ones as well.
"""

from __future__ import annotations

from elastane_master.decisions.decision_context import DecisionContext
from elastane_master.decisions.effects import TaskCommit
from elastane_master.decisions.events import (
    DatasetCreated,
    DatasetExtended,
    Rejection,
    TaskReport,
    TasksRequested,
)
from elastane_master.decisions.lease_answers import LeaseResult, RememberedRequest, TaskOutcome, answer_bytes
from elastane_master.decisions.slots import finishing, leasing
from elastane_proto.history import events as history
from elastane_shards.dynamic import DynamicQueue
from elastane_shards.errors import ShardsError
from elastane_shards.settings import QueueSettings
from elastane_shards.tasks import Outcome, QueueStatus, ReturnedTask, TaskLease, TaskState

TASKS_MAX = 10_000
REMEMBERED_MAX = 10_000
"""Limit of workers per dataset whose requests are remembered."""
NOTES_MAX = 20
#: Phases of a job in which no task is leased.
NOTHING_LEASED = ("suspended", "max_wait_exceeded", "failed", "cancelled")
LOCKSTEP_DATASET = "train"
"""Name under which the progress of the training itself is shown."""


def create(ctx: DecisionContext, event: DatasetCreated) -> None:
    """Create a dataset; the result is False if it existed with equal settings."""
    if not event.dataset or event.dataset == LOCKSTEP_DATASET:
        raise Rejection(
            "invalid_argument",
            f"invalid dataset name {event.dataset!r}",
            hint=f"{LOCKSTEP_DATASET!r} is the training itself; choose another name",
            field="dataset",
        )
    settings = event.settings
    existing = ctx.queues.dynamic.get(event.dataset)
    if existing is not None:
        _require_equal(event.dataset, existing.settings, settings)
        ctx.result = False
        return
    try:
        queue = DynamicQueue(settings)
    except ShardsError as error:
        raise _rejection(error) from error
    ctx.touch()
    ctx.queues.dynamic[event.dataset] = queue
    ctx.state.datasets.task_sizes[event.dataset] = settings.task_size
    ctx.result = True
    ctx.note(history.DatasetCreated(event.dataset, settings.task_size, settings.epochs))


def extend(ctx: DecisionContext, event: DatasetExtended) -> None:
    """Grow or close a stream source; repeating a request changes nothing."""
    queue = _queue(ctx, event.dataset)
    before = queue.snapshot(with_settings=False)
    try:
        queue.extend(event.watermark, event.closed)
    except ShardsError as error:
        raise _rejection(error) from error
    if queue.snapshot(with_settings=False) != before:
        ctx.touch()


def lease(ctx: DecisionContext, event: TasksRequested) -> None:
    """Count the reports, then lease tasks; the result is a `LeaseResult`."""
    queue = _queue(ctx, event.dataset)
    if ctx.state.phase in NOTHING_LEASED:
        raise Rejection(
            "wrong_phase", f"the job is {ctx.state.phase}: {ctx.state.reason}", phase=ctx.state.phase
        )
    if not event.worker or not 0 <= event.max_tasks <= TASKS_MAX:
        raise Rejection(
            "invalid_argument",
            f"{event.max_tasks} tasks for worker {event.worker!r}",
            hint=f"name the worker and ask for at most {TASKS_MAX} tasks",
            field="max_tasks" if event.worker else "worker_id",
        )
    _check_reports(ctx, queue, event)
    remembered = ctx.state.datasets.remembered.get(event.dataset)
    last = remembered.get(event.worker) if remembered else None
    known = last.found(event.request_id) if last is not None and event.request_id else None
    outcomes: tuple[TaskOutcome, ...] = ()
    # Reports of a repeated request must not count twice; only an empty lease is tried again.
    if known is not None:
        if known.result.tasks or known.result.complete or not event.max_tasks:
            ctx.result = known.result
            return
        outcomes = known.result.outcomes
    else:
        outcomes = tuple([one for report in event.completed for one in _report(ctx, queue, event, report)])
    if event.leaves:
        _abandon(ctx, event.dataset, event.worker, "its worker left the data set", counts=False)
    if queue.pushes:
        finishing.look(ctx, event.dataset)
    result = _lease(ctx, queue, event, outcomes)
    ctx.result = result
    if ctx.changed and event.request_id:
        _remember(ctx, event, result, is_known=known is not None)


def abandon(ctx: DecisionContext, worker: str, reason: str, *, counts: bool) -> None:
    """Return a lost worker's leases to the front of TODO. counts: as failed attempts.

    The outcomes of its last reports stay: when it repeats them, they must not seem stale to it.
    """
    for name in ctx.queues.dynamic:
        _abandon(ctx, name, worker, reason, counts=counts)


def _abandon(ctx: DecisionContext, dataset: str, worker: str, reason: str, *, counts: bool) -> None:
    queue = ctx.queues.dynamic[dataset]
    remembered = ctx.state.datasets.remembered.get(dataset, {})
    if (last := remembered.get(worker)) is not None:
        remembered[worker] = last.without_leases()
    returned = queue.abandon(worker, ctx.now, reason, counts=counts)
    if returned:
        ctx.touch()
    if queue.pushes:
        leasing.ended(ctx, dataset, returned)
    _note_returned(ctx, dataset, [task for task in returned if task.state is TaskState.FAILED])


def expire(ctx: DecisionContext) -> None:
    """End the leases whose deadline has passed."""
    for name, queue in ctx.queues.dynamic.items():
        deadline = queue.next_deadline()
        if deadline is not None and deadline <= ctx.now:
            _expire(ctx, queue, name)


def next_deadline(queues: dict[str, DynamicQueue]) -> float | None:
    """Time at which the next lease of any dataset ends; None without leases."""
    deadlines = [queue.next_deadline() for queue in queues.values()]
    return min((deadline for deadline in deadlines if deadline is not None), default=None)


def _expire(ctx: DecisionContext, queue: DynamicQueue, dataset: str) -> None:
    ctx.touch()
    returned = queue.expire(ctx.now)
    if queue.pushes:
        leasing.ended(ctx, dataset, returned)
    _note_returned(ctx, dataset, returned, timed_out=True)


def _check_reports(ctx: DecisionContext, queue: DynamicQueue, event: TasksRequested) -> None:
    """Raise Rejection unless all reports are for tasks that may have been leased."""
    tasks = 0
    if queue.pushes and event.runs:
        raise Rejection(
            "invalid_argument", "tasks that push are leased one by one", hint="ask without runs", field="runs"
        )
    try:
        for report in event.completed:
            if queue.pushes:
                leasing.check_report(ctx.state.slots, report)
            elif report.returned:
                raise Rejection(
                    "invalid_argument",
                    "only a task that pushes is given back",
                    hint="report an error",
                    field="completed",
                )
            if report.count < 1 or (report.count > 1 and report.error):
                raise Rejection(
                    "invalid_argument",
                    "a range of tasks can only be reported as done; report errors one by one",
                )
            tasks += report.count
            queue.check_report(report.epoch, report.index, report.attempt)
            if report.count > 1:
                queue.check_report(report.epoch, report.index + report.count - 1, report.attempt)
    except ShardsError as error:
        raise _rejection(error) from error
    if tasks > TASKS_MAX:
        raise Rejection(
            "invalid_argument",
            f"more than {TASKS_MAX} tasks in one report",
            hint="report more often",
            field="completed",
        )


def _report(
    ctx: DecisionContext, queue: DynamicQueue, event: TasksRequested, report: TaskReport
) -> list[TaskOutcome]:
    ctx.touch()
    if queue.pushes:
        outcome = leasing.report(ctx, queue, event.dataset, event.worker, report)
        return [TaskOutcome(report.epoch, report.index, outcome)]
    if report.error:
        return [_report_error(ctx, queue, event, report)]
    task_size, outcomes = ctx.state.datasets.task_sizes[event.dataset], []
    for index, count, outcome in queue.report_run(
        event.worker, report.epoch, report.index, report.count, report.attempt, ctx.now
    ):
        if outcome is Outcome.ACCEPTED:
            start, end = index * task_size, min((index + count) * task_size, queue.watermark)
            ctx.emit(
                TaskCommit(
                    event.dataset,
                    report.epoch,
                    index,
                    start,
                    end,
                    event.worker,
                    report.attempt,
                    count,
                    task_size,
                )
            )
        outcomes.append(TaskOutcome(report.epoch, index, outcome, count))
    return outcomes


def _report_error(
    ctx: DecisionContext, queue: DynamicQueue, event: TasksRequested, report: TaskReport
) -> TaskOutcome:
    failed_before = queue.failed
    outcome = queue.report(event.worker, report.epoch, report.index, report.attempt, report.error, ctx.now)
    if outcome is Outcome.ACCEPTED:
        ctx.note(
            history.TaskFailed(
                event.worker,
                event.dataset,
                report.epoch,
                report.index,
                report.attempt,
                queue.failed > failed_before,
                report.error[:500],
            )
        )
    return TaskOutcome(report.epoch, report.index, outcome)


def _lease(
    ctx: DecisionContext, queue: DynamicQueue, event: TasksRequested, outcomes: tuple[TaskOutcome, ...]
) -> LeaseResult:
    book = ctx.state.slots
    status = leasing.status(book, queue, event.dataset, ctx.now)
    over = ctx.state.phase in NOTHING_LEASED  # a report may just have ended the job
    if event.max_tasks and status is QueueStatus.HAS_TODO and not over:
        ctx.touch()
        # Overdue tasks are leased before new ones, without waiting for the next Tick.
        deadline = queue.next_deadline()
        if deadline is not None and deadline <= ctx.now:
            _expire(ctx, queue, event.dataset)
        tasks: tuple[TaskLease, ...]
        if queue.pushes:
            tasks = leasing.lease(ctx, queue, event.dataset, event.worker, event.max_tasks, event.rng)
        else:
            tasks = tuple(queue.lease(event.worker, event.max_tasks, ctx.now, event.rng, runs=event.runs))
        if tasks:
            return LeaseResult(tasks, outcomes, complete=False, wait=False)
        status = leasing.status(book, queue, event.dataset, ctx.now)
    complete = status is QueueStatus.COMPLETE
    return LeaseResult((), outcomes, complete, wait=event.max_tasks > 0 and not complete and not over)


def _remember(ctx: DecisionContext, event: TasksRequested, result: LeaseResult, *, is_known: bool) -> None:
    """Remember a request's answer. is_known: another answer to it is remembered."""
    remembered = ctx.state.datasets.remembered.setdefault(event.dataset, {})
    last = remembered.pop(event.worker, None)
    if last is None:
        last = RememberedRequest(event.request_id, result, size_bytes=answer_bytes(result))
    elif is_known:
        last = last.with_answer(event.request_id, result)
    else:
        last = last.followed_by(event, result)
    remembered[event.worker] = last.bounded()
    if len(remembered) > REMEMBERED_MAX:
        del remembered[next(iter(remembered))]


def _note_returned(
    ctx: DecisionContext, dataset: str, returned: list[ReturnedTask], *, timed_out: bool = False
) -> None:
    one = history.TaskTimedOut if timed_out else history.TaskFailed
    more = history.MoreTasksTimedOut if timed_out else history.MoreTasksFailed
    for task in returned[:NOTES_MAX]:
        parked = task.state is TaskState.FAILED
        ctx.note(one(task.worker, dataset, task.epoch, task.index, task.attempt, parked, task.error))
    if len(returned) > NOTES_MAX:
        ctx.note(more(dataset, len(returned) - NOTES_MAX))


def _queue(ctx: DecisionContext, dataset: str) -> DynamicQueue:
    queue = ctx.queues.dynamic.get(dataset)
    if dataset == LOCKSTEP_DATASET:
        raise Rejection(
            "lockstep_dataset",
            f"the tasks of {dataset!r} are the training itself, in lockstep: each is an EST's part of a step",
            hint="the ring does them; create a dataset of another name for tasks that are leased",
            dataset=dataset,
        )
    if queue is None:
        raise Rejection(
            "not_found",
            f"the job has no dataset {dataset!r}",
            hint="create it first (ShardService.CreateDataset)",
            dataset=dataset,
        )
    return queue


def _require_equal(dataset: str, existing: QueueSettings, wanted: QueueSettings) -> None:
    for field in QueueSettings.__struct_fields__:
        if getattr(existing, field) != getattr(wanted, field):
            raise Rejection(
                "already_exists",
                f"dataset {dataset!r} already exists with another {field}",
                hint="use its settings, or another name",
                dataset=dataset,
                field=field,
            )


def _rejection(error: ShardsError) -> Rejection:
    return Rejection(error.reason, str(error), hint=error.hint, **error.facts)
