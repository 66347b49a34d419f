"""Translation between the master's messages and the decisions' types."""

from __future__ import annotations

from typing import Any

from elastane_operator.decisions.observed import CostView, JobAtMaster, MasterPhase, WorkerView
from elastane_operator.decisions.spec import JobSpec, price_micros
from elastane_proto.v1 import job_pb2

_PHASES: dict[int, MasterPhase] = {
    job_pb2.JOB_PHASE_WAITING: "waiting",
    job_pb2.JOB_PHASE_RUNNING: "running",
    job_pb2.JOB_PHASE_SUSPENDED: "suspended",
    job_pb2.JOB_PHASE_SUCCEEDED: "succeeded",
    job_pb2.JOB_PHASE_FAILED: "failed",
    job_pb2.JOB_PHASE_CANCELLED: "cancelled",
    job_pb2.JOB_PHASE_MAX_WAIT_EXCEEDED: "max_wait_exceeded",
}
_STATES: dict[int, Any] = {
    job_pb2.WORKER_STATE_MEMBER: "member",
    job_pb2.WORKER_STATE_STANDBY: "standby",
    job_pb2.WORKER_STATE_DRAINING: "draining",
}
_LEVELS = {
    "D0": job_pb2.DETERMINISM_LEVEL_D0,
    "D1": job_pb2.DETERMINISM_LEVEL_D1,
    "D2": job_pb2.DETERMINISM_LEVEL_D2,
}
_RECOVERY = {"Elastic": job_pb2.RECOVERY_POLICY_ELASTIC, "Fixed": job_pb2.RECOVERY_POLICY_FIXED}


def job_view(
    job: job_pb2.Job, samples_per_second: float = 0.0, est_seconds: float | None = None
) -> JobAtMaster:
    """Translate a job reported by its master. A phase unknown to this release counts as waiting."""
    cost = job.cost
    return JobAtMaster(
        phase=_PHASES.get(job.phase, "waiting"),
        reason=job.reason,
        ests=job.settings.ests,
        seed=job.settings.seed if job.settings.HasField("seed") else None,
        workers_min=job.settings.workers_min,
        workers_max=job.settings.workers_max,
        generation=job.generation,
        step=job.step,
        steps=job.steps_per_epoch * job.epochs,
        epoch=job.epoch,
        saved_step=job.saved_step,
        samples_per_second=samples_per_second,
        est_seconds=est_seconds,
        workers=tuple(WorkerView(each.worker_id, _STATES.get(each.state, "other")) for each in job.workers),
        cost=CostView(
            currency=cost.currency or "USD",
            spent_micros=cost.spent_micros,
            on_demand_micros=cost.on_demand_micros,
            saved_micros=cost.saved_micros,
            savings=cost.savings if cost.HasField("savings") else None,
            spot_price_micros=cost.spot_price_micros,
            on_demand_price_micros=cost.on_demand_price_micros,
        ),
    )


def job_settings(spec: JobSpec) -> job_pb2.JobSettings:
    """Build the settings for a Create request."""
    settings = job_pb2.JobSettings(
        ests=spec.ests,
        workers_min=spec.workers.min,
        workers_max=spec.workers.max,
        seed=spec.seed,
        checkpoint_url=spec.checkpoint.url,
        checkpoint_interval_steps=spec.checkpoint.interval_steps,
        checkpoint_keep=spec.checkpoint.keep,
        torch_threads=spec.torch_threads,
        audit_samples=True,
        determinism=_LEVELS[spec.determinism],
        recovery=_RECOVERY[spec.recovery_policy],
        currency=spec.spot.currency,
        spot_price_micros=price_micros(spec.spot.price),
        on_demand_price_micros=price_micros(spec.spot.on_demand_price),
    )
    if spec.max_wait_seconds:
        settings.max_wait.FromSeconds(spec.max_wait_seconds)
    return settings


def prices(spec: JobSpec, name: str, request_id: str) -> job_pb2.JobServiceSetPricesRequest:
    """Build a SetPrices request. A price that the spec does not name is left unchanged."""
    request = job_pb2.JobServiceSetPricesRequest(name=name, request_id=request_id)
    if spec.spot.price:
        request.spot_price_micros = price_micros(spec.spot.price)
    if spec.spot.on_demand_price:
        request.on_demand_price_micros = price_micros(spec.spot.on_demand_price)
    return request
