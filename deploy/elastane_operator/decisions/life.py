"""Ending, suspending and deleting a job.

A finished job stays finished: from then on its pods are only ever deleted.
"""

from __future__ import annotations

from elastane_operator.decisions import ends
from elastane_operator.decisions.actions import DeleteObject, DeletePod, RemoveFinalizer
from elastane_operator.decisions.observed import JobAtMaster
from elastane_operator.decisions.reconciliation import FINALIZER, Reconciliation
from elastane_operator.decisions.servers import release_servers
from elastane_operator.decisions.status import Phase

END_SECONDS = 30.0
"""Time allowed for the workers of a succeeded job to exit by themselves."""

CANCEL_SECONDS = 10.0
"""Time a deletion waits for a master that cannot be reached to forget the job."""

_PHASES: dict[str, Phase] = {
    "succeeded": "Succeeded",
    "failed": "Failed",
    "cancelled": "Cancelled",
    "max_wait_exceeded": "MaxWaitTimeExceeded",
}
_WHY: dict[str, str] = {**_PHASES, "failed": "JobFailed"}


def finish(ctx: Reconciliation, phase: Phase, why: str, reason: str) -> None:
    """Finish the job for good. why: one word for machines."""
    ctx.enter(phase, reason)
    ctx.set(completion_time=ctx.now, suspend_time=None)
    if phase != "Succeeded":
        ctx.condition("Failed", True, why, reason)
    after_end(ctx)


def finish_as_master(ctx: Reconciliation, job: JobAtMaster) -> None:
    """Finish the job with the outcome reported by the master."""
    said = job.reason or f"the master says that the job is {job.phase.replace('_', ' ')}"
    finish(ctx, _PHASES[job.phase], _WHY[job.phase], said)


def after_end(ctx: Reconciliation) -> None:
    """Do what remains after the end: notify the master, release pods, delete everything after the TTL."""
    status, job = ctx.status, ctx.job
    # Settled: the master has no running job of this object any more.
    if not status.settled:
        if not status.started or (ctx.observed.master.reachable and (job is None or job.over)):
            ctx.set(settled=True)
        elif job is not None and not _still_save(ctx):
            ctx.ask("Cancel", f"the job is over: {status.reason}")
        ctx.look_in(CANCEL_SECONDS)
    if status.phase != "Succeeded" or ctx.passed(status.completion_time, END_SECONDS):
        ctx.release([pod for pod in ctx.pods if pod.live], f"the job is over: {status.phase}")
    release_servers(ctx)
    ttl = ctx.spec.ttl_seconds_after_finished
    if ttl is None or status.cleaned_time is not None or not ctx.passed(status.completion_time, ttl):
        return
    if not ctx.pods and not ctx.servers and not ctx.observed.objects.present:
        ctx.set(cleaned_time=ctx.now)
        ctx.note("Normal", "Cleaned", f"the job's objects are deleted, {ttl} s after its end")
        return
    for pod in ctx.pods:
        if pod.deleted is None and not any(_deletes(action, pod.uid) for action in ctx.actions):
            ctx.act(DeletePod(pod.name, pod.uid, f"ttlSecondsAfterFinished: {ttl} s have passed"))
    for kind, name in ctx.observed.objects.present:
        ctx.act(DeleteObject(kind, name, f"ttlSecondsAfterFinished: {ttl} s have passed"))
    ctx.look_in(CANCEL_SECONDS)


def suspend(ctx: Reconciliation) -> None:
    """Suspend the job as the spec demands: the master saves a checkpoint, then the pods are released."""
    if ctx.status.suspend_time is None:
        ctx.set(suspend_time=ctx.now)
        if ctx.status.started:
            ctx.note("Normal", "SuspendRequested", "spec.suspend is true")
    reachable, job = ctx.observed.master.reachable, ctx.job
    if job is not None and job.over:
        finish_as_master(ctx, job)
        return
    timeout = ctx.spec.checkpoint.timeout_seconds
    if not ctx.status.started and not (reachable and job is not None):
        _be_suspended(ctx, "suspended from the beginning: nothing was started")
    elif reachable and job is None:
        _be_suspended(ctx, "suspended; its master does not know the job")
    elif job is not None and job.phase == "suspended":
        _be_suspended(ctx, f"{job.reason or 'suspended'}; it goes on at step {max(job.saved_step, 0)}")
    elif job is not None:
        ctx.ask("Suspend", "spec.suspend is true: a checkpoint is saved, then the workers leave")
        if ctx.observed.master.refused_what == "Suspend":
            ctx.set(reason=f"cannot be suspended: {ctx.observed.master.refused}")
        elif ctx.passed(ctx.status.suspend_time, timeout):
            ctx.enter("Suspending", f"no checkpoint within {timeout} s: the workers are released without one")
            _release_all(ctx)
        else:
            ctx.enter("Suspending", job.reason or "a checkpoint is being saved")
    elif ctx.passed(ctx.status.suspend_time, timeout):
        # Without this limit, the pods would keep running (and costing) as long as no master answers.
        ctx.enter(
            "Suspending", f"the master could not be reached for {timeout} s: the workers are released anyway"
        )
        _release_all(ctx)
    else:
        ctx.enter("Suspending", f"the master cannot be reached: {ctx.observed.master.error}")


def park(ctx: Reconciliation) -> None:
    """Return all devices to the pool: the master saves a checkpoint, then the pods are released."""
    scheduling, job = ctx.status.scheduling, ctx.job
    why = "the pool has no devices for the job" if scheduling is None else scheduling.reason
    since = None if scheduling is None else scheduling.at
    timeout = ctx.spec.checkpoint.timeout_seconds
    if job is not None and job.over:
        finish_as_master(ctx, job)
    elif not ctx.status.started or (ctx.observed.master.reachable and job is None):
        _release_all(ctx)
        ctx.enter("Waiting", why)
    elif job is not None and job.phase == "suspended":
        _release_all(ctx)
        ctx.enter("Waiting", f"{why}; it goes on at step {max(job.saved_step, 0)}")
    elif ctx.passed(since, timeout):
        _release_all(ctx)
        ctx.enter("Waiting", f"{why}; no checkpoint within {timeout} s: the workers are released without one")
    elif job is not None:
        ctx.ask("Suspend", f"a checkpoint is saved, then the workers leave: {why}")
        ctx.enter("Suspending", why)
    else:
        ctx.enter("Suspending", f"{why}; the master cannot be reached: {ctx.observed.master.error}")


def delete(ctx: Reconciliation) -> None:
    """Handle deletion of the object: notify the master within a bounded time, then remove the finalizer."""
    if FINALIZER not in ctx.identity.finalizers:
        return
    if ctx.status.finished or not (ctx.status.started or ctx.job is not None):
        _let_go(ctx)
    elif ctx.spec.checkpoint.on_delete == "Save":
        _save_and_let_go(ctx)
    elif ctx.spec.master.per_job is not None:
        _let_go(ctx)  # its master is deleted with it
    else:
        _cancel_and_let_go(ctx)


def _save_and_let_go(ctx: Reconciliation) -> None:
    timeout, job = ctx.spec.checkpoint.timeout_seconds, ctx.job
    if ctx.observed.master.reachable and (job is None or job.over or job.phase == "suspended"):
        if job is not None and job.phase == "suspended":
            ctx.note("Normal", "Saved", f"saved at step {max(job.saved_step, 0)} before the deletion")
        _let_go(ctx)
    elif ctx.passed(ctx.identity.deleted, timeout):
        why = ctx.observed.master.refused or ctx.observed.master.error or "it took longer"
        ctx.note("Warning", "NotSaved", f"deleted without a checkpoint after {timeout} s: {why}")
        _let_go(ctx)
    else:
        if job is not None:
            ctx.ask("Suspend", "the ElasticJob is being deleted and checkpoint.onDelete is Save")
        ctx.look_in(CANCEL_SECONDS)


def _cancel_and_let_go(ctx: Reconciliation) -> None:
    job, name = ctx.job, ctx.status.job_name
    if ctx.observed.master.reachable and (job is None or job.over):
        _let_go(ctx)
    elif ctx.passed(ctx.identity.deleted, CANCEL_SECONDS) and (job is None or ctx.observed.master.refused):
        why = ctx.observed.master.refused or ctx.observed.master.error
        ctx.note(
            "Warning", "LeftAtMaster", f"job {name} stays at its master, which could not cancel it: {why}"
        )
        _let_go(ctx)
    elif job is not None:
        # However late, because the operator may have been down.
        ctx.ask("Cancel", "the ElasticJob is being deleted and checkpoint.onDelete is Skip")
        ctx.look_in(CANCEL_SECONDS)
    _release_all(ctx)


def _let_go(ctx: Reconciliation) -> None:
    _release_all(ctx)
    ctx.act(RemoveFinalizer())


def _be_suspended(ctx: Reconciliation, reason: str) -> None:
    _release_all(ctx)
    ends.waiting_indexes(ctx)
    if any(pod.live for pod in (*ctx.pods, *ctx.servers)):
        ctx.enter("Suspending", reason)
    else:
        ctx.enter("Suspended", reason)


def _release_all(ctx: Reconciliation) -> None:
    ctx.release([pod for pod in ctx.pods if pod.deleted is None], f"{ctx.identity.name} needs no workers now")
    release_servers(ctx)


def _still_save(ctx: Reconciliation) -> bool:
    """True while parameter servers of a succeeded job save their slots; a cancelled job needs no saving."""
    is_late = ctx.passed(ctx.status.completion_time, END_SECONDS + ctx.spec.checkpoint.timeout_seconds)
    return bool(ctx.servers) and ctx.status.phase == "Succeeded" and not is_late


def _deletes(action: object, uid: str) -> bool:
    return isinstance(action, DeletePod) and action.uid == uid
