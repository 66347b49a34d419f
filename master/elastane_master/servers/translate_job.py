"""Jobs, workers, events and contexts between messages and values."""

from __future__ import annotations

from msgspec.structs import replace

from elastane_master.decisions.amounts import NANOS
from elastane_master.decisions.cost import CostView
from elastane_master.decisions.events import Parts
from elastane_master.decisions.liveness import Liveness
from elastane_master.decisions.views import ContextView, JobView, WorkerView
from elastane_master.jobs.records import StoredNote
from elastane_master.servers.translate import (
    NAME_CHARACTERS_MAX,
    as_range,
    invalid_field,
    shown,
    timestamp,
)
from elastane_master.servers.translate_session import CAPACITIES
from elastane_master.store.errors import Damage, HeldError, JobDamaged
from elastane_proto import contexts, history_wire, message_codec
from elastane_proto.job_settings import JobSettings
from elastane_proto.v1 import common_pb2, context_pb2, job_pb2, ring_pb2

_PHASES = {
    "waiting": job_pb2.JOB_PHASE_WAITING,
    "running": job_pb2.JOB_PHASE_RUNNING,
    "suspended": job_pb2.JOB_PHASE_SUSPENDED,
    "succeeded": job_pb2.JOB_PHASE_SUCCEEDED,
    "failed": job_pb2.JOB_PHASE_FAILED,
    "cancelled": job_pb2.JOB_PHASE_CANCELLED,
    "max_wait_exceeded": job_pb2.JOB_PHASE_MAX_WAIT_EXCEEDED,
}
_PLACES = {
    "member": job_pb2.WORKER_STATE_MEMBER,
    "standby": job_pb2.WORKER_STATE_STANDBY,
    "draining": job_pb2.WORKER_STATE_DRAINING,
    "tasks_only": job_pb2.WORKER_STATE_TASKS_ONLY,
    "awaited": job_pb2.WORKER_STATE_AWAITED,
}


def job_settings(message: job_pb2.JobSettings) -> JobSettings:
    """The settings, with the defaults where the message says nothing. Raises Rejection."""
    try:
        settings = message_codec.read(JobSettings, message, zero_is_default=True)
    except message_codec.InvalidFieldError as error:
        raise invalid_field(error) from None
    return replace(settings, currency=shown(settings.currency, NAME_CHARACTERS_MAX))


def settings_message(settings: JobSettings) -> job_pb2.JobSettings:
    """Inverse of `job_settings`, with every default written out."""
    message = job_pb2.JobSettings()
    message_codec.fill(message, replace(settings, workers_max=settings.workers_max or settings.ests))
    return message


def job_message(view: JobView, liveness: Liveness) -> job_pb2.Job:
    """The job as it is shown."""
    return job_pb2.Job(
        name=view.name,
        settings=settings_message(view.settings),
        phase=_PHASES[view.phase],
        reason=view.reason,
        generation=view.generation,
        step=view.step,
        epoch=view.epoch,
        steps_per_epoch=view.steps_per_epoch,
        epochs=view.epochs,
        environment=view.environment,
        saved_step=view.saved_step,
        created=timestamp(view.created_at),
        workers=[_worker_message(worker, liveness) for worker in view.workers],
        revision=view.revision,
        cost=cost_message(view.cost),
    )


def held_message(error: HeldError) -> job_pb2.Job:
    """A job that is held."""
    if not isinstance(error, JobDamaged):
        return job_pb2.Job(name=error.job, phase=job_pb2.JOB_PHASE_TOO_NEW, saved_step=-1, reason=str(error))
    return job_pb2.Job(
        name=error.job,
        phase=job_pb2.JOB_PHASE_DAMAGED,
        saved_step=-1,
        reason="; ".join(str(damage) for damage in error.damages),
        damages=[damage_message(damage) for damage in error.damages],
    )


def damage_message(damage: Damage) -> job_pb2.Damage:
    """A hole, as it is told."""
    return job_pb2.Damage(key=damage.key, sequence=damage.sequence, lost=damage.lost)


def cost_message(view: CostView) -> job_pb2.Cost:
    """What a job has cost."""
    return job_pb2.Cost(
        currency=view.currency,
        spent_micros=view.spent_micros,
        on_demand_micros=view.on_demand_micros,
        saved_micros=view.saved_micros,
        savings=view.savings,
        worker_seconds=view.worker_nanos / NANOS,
        spot_worker_seconds=view.spot_worker_nanos / NANOS,
        on_demand_worker_seconds=view.on_demand_worker_nanos / NANOS,
        useful_seconds=view.useful_nanos / NANOS,
        replayed_seconds=view.replayed_nanos / NANOS,
        idle_seconds=view.idle_nanos / NANOS,
        replayed_micros=view.replayed_micros,
        idle_micros=view.idle_micros,
        unpriced_seconds=view.unpriced_nanos / NANOS,
        spot_price_micros=view.spot_price_micros,
        on_demand_price_micros=view.on_demand_price_micros,
    )


def _worker_message(view: WorkerView, liveness: Liveness) -> job_pb2.WorkerInfo:
    heard = liveness.last_heard(view.worker, view.session)
    return job_pb2.WorkerInfo(
        worker_id=view.worker,
        state=_PLACES[view.place],
        ests=as_range(view.start, view.end),
        applied_step=view.applied_step,
        joined=timestamp(view.joined_at),
        last_heard=timestamp(heard) if heard is not None else None,
        reason=view.reason,
        host=view.host,
        pid=view.pid,
        capacity=CAPACITIES[view.capacity],
    )


def event_message(stored: StoredNote) -> ring_pb2.Event:
    """A decision and its reason."""
    note = stored.note
    event = ring_pb2.Event(
        sequence=stored.sequence,
        time=timestamp(stored.now),
        kind=note.kind,
        worker_id=note.worker,
        reason=note.reason,
        generation=note.generation,
        step=note.step,
        facts=note.facts,
    )
    history_wire.fill(event, note.event)
    return event


def context_message(virtual_rank: int, step: int, parts: Parts) -> common_pb2.EstContext:
    """A stored context with its bytes."""
    return contexts.context_to_proto(virtual_rank, step, parts)


def context_info(view: ContextView) -> context_pb2.ContextInfo:
    """A stored context without its bytes."""
    info = context_pb2.ContextInfo(
        virtual_rank=view.virtual_rank,
        step=view.step,
        bytes=view.bytes,
        sha256=view.sha256,
        worker_id=view.worker,
    )
    if view.loader:
        epoch, batch, base_seed = contexts.unpack_loader(view.loader)
        info.loader.epoch, info.loader.batch = epoch, batch
        if base_seed is not None:
            info.loader.base_seed = base_seed
    return info
