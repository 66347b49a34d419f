"""Jobs that scale by themselves: passes the spec to the master, and turns its targets into pods.

The master decides the number of workers; the operator creates as many pods. `workers.max` is then only a
bound, and a HorizontalPodAutoscaler that writes it would interfere: it is refused with a condition, and its
values are not passed on while it exists.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

from elastane_operator.decisions.money import money
from elastane_operator.decisions.observed import JobAtMaster, ScalingSettings, Targets
from elastane_operator.decisions.pod_labels import CAPACITY_ON_DEMAND
from elastane_operator.decisions.reconciliation import Reconciliation
from elastane_operator.decisions.spec import JobSpec
from elastane_operator.decisions.status import ScalingStatus
from elastane_scheduler.autoscaling.modes import Budget, canonical, mode_text, parse_mode


def settings_of(spec: JobSpec) -> ScalingSettings | None:
    """Return the scaling that a valid spec requests from the master; None: none."""
    scaling = spec.scaling
    if scaling is None:
        return None
    return ScalingSettings(
        # A deadline in a spec is an absolute time, so that it does not depend on when it is read.
        mode=canonical(parse_mode(scaling.mode, 0.0, currency=spec.spot.currency)),
        over_budget=scaling.over_budget,
        spot_policy=scaling.spot_policy,
        cold_start_seconds=float(scaling.cold_start_seconds),
        on_demand_workers=0 if scaling.on_demand is None else scaling.on_demand.workers,
    )


def ask_for_scaling(ctx: Reconciliation, job: JobAtMaster) -> None:
    """Send the spec's scaling to the master if that has a different one."""
    wanted = settings_of(ctx.spec)
    if wanted is None or wanted == job.scaling or (not wanted.mode and not job.scaling.mode):
        return
    there = "other settings of it" if wanted.mode == job.scaling.mode else mode_text(job.scaling.mode)
    ctx.ask("SetScaling", f"the spec wants {mode_text(wanted.mode)}, the master has {there}")


def has_spent_budget(job: JobAtMaster) -> bool:
    """True if the master suspended the job because its budget is spent (overBudget: suspend)."""
    if job.targets is None or job.scaling.over_budget != "Suspend":
        return False
    mode = parse_mode(job.scaling.mode, 0.0)
    return isinstance(mode, Budget) and job.cost.spent_micros >= mode.micros


def is_beside_autoscaler(ctx: Reconciliation) -> bool:
    """True if a HorizontalPodAutoscaler writes the workers of a job that scales by itself."""
    return ctx.status.scaling is not None and bool(ctx.observed.autoscalers)


def scaled_pods(ctx: Reconciliation) -> Mapping[str, int] | None:
    """Return the pods of a job that scales by itself, by kind; None for any other job."""
    scaling = ctx.status.scaling
    if scaling is None:
        return None
    has_nodes = ctx.spec.scaling is not None and ctx.spec.scaling.on_demand is not None
    on_demand = min(scaling.on_demand, scaling.target) if has_nodes else 0
    return {"": scaling.target - on_demand} | ({CAPACITY_ON_DEMAND: on_demand} if on_demand else {})


def follow_targets(ctx: Reconciliation) -> None:
    """Copy the master's targets to the status, with an event when they change, and the condition Scaling.

    While the master cannot be reached, the last ones stay.
    """
    before, job = ctx.status.scaling, ctx.job
    if job is None:
        return
    if job.targets is None or job.over:
        ctx.set(scaling=None)
        if ctx.spec.scaling is not None or before is not None:
            ctx.condition("Scaling", False, "NotWanted", "the job is over, or does not scale by itself")
        return
    now = _status(job.targets, job.scaling.mode, job.cost.currency)
    ctx.set(scaling=now)
    if before is None or (before.target, before.on_demand) != (now.target, now.on_demand):
        ctx.note("Normal", "Scaled", f"{_pods_text(now)}: {now.reason}")
    _judge(ctx)


def _judge(ctx: Reconciliation) -> None:
    names = ", ".join(ctx.observed.autoscalers)
    told = ctx.status.condition("Scaling")
    if names:
        said = (
            f"HorizontalPodAutoscaler {names} also scales this job, which scales itself: delete it, or set "
            "scaling.mode off; until then what it writes to workers.max has no effect"
        )
        if told is None or told.reason != "AutoscalerBeside":
            ctx.note("Warning", "AutoscalerBeside", said)
        ctx.condition("Scaling", False, "AutoscalerBeside", said)
    elif ctx.observed.autoscalers_error:
        error = ctx.observed.autoscalers_error
        said = f"it is not known whether a HorizontalPodAutoscaler scales this job too: {error}"
        ctx.condition("Scaling", True, "Following", said)
    else:
        ctx.condition("Scaling", True, "Following", "pods follow the master's target")


def _status(targets: Targets, mode: str, currency: str) -> ScalingStatus:
    cost = targets.predicted_cost_micros
    return ScalingStatus(
        mode=mode_text(mode),
        target=targets.workers,
        on_demand=targets.on_demand,
        reason=targets.reason,
        predicted_finish=_to_minutes(targets.predicted_finish),
        predicted_cost="" if cost is None else f"{money(cost)} {currency}",
    )


def _to_minutes(moment: datetime | None) -> datetime | None:
    """Round up to a minute, because predictions vary by seconds and the status should not."""
    if moment is None:
        return None
    whole = moment.replace(second=0, microsecond=0)
    return whole if whole == moment else whole + timedelta(minutes=1)


def _pods_text(scaling: ScalingStatus) -> str:
    text = f"{scaling.target} worker{'' if scaling.target == 1 else 's'}"
    return f"{text}, {scaling.on_demand} of them on demand" if scaling.on_demand else text
