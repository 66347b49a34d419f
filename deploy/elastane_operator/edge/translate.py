"""Translation between the master's messages and the decisions' types."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from datetime import UTC, timedelta
from types import MappingProxyType
from typing import Any

from elastane_operator.decisions.autoscaling import settings_of
from elastane_operator.decisions.observed import (
    CostView,
    JobAtMaster,
    MasterPhase,
    ScalingSettings,
    Targets,
    Tasks,
    WorkerView,
)
from elastane_operator.decisions.spec import JobSpec, price_micros
from elastane_proto.v1 import job_pb2, shard_pb2

_NONE: Mapping[str, float] = MappingProxyType({})
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
_OVER_BUDGET = {"Cheapest": job_pb2.OVER_BUDGET_CHEAPEST, "Suspend": job_pb2.OVER_BUDGET_SUSPEND}
_SPOT_POLICY = {"Wide": job_pb2.SPOT_POLICY_WIDE, "Uniform": job_pb2.SPOT_POLICY_UNIFORM}
_RECOVERY = {"Elastic": job_pb2.RECOVERY_POLICY_ELASTIC, "Fixed": job_pb2.RECOVERY_POLICY_FIXED}


def job_view(
    job: job_pb2.Job, progress: Sequence[shard_pb2.Progress] = (), est_seconds: Mapping[str, float] = _NONE
) -> JobAtMaster:
    """Translate a job reported by its master. A phase unknown to this release counts as waiting.

    progress: of its datasets, if requested. est_seconds: of one EST's part of a step, from workers that have
    measured it.
    """
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
        samples_per_second=float(sum(each.samples_per_second for each in progress)),
        est_seconds=statistics.median(est_seconds.values()) if est_seconds else None,
        workers=tuple(
            WorkerView(each.worker_id, _STATES.get(each.state, "other"), est_seconds.get(each.worker_id))
            for each in job.workers
        ),
        cost=CostView(
            currency=cost.currency or "USD",
            spent_micros=cost.spent_micros,
            on_demand_micros=cost.on_demand_micros,
            saved_micros=cost.saved_micros,
            savings=cost.savings if cost.HasField("savings") else None,
            spot_price_micros=cost.spot_price_micros,
            on_demand_price_micros=cost.on_demand_price_micros,
        ),
        scaling=_scaling_settings(job.settings),
        targets=_targets(job.scaling) if job.HasField("scaling") else None,
        tasks=_tasks(progress) if progress and not job.steps_per_epoch else None,
    )


def _tasks(progress: Sequence[shard_pb2.Progress]) -> Tasks:
    return Tasks(
        done=sum(each.done + each.failed + each.total * each.epoch for each in progress),
        total=sum(each.total * each.epochs for each in progress),
        over=all(each.complete for each in progress),
    )


def _scaling_settings(settings: job_pb2.JobSettings) -> ScalingSettings:
    return ScalingSettings(
        mode=settings.scaling,
        over_budget="Suspend" if settings.over_budget == job_pb2.OVER_BUDGET_SUSPEND else "Cheapest",
        spot_policy="Uniform" if settings.spot_policy == job_pb2.SPOT_POLICY_UNIFORM else "Wide",
        cold_start_seconds=settings.cold_start.ToNanoseconds() / 1e9,
        on_demand_workers=settings.on_demand_workers,
    )


def _targets(scaling: job_pb2.Scaling) -> Targets:
    finish = scaling.predicted_finish
    return Targets(
        workers=scaling.workers_target,
        on_demand=scaling.on_demand_target,
        reason=scaling.reason,
        predicted_finish=finish.ToDatetime(UTC) if scaling.HasField("predicted_finish") else None,
        predicted_cost_micros=scaling.predicted_cost_micros
        if scaling.HasField("predicted_cost_micros")
        else None,
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
    if spec.pipeline is not None:
        settings.pipeline_stages_min = spec.pipeline.stages_min
        settings.pipeline_stages_max = spec.pipeline.stages_max
        settings.pipeline_shadows = spec.pipeline.shadows
    if (servers := spec.parameter_servers) is not None:
        of_servers = job_pb2.JobSettings(
            ps_slots=servers.slots,
            ps_replicas=servers.replicas,
            ps_staleness=servers.staleness,
            ps_snapshot=timedelta(seconds=servers.snapshot_seconds),
            ps_nonfinite=f"PS_NONFINITE_{servers.non_finite.upper()}",
            ps_wire=f"PS_WIRE_{servers.wire.upper()}",
        )
        settings.MergeFrom(of_servers)
    if spec.max_wait_seconds:
        settings.max_wait.FromSeconds(spec.max_wait_seconds)
    if (wanted := settings_of(spec)) is not None and wanted.mode:
        settings.scaling = wanted.mode
        settings.over_budget = _OVER_BUDGET[wanted.over_budget]
        settings.spot_policy = _SPOT_POLICY[wanted.spot_policy]
        settings.on_demand_workers = wanted.on_demand_workers
        settings.cold_start.FromNanoseconds(round(wanted.cold_start_seconds * 1e9))
    return settings


def scaling(spec: JobSpec, name: str, request_id: str) -> job_pb2.JobServiceScaleRequest:
    """Build a Scale request that sets the spec's scaling and keeps the bounds."""
    wanted = settings_of(spec) or ScalingSettings()
    request = job_pb2.JobServiceScaleRequest(
        name=name,
        request_id=request_id,
        scaling=wanted.text,
        over_budget=_OVER_BUDGET[wanted.over_budget],
        spot_policy=_SPOT_POLICY[wanted.spot_policy],
        on_demand_workers=wanted.on_demand_workers,
    )
    request.cold_start.FromNanoseconds(round(wanted.cold_start_seconds * 1e9))
    return request


def prices(spec: JobSpec, name: str, request_id: str) -> job_pb2.JobServiceSetPricesRequest:
    """Build a SetPrices request. A price that the spec does not name is left unchanged."""
    request = job_pb2.JobServiceSetPricesRequest(name=name, request_id=request_id)
    if spec.spot.price:
        request.spot_price_micros = price_micros(spec.spot.price)
    if spec.spot.on_demand_price:
        request.on_demand_price_micros = price_micros(spec.spot.on_demand_price)
    return request
