"""Converts the messages of a job to the view that the agent's policy uses."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from elastane_agent.supervisor.job_view import JobView
from elastane_proto.history import events as history
from elastane_proto.history_wire import event_of
from elastane_proto.v1 import common_pb2, job_pb2, ring_pb2

_ATTENDING: Final = (
    job_pb2.WORKER_STATE_MEMBER,
    job_pb2.WORKER_STATE_STANDBY,
    job_pb2.WORKER_STATE_AWAITED,
)
_JOINED: Final = (job_pb2.WORKER_STATE_MEMBER, job_pb2.WORKER_STATE_STANDBY)


def sent_away(worker: str, events: Iterable[ring_pb2.Event]) -> bool:
    """True if the worker's latest join or drain event is a drain that an operator requested."""
    away = False
    for event in events:
        match event_of(event):
            case history.WorkerDraining(worker=name, by=by) if name == worker:
                away = by == "operator"
            case history.WorkerJoined(worker=name) | history.WorkerReturned(worker=name) if name == worker:
                away = False
    return away


def is_undecided(events: Iterable[ring_pb2.Event]) -> bool:
    """True if the sentinel suspended the job without a verdict and nobody has resumed it since."""
    found = False
    for event in map(event_of, events):
        if isinstance(event, history.SentinelUndecided):
            found = True
        elif isinstance(event, (history.JobResumed, history.SuspensionCalledOff)):
            found = False
    return found


def job_view(job: job_pb2.Job, *, undecided: bool = False) -> JobView:
    """Convert a job to the policy's view. undecided: the sentinel has suspended it."""
    phase = job_pb2.JobPhase.Name(job.phase).removeprefix("JOB_PHASE_").lower()
    attending = [worker for worker in job.workers if worker.state in _ATTENDING]
    return JobView(
        phase=phase,  # type: ignore[arg-type]
        reason=job.reason,
        workers_max=job.settings.workers_max or job.settings.ests,
        step=job.step,
        steps=job.steps_per_epoch * job.epochs,
        standby=frozenset(
            worker.worker_id for worker in job.workers if worker.state == job_pb2.WORKER_STATE_STANDBY
        ),
        undecided=undecided,
        datasets=job.datasets if job.HasField("datasets") else None,
        target=job.scaling.workers_target if job.HasField("scaling") else None,
        joined=frozenset(worker.worker_id for worker in job.workers if worker.state in _JOINED),
        attending=frozenset(worker.worker_id for worker in attending),
        on_demand=frozenset(
            worker.worker_id for worker in attending if worker.capacity == common_pb2.CAPACITY_TYPE_ON_DEMAND
        ),
        on_demand_max=on_demand_max(job),
        task_workers=frozenset(
            worker.worker_id for worker in job.workers if worker.state == job_pb2.WORKER_STATE_TASKS_ONLY
        ),
    )


def on_demand_max(job: job_pb2.Job) -> int | None:
    """Return the maximum number of on-demand workers of a job; None: no limit."""
    if job.HasField("scaling") and job.settings.on_demand_workers:
        return job.scaling.on_demand_target
    return None
