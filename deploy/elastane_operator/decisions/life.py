"""Ending, suspending and deleting a job.

A finished job stays finished: from then on its pods are only ever deleted.
"""

from __future__ import annotations

from elastane_operator.decisions import ends
from elastane_operator.decisions.actions import DeleteObject, DeletePod, RemoveFinalizer
from elastane_operator.decisions.observed import JobAtMaster
from elastane_operator.decisions.status import Phase
from elastane_operator.decisions.turn import FINALIZER, Turn

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
_WHY = {
    "succeeded": "Succeeded",
    "failed": "JobFailed",
    "cancelled": "Cancelled",
    "max_wait_exceeded": "MaxWaitTimeExceeded",
}


def finish(turn: Turn, phase: Phase, why: str, reason: str) -> None:
    """Finish the job for good. why: one word for machines."""
    turn.enter(phase, reason)
    turn.set(completion_time=turn.now, suspend_time=None)
    if phase != "Succeeded":
        turn.condition("Failed", True, why, reason)
    after_end(turn)


def finish_as_master(turn: Turn, job: JobAtMaster) -> None:
    """Finish the job with the outcome reported by the master."""
    said = job.reason or f"the master says that the job is {job.phase.replace('_', ' ')}"
    finish(turn, _PHASES[job.phase], _WHY[job.phase], said)


def after_end(turn: Turn) -> None:
    """Do what remains after the end: notify the master, release pods, delete everything after the TTL."""
    status, job = turn.status, turn.job
    # Settled: the master has no running job of this object any more.
    if not status.settled:
        if not status.started or (turn.observed.master.reachable and (job is None or job.over)):
            turn.set(settled=True)
        elif job is not None:
            turn.ask("Cancel", f"the job is over: {status.reason}")
        turn.look_in(CANCEL_SECONDS)
    if status.phase != "Succeeded" or turn.passed(status.completion_time, END_SECONDS):
        turn.release([pod for pod in turn.pods if pod.live], f"the job is over: {status.phase}")
    ttl = turn.spec.ttl_seconds_after_finished
    if ttl is None or status.cleaned_time is not None or not turn.passed(status.completion_time, ttl):
        return
    if not turn.pods and not turn.observed.objects.present:
        turn.set(cleaned_time=turn.now)
        turn.note("Normal", "Cleaned", f"what the job had made is deleted, {ttl} s after its end")
        return
    for pod in turn.pods:
        if pod.deleted is None and not any(_deletes(action, pod.uid) for action in turn.actions):
            turn.act(DeletePod(pod.name, pod.uid, f"ttlSecondsAfterFinished: {ttl} s have passed"))
    for kind, name in turn.observed.objects.present:
        turn.act(DeleteObject(kind, name, f"ttlSecondsAfterFinished: {ttl} s have passed"))
    turn.look_in(CANCEL_SECONDS)


def suspend(turn: Turn) -> None:
    """Suspend the job as the spec demands: the master saves a checkpoint, then the pods are released."""
    if turn.status.suspend_time is None:
        turn.set(suspend_time=turn.now)
        if turn.status.started:
            turn.note("Normal", "SuspendRequested", "spec.suspend is true")
    reachable, job = turn.observed.master.reachable, turn.job
    if job is not None and job.over:
        finish_as_master(turn, job)
        return
    timeout = turn.spec.checkpoint.timeout_seconds
    if not turn.status.started and not (reachable and job is not None):
        _be_suspended(turn, "suspended from the beginning: nothing was started")
    elif reachable and job is None:
        _be_suspended(turn, "suspended; its master does not know the job")
    elif job is not None and job.phase == "suspended":
        _be_suspended(turn, f"{job.reason or 'suspended'}; it goes on at step {max(job.saved_step, 0)}")
    elif job is not None:
        turn.ask("Suspend", "spec.suspend is true: a checkpoint is saved, then the workers leave")
        if turn.observed.master.refused_what == "Suspend":
            turn.set(reason=f"cannot be suspended: {turn.observed.master.refused}")
        elif turn.passed(turn.status.suspend_time, timeout):
            turn.enter("Suspending", f"no checkpoint within {timeout} s: workers are sent away without one")
            _release_all(turn)
        else:
            turn.enter("Suspending", job.reason or "a checkpoint is being saved")
    elif turn.passed(turn.status.suspend_time, timeout):
        # Without this limit, the pods would keep running (and costing) as long as no master answers.
        turn.enter(
            "Suspending", f"the master could not be asked for {timeout} s: workers are sent away all the same"
        )
        _release_all(turn)
    else:
        turn.enter("Suspending", f"the master cannot be asked: {turn.observed.master.error}")


def delete(turn: Turn) -> None:
    """Handle deletion of the object: notify the master within a bounded time, then remove the finalizer."""
    if FINALIZER not in turn.identity.finalizers:
        return
    if turn.status.finished or not (turn.status.started or turn.job is not None):
        _let_go(turn)
    elif turn.spec.checkpoint.on_delete == "Save":
        _save_and_let_go(turn)
    elif turn.spec.master.per_job is not None:
        _let_go(turn)  # its master goes with it
    else:
        _cancel_and_let_go(turn)


def _save_and_let_go(turn: Turn) -> None:
    timeout, job = turn.spec.checkpoint.timeout_seconds, turn.job
    if turn.observed.master.reachable and (job is None or job.over or job.phase == "suspended"):
        if job is not None and job.phase == "suspended":
            turn.note("Normal", "Saved", f"saved at step {max(job.saved_step, 0)} before the deletion")
        _let_go(turn)
    elif turn.passed(turn.identity.deleted, timeout):
        why = turn.observed.master.refused or turn.observed.master.error or "it took longer"
        turn.note("Warning", "NotSaved", f"deleted without a checkpoint after {timeout} s: {why}")
        _let_go(turn)
    else:
        if job is not None:
            turn.ask("Suspend", "the ElasticJob is being deleted and checkpoint.onDelete is Save")
        turn.look_in(CANCEL_SECONDS)


def _cancel_and_let_go(turn: Turn) -> None:
    job, name = turn.job, turn.status.job_name
    if turn.observed.master.reachable and (job is None or job.over):
        _let_go(turn)
    elif turn.passed(turn.identity.deleted, CANCEL_SECONDS):
        why = turn.observed.master.refused or turn.observed.master.error
        turn.note(
            "Warning", "LeftAtMaster", f"job {name} stays at its master, which could not cancel it: {why}"
        )
        _let_go(turn)
    elif job is not None:
        turn.ask("Cancel", "the ElasticJob is being deleted and checkpoint.onDelete is Skip")
    _release_all(turn)


def _let_go(turn: Turn) -> None:
    _release_all(turn)
    turn.act(RemoveFinalizer())


def _be_suspended(turn: Turn, reason: str) -> None:
    _release_all(turn)
    ends.waiting_indexes(turn)
    if any(pod.live for pod in turn.pods):
        turn.enter("Suspending", reason)
    else:
        turn.enter("Suspended", reason)


def _release_all(turn: Turn) -> None:
    turn.release(
        [pod for pod in turn.pods if pod.deleted is None], f"{turn.identity.name} needs no workers now"
    )


def _deletes(action: object, uid: str) -> bool:
    return isinstance(action, DeletePod) and action.uid == uid
