"""Parameter servers of a job, and the end of jobs that only do tasks.

A lost parameter server never fails the job: others take over its slots (docs/reliability.md). The kubelet
restarts a container that dies, and an ended pod is replaced; neither is counted. They leave after the
workers, so that a draining worker can still push: each saves its slots when it gets SIGTERM.

The master does not end jobs that only do tasks. Such a job has succeeded once every task is done and each
worker's pod has ended with exit code 0, because its script has ended. Ended pods keep their places until
then, so that they are not replaced. Pods that wait for a node do not count.
"""

from __future__ import annotations

from elastane_operator.decisions.actions import CreatePod, DeletePod
from elastane_operator.decisions.observed import JobAtMaster
from elastane_operator.decisions.pods import PodView, pod_name
from elastane_operator.decisions.reconciliation import Reconciliation


def fit_servers(ctx: Reconciliation) -> None:
    """Create missing parameter servers, replace those that have ended, release the surplus."""
    count = 0 if ctx.spec.parameter_servers is None else ctx.spec.parameter_servers.count
    live = sum(pod.live for pod in ctx.servers)
    for pod in reversed(ctx.servers):
        if pod.index >= count:
            _delete(ctx, pod, f"scaled in: the job needs {count} parameter servers and has {live}")
        # A new pod is delayed if the last one was just created: a node that rejects it may reject the next,
        # too.
        elif pod.ended and ctx.passed(pod.created, ctx.spec.restart_backoff_seconds):
            why = pod.reason or f"exit code {pod.exit_code}"
            _delete(ctx, pod, f"{pod.name} has ended ({why}); it is deleted")
    taken = {pod.name for pod in ctx.observed.pods}
    for index in range(count):
        if pod_name(ctx.identity.name, index, "ps") not in taken:
            ctx.act(CreatePod(index, f"the job needs {count} parameter servers and has {live}", role="ps"))


def release_servers(ctx: Reconciliation) -> None:
    """Release all parameter servers, once no worker's pod runs any more."""
    if all(pod.ended for pod in ctx.pods):
        for pod in ctx.servers:
            _delete(ctx, pod, f"{ctx.identity.name} needs no parameter servers now")


def does_tasks(ctx: Reconciliation, job: JobAtMaster) -> bool:
    """True if workers do tasks although the master waits for a ring."""
    return ctx.spec.parameter_servers is not None and job.phase == "waiting" and bool(job.workers)


def keeps_place(ctx: Reconciliation, pod: PodView) -> bool:
    """True if the pod's script has ended in a job whose tasks are all done."""
    job = ctx.job
    if ctx.spec.parameter_servers is None or job is None or job.tasks is None or not job.tasks.over:
        return False
    return pod.phase == "Succeeded" and pod.exit_code == 0 and not pod.disruption and pod.deleted is None


def came_to_its_end(ctx: Reconciliation) -> bool:
    """True if all scripts have ended, except in pods that were never scheduled to a node."""
    ended = {pod.index for pod in ctx.pods if keeps_place(ctx, pod)}
    idle = {pod.index for pod in ctx.pods if pod.live and not pod.scheduled}
    return bool(ended) and ended | idle >= set(range(ctx.spec.workers.max))


def _delete(ctx: Reconciliation, pod: PodView, reason: str) -> None:
    if pod.deleted is None:
        ctx.act(DeletePod(pod.name, pod.uid, reason))
