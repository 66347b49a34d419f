"""Reconciliation of a job: from spec, previous status and observed state to actions.

Level-triggered: nothing depends on having seen a change happen. The caller writes `Decision.status` first and
carries the actions out afterwards, in order; it stops at the first failure and looks again. Therefore:

- a pod's end is in the status before the pod is deleted, so it is counted once despite a killed operator;
- a pod's name is given by its index, so it exists once, however many operators create it;
- requests to the master follow from what its view lacks, not from what was requested before.

The master decides when and with how many workers a job trains; the operator carries it out.
"""

from __future__ import annotations

from datetime import datetime

from elastane_operator.decisions import life
from elastane_operator.decisions.actions import AddFinalizer, CreateObject, RemoveFinalizer
from elastane_operator.decisions.autoscaling import (
    ask_for_scaling,
    follow_targets,
    has_spent_budget,
    is_beside_autoscaler,
)
from elastane_operator.decisions.ends import count_ends
from elastane_operator.decisions.observed import JobAtMaster, Observed
from elastane_operator.decisions.pod_counts import fit, wanted_pods
from elastane_operator.decisions.reconciliation import FINALIZER, Decision, Reconciliation
from elastane_operator.decisions.report import report
from elastane_operator.decisions.scheduling import follow_pool, is_parked
from elastane_operator.decisions.servers import came_to_its_end, does_tasks, fit_servers
from elastane_operator.decisions.spec import Identity, JobSpec, MasterSpec, Workers, price_micros
from elastane_operator.decisions.status import Status

__all__ = ["Decision", "reconcile", "refuse"]


def reconcile(
    identity: Identity, spec: JobSpec, status: Status, observed: Observed, now: datetime
) -> Decision:
    """Decide the actions for a job."""
    ctx = Reconciliation(identity, spec, status, observed, now)
    if ctx.job is not None and not status.started:
        ctx.set(started=True)
    if identity.deleted is not None:
        life.delete(ctx)
        return ctx.decide()
    if FINALIZER not in identity.finalizers:
        ctx.act(AddFinalizer())
    follow_pool(ctx)
    follow_targets(ctx)
    if status.finished:
        life.after_end(ctx)
    else:
        # Pods that end because the master released them must not count as failures.
        leaving = spec.suspend or is_parked(ctx)
        leaving = leaving or (ctx.job is not None and (ctx.job.phase == "suspended" or ctx.job.over))
        fatal = count_ends(ctx, leaving=leaving)
        # The master's verdict takes precedence: it knows why its workers ended.
        if ctx.job is not None and ctx.job.over:
            life.finish_as_master(ctx, ctx.job)
        elif fatal is not None:
            why = "PermanentExit" if fatal.outcome == "permanent" else "RestartBudgetExhausted"
            life.finish(ctx, "Failed", why, fatal.reason)
        elif spec.suspend:
            life.suspend(ctx)
        elif is_parked(ctx):
            life.park(ctx)
        else:
            _be_active(ctx)
    report(ctx)
    return ctx.decide()


def refuse(identity: Identity, status: Status, problems: list[str], now: datetime) -> Decision:
    """Decide for a job with an invalid spec: start nothing, and leave running pods as they are."""
    if identity.deleted is not None:
        held = FINALIZER in identity.finalizers
        return Decision(status, (RemoveFinalizer(),) if held else ())
    said = "; ".join(problems)
    ctx = Reconciliation(identity, _NOTHING, status, Observed(), now)
    before = status.condition("Accepted")
    if before is None or before.status != "False" or before.message != said:
        ctx.note("Warning", "InvalidSpec", said)
    ctx.condition("Accepted", False, "InvalidSpec", said)
    ctx.set(observed_generation=identity.generation)
    if not status.started and not status.finished:
        ctx.set(phase="Pending", reason=said)
    return ctx.decide()


def _be_active(ctx: Reconciliation) -> None:
    """Advance a job that is neither finished nor to be suspended: its own master first, then its pods."""
    status, spec = ctx.status, ctx.spec
    if status.start_time is None or status.suspend_time is not None:
        if status.suspend_time is not None and status.started:
            ctx.note("Normal", "Resumed", "spec.suspend is false")
        ctx.set(start_time=ctx.now, suspend_time=None)
    limit = spec.active_deadline_seconds
    if limit is not None and ctx.passed(ctx.status.start_time, limit):
        life.finish(
            ctx, "Failed", "DeadlineExceeded", f"active for more than activeDeadlineSeconds ({limit} s)"
        )
        return
    objects = ctx.observed.objects
    if objects.foreign:
        said = f"its master's names are taken by others: {', '.join(objects.foreign)}"
        ctx.fault = ("NameTaken", said)
        ctx.enter("Pending", said)
        ctx.look_in(30.0)
        return
    for body in objects.missing:
        name = body["metadata"]["name"]
        ctx.act(CreateObject(body["kind"], body, f"{body['kind']} {name} of the job's own master is missing"))
    if not ctx.observed.master.reachable:
        _without_master(ctx)
    elif ctx.job is None:
        _without_job(ctx)
    else:
        _with_job(ctx, ctx.job)


def _without_master(ctx: Reconciliation) -> None:
    """Change nothing while the master cannot be reached: the job may already be over."""
    said = f"the master cannot be reached: {ctx.observed.master.error}"
    if not ctx.status.started:
        ctx.enter("Pending", said)
    elif ctx.status.phase in ("Suspending", "Suspended"):
        ctx.enter("Waiting", said)
    ctx.set(reason=said)


def _without_job(ctx: Reconciliation) -> None:
    if ctx.status.started:
        text = "its master does not know the job any more (was its state lost?); it is created again"
        if ctx.status.reason != text:
            ctx.note("Warning", "JobLost", text)
        ctx.enter("Pending", text)
    elif ctx.observed.master.refused_what == "Create":
        ctx.enter("Pending", f"the master refused the job: {ctx.observed.master.refused}")
    else:
        ctx.enter("Pending", "the job is being created at its master")
    ctx.ask("Create", "the master does not have the job yet")


def _with_job(ctx: Reconciliation, job: JobAtMaster) -> None:
    workers = ctx.spec.workers
    fixed = (("ests", job.ests, ctx.spec.ests), ("seed", job.seed, ctx.spec.seed))
    changed = [
        f"{name} is {there} at the master and {wanted} in the spec; it cannot be changed"
        for name, there, wanted in fixed
        if there != wanted
    ]
    if changed:
        ctx.set(reason="; ".join(changed))
        ctx.fault = ("FixedFieldChanged", ctx.status.reason)
        ctx.look_in(30.0)
        return
    if came_to_its_end(ctx):
        life.finish(ctx, "Succeeded", "Succeeded", "all tasks are done, and the script came to its end")
        return
    if does_tasks(ctx, job):
        ctx.enter("Running", f"{len(job.workers)} workers do tasks")
    else:
        ctx.enter("Running" if job.phase == "running" else "Waiting", job.reason)
    ask_for_scaling(ctx, job)
    is_other = (job.workers_min, job.workers_max) != (workers.min, workers.max)
    if is_other and not is_beside_autoscaler(ctx):
        ctx.ask(
            "Scale",
            f"the spec wants {workers.min} to {workers.max} workers, the master has "
            f"{job.workers_min} to {job.workers_max}",
        )
    _set_prices(ctx, job)
    if job.phase == "suspended" and has_spent_budget(job):
        fit(ctx, {})
        return
    if job.phase == "suspended":
        ctx.ask("Resume", "spec.suspend is false, and the master has the job suspended")
        return
    fit_servers(ctx)
    # If the pool cannot be read, its nodes are unknown: existing pods stay.
    if ctx.observed.pool is None or not ctx.observed.pool.error:
        fit(ctx, wanted_pods(ctx))


def _set_prices(ctx: Reconciliation, job: JobAtMaster) -> None:
    """Set a price of the spec only once, so that a price later set at the master is kept."""
    spot = ctx.spec.spot
    if not (spot.price or spot.on_demand_price):
        return
    wanted = f"{spot.price or '-'}/{spot.on_demand_price or '-'} {spot.currency}"
    if ctx.status.prices == wanted:
        return
    pairs = (
        (spot.price, job.cost.spot_price_micros),
        (spot.on_demand_price, job.cost.on_demand_price_micros),
    )
    if all(not price or price_micros(price) == at_master for price, at_master in pairs):
        ctx.set(prices=wanted)
    else:
        ctx.ask("SetPrices", f"prices of the spec: {wanted}")


_NOTHING = JobSpec(template={}, ests=1, workers=Workers(1), master=MasterSpec())
