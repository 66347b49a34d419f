"""Parameter servers of a job, and the end of a job that does tasks.

A parameter server is never the job's failure: others take its slots over (docs/reliability.md). The kubelet
restarts a container that dies, and a pod that has ended is replaced; nothing is counted. They leave after
the workers: each saves its slots when it gets SIGTERM, and until then a worker that drains can still push.

The master does not end jobs that only do tasks. Such a job has succeeded once every task is done, and each
worker's pod has ended with exit code 0, as a script does that came to its end; it keeps its place until then,
so that no other is made there. Pods that wait for a node are not waited for.
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
            _delete(ctx, pod, f"scaled in: {count} parameter servers are wanted, {live} are there")
        # Waits if it has just been made: where a node rejects it, so may the next one be.
        elif pod.ended and ctx.passed(pod.created, ctx.spec.restart_backoff_seconds):
            why = pod.reason or f"exit code {pod.exit_code}"
            _delete(ctx, pod, f"{pod.name} has ended ({why}); its place is cleared")
    taken = {pod.name for pod in ctx.observed.pods}
    for index in range(count):
        if pod_name(ctx.identity.name, index, "ps") not in taken:
            ctx.act(CreatePod(index, f"{count} parameter servers are wanted, {live} are there", role="ps"))


def release_servers(ctx: Reconciliation) -> None:
    """Release all parameter servers, once no worker's pod runs any more."""
    if all(pod.ended for pod in ctx.pods):
        for pod in ctx.servers:
            _delete(ctx, pod, f"{ctx.identity.name} needs no parameter servers now")


def does_tasks(ctx: Reconciliation, job: JobAtMaster) -> bool:
    """True if workers train, although the master waits for a ring."""
    return ctx.spec.parameter_servers is not None and job.phase == "waiting" and bool(job.workers)


def keeps_place(ctx: Reconciliation, pod: PodView) -> bool:
    """True if the pod's script came to its end, in a job all of whose tasks are done."""
    job = ctx.job
    if ctx.spec.parameter_servers is None or job is None or job.tasks is None or not job.tasks.over:
        return False
    return pod.phase == "Succeeded" and pod.exit_code == 0 and not pod.disruption and pod.deleted is None


def came_to_its_end(ctx: Reconciliation) -> bool:
    """True if the scripts have come to their end, except of pods that no node has had room for."""
    ended = {pod.index for pod in ctx.pods if keeps_place(ctx, pod)}
    idle = {pod.index for pod in ctx.pods if pod.live and not pod.scheduled}
    return bool(ended) and ended | idle >= set(range(ctx.spec.workers.max))


def _delete(ctx: Reconciliation, pod: PodView, reason: str) -> None:
    if pod.deleted is None:
        ctx.act(DeletePod(pod.name, pod.uid, reason))
