"""Read models of a job for the API, dashboard and metrics. Nothing here changes its state."""

from __future__ import annotations

from typing import Literal

import msgspec

from elastane_master.decisions import autoscaling, cost, pipeline_view
from elastane_master.decisions.contexts import parts_bytes, parts_sha256
from elastane_master.decisions.datasets import LOCKSTEP_DATASET
from elastane_master.decisions.effects import Member
from elastane_master.decisions.events import Capacity, Parts, Rejection
from elastane_master.decisions.machine import JobMachine
from elastane_master.decisions.ring_state import Stage
from elastane_master.decisions.state import FailedCheckpoint, JobState, SavedCheckpoint, WorkerRecord
from elastane_proto.job_settings import JobSettings
from elastane_shards.progress import Progress
from elastane_shards.tasks import TaskInfo, TaskState

HOLDERS_MAX = 1000
TASKS_PAGE_MAX = 1000
WorkerPlace = Literal["member", "standby", "draining", "tasks_only", "awaited"]


class WorkerView(msgspec.Struct, frozen=True):
    """A worker, as job.proto's WorkerInfo; `session` finds its last_heard in `Liveness`."""

    worker: str
    session: str
    place: WorkerPlace
    start: int
    end: int
    applied_step: int
    joined_at: float
    reason: str
    host: str
    pid: int
    capacity: Capacity = "spot"


class TaskCounts(msgspec.Struct, frozen=True):
    """Tasks of all dynamic data sets, as job.proto's TaskCounts. total: 0: not known yet."""

    done: int
    total: int
    over: bool


class JobView(msgspec.Struct, frozen=True):
    """A job, as job.proto's Job. step: the next to commit. settings: with scaling and prices in force.
    environment: facts that the script's workers have in common. datasets: number of dynamic ones. tasks: of
    these, for a job that has only tasks.
    """

    name: str
    settings: JobSettings
    original_settings: JobSettings
    phase: str
    reason: str
    generation: int
    step: int
    epoch: int
    steps_per_epoch: int
    epochs: int
    environment: dict[str, str]
    saved_step: int
    created_at: float
    workers: tuple[WorkerView, ...]
    revision: int
    cost: cost.CostView
    datasets: int
    scaling: autoscaling.ScalingView | None = None
    pipeline: pipeline_view.PipelineState | None = None
    tasks: TaskCounts | None = None


class RingView(msgspec.Struct, frozen=True):
    """The ring."""

    generation: int
    step: int
    stage: Stage
    members: tuple[Member, ...]


class ContextView(msgspec.Struct, frozen=True):
    """A stored context without its bytes. loader: its position, packed; worker: who hosts the EST."""

    virtual_rank: int
    step: int
    loader: bytes
    bytes: int
    sha256: str
    worker: str


class CheckpointsView(msgspec.Struct, frozen=True):
    """Checkpoints kept, failed and asked for; a request's outcome is found by its id."""

    saved: tuple[SavedCheckpoint, ...]
    failed: tuple[FailedCheckpoint, ...]
    rejected: tuple[str, ...]
    pending: tuple[str, ...]
    saved_step: int


class ProgressView(msgspec.Struct, frozen=True):
    """Progress of a dataset and its leases (at most 1000 tasks)."""

    dataset: str
    progress: Progress
    holders: tuple[TaskInfo, ...]


def job_view(machine: JobMachine, now: float | None = None) -> JobView:
    """The job and its workers. now: up to when its cost is counted; None: up to the last decision."""
    state = machine.state
    signature = state.signature
    steps_per_epoch = signature.steps_per_epoch if signature else 0
    epoch = state.steps.committed // steps_per_epoch if steps_per_epoch else 0
    last_epoch = max(signature.epochs - 1, 0) if signature and signature.epochs else epoch
    return JobView(
        name=state.name,
        settings=state.settings,
        original_settings=state.original,
        phase=state.phase,
        reason=state.reason,
        generation=state.ring.generation,
        step=state.steps.committed,
        epoch=min(epoch, last_epoch),
        steps_per_epoch=steps_per_epoch,
        epochs=signature.epochs if signature else 0,
        environment=signature.environment if signature else {},
        saved_step=state.checkpoints.saved_step,
        created_at=state.created_at,
        workers=tuple(_worker_view(state, record) for record in state.workers.values()),
        revision=state.revision,
        cost=cost.view(state, state.decided_at if now is None else now),
        datasets=len(state.datasets.task_sizes),
        scaling=autoscaling.view(state),
        pipeline=pipeline_view.view(state),
        tasks=task_counts(machine),
    )


def ring_view(machine: JobMachine) -> RingView:
    """Return the current ring, or the one being formed."""
    ring = machine.state.ring
    return RingView(ring.generation, machine.state.steps.committed, ring.stage, ring.members)


def context_views(machine: JobMachine) -> tuple[ContextView, ...]:
    """All contexts that are kept, by step and virtual rank."""
    state = machine.state
    return tuple(
        ContextView(
            rank,
            step,
            parts.get("loader", b""),
            parts_bytes(parts),
            parts_sha256(parts),
            _host_of(state, rank),
        )
        for step, contexts in sorted(state.contexts.steps.items())
        for rank, parts in enumerate(contexts)
    )


def context_of(machine: JobMachine, virtual_rank: int, step: int | None = None) -> tuple[int, Parts]:
    """(step, context) of one EST; step None: the newest kept. Raises Rejection("not_found")."""
    kept = machine.state.contexts.steps
    if not 0 <= virtual_rank < machine.state.settings.ests:
        raise Rejection("not_found", f"the job has no virtual rank {virtual_rank}", virtual_rank=virtual_rank)
    wanted = max(kept, default=-1) if step is None else step
    if wanted not in kept:
        raise Rejection(
            "not_found",
            f"no contexts of step {wanted} are kept",
            hint=f"the contexts of steps {sorted(kept)} are kept",
            step=wanted,
        )
    return wanted, kept[wanted][virtual_rank]


def checkpoints_view(machine: JobMachine) -> CheckpointsView:
    """Outcome of the checkpoints."""
    book = machine.state.checkpoints
    in_flight = book.in_flight.requests if book.in_flight else ()
    return CheckpointsView(
        book.saved, book.failed, book.rejected, (*in_flight, *book.wanted), book.saved_step
    )


def progress_views(machine: JobMachine, now: float) -> tuple[ProgressView, ...]:
    """The training (dataset "train", once a ring worker has joined), then every dynamic dataset."""
    views = []
    if machine.queues.lockstep is not None:
        progress = machine.queues.lockstep.progress(now)
        views.append(ProgressView(LOCKSTEP_DATASET, progress, _lockstep_holders(machine)))
    for name, queue in machine.queues.dynamic.items():
        holders = tuple(queue.list_tasks(TaskState.DOING, limit=HOLDERS_MAX))
        progress = msgspec.structs.replace(queue.progress(now), complete=_is_complete(machine, name))
        views.append(ProgressView(name, progress, holders))
    return tuple(views)


def task_counts(machine: JobMachine) -> TaskCounts | None:
    """Tasks of a job that does tasks alone; None of any other."""
    queues = machine.queues.dynamic
    if machine.queues.lockstep is not None or not queues:
        return None
    found = [queue.progress(machine.state.decided_at) for queue in queues.values()]
    is_open = any(not one.total for one in found)
    return TaskCounts(
        done=sum(one.done + one.failed + one.total * one.epoch for one in found),
        total=0 if is_open else sum(one.total * one.epochs for one in found),
        over=all(_is_complete(machine, name) for name in queues),
    )


def _is_complete(machine: JobMachine, name: str) -> bool:
    """True if a dynamic data set is; one whose tasks push, once no slot can lose what is DONE any more."""
    queue = machine.queues.dynamic[name]
    return queue.complete and (not queue.pushes or name in machine.state.slots.finished)


def list_tasks(
    machine: JobMachine,
    dataset: str,
    state: TaskState | None = None,
    after: tuple[int, int] | None = None,
    limit: int = 100,
) -> tuple[TaskInfo, ...]:
    """Return a page of a dynamic dataset's tasks after (epoch, index) `after`. Raises Rejection."""
    queue = machine.queues.dynamic.get(dataset)
    if queue is None:
        raise Rejection("not_found", f"the job has no dataset {dataset!r}", dataset=dataset)
    if not 1 <= limit <= TASKS_PAGE_MAX:
        raise Rejection(
            "invalid_argument", f"a page of {limit} tasks", hint=f"1 to {TASKS_PAGE_MAX}", field="page_size"
        )
    return tuple(queue.list_tasks(state, after, limit))


def _worker_view(state: JobState, record: WorkerRecord) -> WorkerView:
    member = state.ring.member(record.worker)
    place: WorkerPlace = "member" if member else "standby"
    if record.awaited:
        place = "awaited"
    elif record.role == "tasks":
        place = "tasks_only"
    elif record.draining:
        place = "draining"
    return WorkerView(
        worker=record.worker,
        session=record.session,
        place=place,
        start=member.start if member else 0,
        end=member.end if member else 0,
        applied_step=record.applied_step if record.holds_state else 0,
        joined_at=record.joined_at,
        reason=record.reason,
        host=record.host,
        pid=record.pid,
        capacity=record.capacity,
    )


def _host_of(state: JobState, rank: int) -> str:
    return next((member.worker for member in state.ring.members if member.start <= rank < member.end), "")


def _lockstep_holders(machine: JobMachine) -> tuple[TaskInfo, ...]:
    queue = machine.queues.training
    step = queue.step
    if step is None:
        return ()
    reported = set(range(queue.settings.ests)) - {rank for rank, _ in queue.unreported()}
    infos = []
    for rank, worker in sorted(queue.holders(step).items()):
        start, end = queue.bounds(step, rank)
        if rank not in reported:
            epoch = step // queue.settings.steps_per_epoch
            infos.append(TaskInfo(epoch, step, start, end, TaskState.DOING, queue.attempt(step), worker))
    return tuple(infos[:HOLDERS_MAX])
