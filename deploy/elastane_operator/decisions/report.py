"""Status fields shown to users: counts, progress, cost, conditions. Makes no decisions."""

from __future__ import annotations

import msgspec

from elastane_operator.decisions.money import money
from elastane_operator.decisions.observed import CostView, JobAtMaster
from elastane_operator.decisions.pod_counts import wanted_pods
from elastane_operator.decisions.pod_labels import LABEL_JOB, LABEL_ROLE
from elastane_operator.decisions.reconciliation import Reconciliation
from elastane_operator.decisions.spec import job_name
from elastane_operator.decisions.status import CostStatus, ServerCounts, WorkerCounts


def report(ctx: Reconciliation) -> None:
    """Update the status fields from the observed state; conditions follow from the phase."""
    ctx.set(
        observed_generation=ctx.identity.generation,
        # An autoscaler averages over these pods, so the selector must exclude the pod of a per-job master.
        selector=f"{LABEL_JOB}={ctx.identity.name},{LABEL_ROLE}=worker",
        job_name=job_name(ctx.identity, ctx.spec),
        master_address=ctx.observed.master_address,
    )
    if ctx.job is not None:
        _progress(ctx, ctx.job)
    _workers(ctx)
    _conditions(ctx)


def _progress(ctx: Reconciliation, job: JobAtMaster) -> None:
    done, of = (job.step, job.steps) if job.tasks is None else (job.tasks.done, job.tasks.total)
    percent = f"{min(100 * done // of, 100)}%" if of > 0 else ""
    ctx.set(
        generation=job.generation,
        step=job.step,
        steps=job.steps,
        epoch=job.epoch,
        saved_step=job.saved_step if job.saved_step >= 0 else None,
        progress=percent,
        samples_per_second=f"{job.samples_per_second:.1f}" if job.samples_per_second > 0 else "",
        cost=_cost(job.cost),
    )


def _cost(cost: CostView) -> CostStatus | None:
    if not (
        cost.spent_micros or cost.on_demand_micros or cost.spot_price_micros or cost.on_demand_price_micros
    ):
        return None
    return CostStatus(
        currency=cost.currency,
        spent=money(cost.spent_micros),
        on_demand=money(cost.on_demand_micros),
        saved=money(cost.saved_micros),
        savings_percent=msgspec.UNSET if cost.savings is None else f"{100 * cost.savings:.1f}",
    )


def _workers(ctx: Reconciliation) -> None:
    live = [pod for pod in ctx.pods if pod.live]
    ready = sum(pod.ready for pod in live)
    idle = ctx.status.finished or ctx.status.phase in ("Suspending", "Suspended")
    desired = 0 if idle else sum(wanted_pods(ctx).values())
    ctx.set(
        replicas=len(live),
        workers=WorkerCounts(
            desired=desired,
            ready=ready,
            pending=sum(pod.phase != "Running" for pod in live),
            attending=len(ctx.job.workers) if ctx.job is not None and not ctx.job.over else 0,
            summary=f"{ready}/{desired}",
        ),
    )
    servers = ctx.spec.parameter_servers
    if servers is not None:
        ctx.set(
            parameter_servers=ServerCounts(
                desired=0 if idle else servers.count,
                ready=sum(pod.ready for pod in ctx.servers if pod.live),
                pending=sum(pod.phase != "Running" for pod in ctx.servers if pod.live),
                restarts=sum(pod.restarts for pod in ctx.servers),
            )
        )


def _conditions(ctx: Reconciliation) -> None:
    """Set all conditions from the phase, the workers and the master."""
    status, workers = ctx.status, ctx.status.workers
    master = ctx.observed.master
    reason, said = ctx.fault or ("Valid", "")
    ctx.condition("Accepted", ctx.fault is None, reason, said)
    if not status.settled:
        if master.refused:
            ctx.condition("MasterReachable", True, "Refused", f"{master.refused_what}: {master.refused}")
        elif master.reachable:
            ctx.condition("MasterReachable", True, "Answers")
        else:
            ctx.condition("MasterReachable", False, "NoAnswer", master.error)
    ctx.condition("Running", status.phase == "Running", status.phase, status.reason)
    enough = workers.desired > 0 and workers.ready >= workers.desired
    said, trouble = f"{workers.summary} are ready", ctx.observed.trouble
    if trouble and not enough:
        ctx.condition("WorkersReady", False, "ActionFailed", f"{said}; {trouble}")
    else:
        ctx.condition("WorkersReady", enough, "AllReady" if enough else "NotAllReady", said)
    ctx.condition("Suspended", status.phase == "Suspended", status.phase, status.reason)
    ctx.condition("Complete", status.phase == "Succeeded", status.phase, status.reason)
    failed = status.phase in ("Failed", "Cancelled", "MaxWaitTimeExceeded")
    # The specific reason was set when the job failed; the phase is only a substitute for it.
    before = status.condition("Failed")
    reason = before.reason if failed and before is not None and before.status == "True" else status.phase
    ctx.condition("Failed", failed, reason, status.reason if failed else "")
