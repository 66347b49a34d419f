"""Jobs, workers, events and contexts between messages and values."""

from __future__ import annotations

from elastane_master.decisions.cost import NANOS, CostView
from elastane_master.decisions.events import Determinism, JobSettings, Parts, Recovery, Rejection
from elastane_master.decisions.liveness import Liveness
from elastane_master.decisions.views import ContextView, JobView, WorkerView
from elastane_master.records import StoredNote
from elastane_master.servers.translate import (
    NAME_CHARACTERS_MAX,
    as_range,
    duration,
    seconds,
    shown,
    timestamp,
)
from elastane_master.servers.translate_session import CAPACITIES
from elastane_master.store.errors import Damage, HeldError, JobDamaged
from elastane_proto import contexts, history_wire
from elastane_proto.v1 import common_pb2, context_pb2, job_pb2, ring_pb2

_DEFAULTS = JobSettings(ests=1)
_PHASES = {
    "waiting": job_pb2.JOB_PHASE_WAITING,
    "running": job_pb2.JOB_PHASE_RUNNING,
    "suspended": job_pb2.JOB_PHASE_SUSPENDED,
    "succeeded": job_pb2.JOB_PHASE_SUCCEEDED,
    "failed": job_pb2.JOB_PHASE_FAILED,
    "cancelled": job_pb2.JOB_PHASE_CANCELLED,
    "max_wait_exceeded": job_pb2.JOB_PHASE_MAX_WAIT_EXCEEDED,
}
_LEVELS: dict[Determinism, job_pb2.DeterminismLevel] = {
    "d0": job_pb2.DETERMINISM_LEVEL_D0,
    "d1": job_pb2.DETERMINISM_LEVEL_D1,
    "d2": job_pb2.DETERMINISM_LEVEL_D2,
}
_RECOVERIES: dict[Recovery, job_pb2.RecoveryPolicy] = {
    "elastic": job_pb2.RECOVERY_POLICY_ELASTIC,
    "fixed": job_pb2.RECOVERY_POLICY_FIXED,
}
_PLACES = {
    "member": job_pb2.WORKER_STATE_MEMBER,
    "standby": job_pb2.WORKER_STATE_STANDBY,
    "draining": job_pb2.WORKER_STATE_DRAINING,
    "tasks_only": job_pb2.WORKER_STATE_TASKS_ONLY,
    "awaited": job_pb2.WORKER_STATE_AWAITED,
}


def job_settings(message: job_pb2.JobSettings) -> JobSettings:
    """The settings, with the defaults of job.proto where the message says nothing. Raises Rejection."""

    def span(field: str, default: float) -> float:
        return seconds(getattr(message, field), field) if message.HasField(field) else default

    return JobSettings(
        ests=message.ests,
        workers_min=message.workers_min or _DEFAULTS.workers_min,
        workers_max=message.workers_max,
        seed=message.seed if message.HasField("seed") else None,
        checkpoint_url=message.checkpoint_url,
        checkpoint_interval_steps=message.checkpoint_interval_steps,
        checkpoint_keep=message.checkpoint_keep or _DEFAULTS.checkpoint_keep,
        heartbeat_timeout_seconds=span("heartbeat_timeout", _DEFAULTS.heartbeat_timeout_seconds),
        lease_min_seconds=span("lease_min", _DEFAULTS.lease_min_seconds),
        lease_factor=message.lease_factor or _DEFAULTS.lease_factor,
        join_window_seconds=span("join_window", _DEFAULTS.join_window_seconds),
        return_grace_seconds=span("return_grace", _DEFAULTS.return_grace_seconds),
        idle_max_seconds=span("idle_max", _DEFAULTS.idle_max_seconds),
        torch_threads=message.torch_threads or _DEFAULTS.torch_threads,
        audit_samples=message.audit_samples,
        determinism=_determinism(message.determinism),
        max_wait_seconds=span("max_wait", _DEFAULTS.max_wait_seconds),
        recovery=_recovery(message.recovery),
        currency=shown(message.currency, NAME_CHARACTERS_MAX) or _DEFAULTS.currency,
        spot_price_micros=message.spot_price_micros,
        on_demand_price_micros=message.on_demand_price_micros,
        fingerprint_steps=(
            message.fingerprint_steps
            if message.HasField("fingerprint_steps")
            else _DEFAULTS.fingerprint_steps
        ),
        sentinel_steps=message.sentinel_steps,
    )


def _determinism(value: job_pb2.DeterminismLevel) -> Determinism:
    if value == job_pb2.DETERMINISM_LEVEL_UNSPECIFIED:
        return _DEFAULTS.determinism
    for level, known in _LEVELS.items():
        if known == value:
            return level
    raise Rejection(
        "invalid_argument",
        f"determinism: this master does not know level {int(value)}",
        hint="use D0, D1 or D2, or a newer master",
        field="determinism",
    )


def _recovery(value: job_pb2.RecoveryPolicy) -> Recovery:
    if value == job_pb2.RECOVERY_POLICY_UNSPECIFIED:
        return _DEFAULTS.recovery
    for recovery, known in _RECOVERIES.items():
        if known == value:
            return recovery
    raise Rejection(
        "invalid_argument",
        f"recovery: this master does not know policy {int(value)}",
        hint="use ELASTIC or FIXED, or a newer master",
        field="recovery",
    )


def settings_message(settings: JobSettings) -> job_pb2.JobSettings:
    """Inverse of `job_settings`, with every default written out."""
    return job_pb2.JobSettings(
        ests=settings.ests,
        workers_min=settings.workers_min,
        workers_max=settings.workers_max or settings.ests,
        seed=settings.seed,
        checkpoint_url=settings.checkpoint_url,
        checkpoint_interval_steps=settings.checkpoint_interval_steps,
        checkpoint_keep=settings.checkpoint_keep,
        heartbeat_timeout=duration(settings.heartbeat_timeout_seconds),
        lease_min=duration(settings.lease_min_seconds),
        lease_factor=settings.lease_factor,
        join_window=duration(settings.join_window_seconds),
        return_grace=duration(settings.return_grace_seconds),
        idle_max=duration(settings.idle_max_seconds),
        torch_threads=settings.torch_threads,
        audit_samples=settings.audit_samples,
        determinism=_LEVELS[settings.determinism],
        max_wait=duration(settings.max_wait_seconds),
        recovery=_RECOVERIES[settings.recovery],
        currency=settings.currency,
        spot_price_micros=settings.spot_price_micros,
        on_demand_price_micros=settings.on_demand_price_micros,
        fingerprint_steps=settings.fingerprint_steps,
        sentinel_steps=settings.sentinel_steps,
    )


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
