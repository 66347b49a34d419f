"""Number of pods, and the choice of which to create or release.

Indexes below the number of wanted pods are filled, lowest first; an index is taken as long as any pod has its
name. Two operators that look at the same time therefore create the same pods, and the second one is told that
they exist.
"""

from __future__ import annotations

from collections.abc import Mapping

from elastane_operator.decisions import ends
from elastane_operator.decisions.actions import CreatePod, DeletePod
from elastane_operator.decisions.autoscaling import scaled_pods
from elastane_operator.decisions.pods import PodView, pod_name
from elastane_operator.decisions.reconciliation import Reconciliation
from elastane_operator.decisions.servers import keeps_place


def wanted_pods(ctx: Reconciliation) -> Mapping[str, int]:
    """Return the number of pods by device type; without a pool, of no type and on demand."""
    if ctx.spec.scheduling is None or ctx.status.scheduling is None:
        scaled = scaled_pods(ctx) if ctx.spec.scheduling is None else None
        return {"": ctx.spec.workers.max} if scaled is None else scaled
    return ctx.status.scheduling.devices


def fit(ctx: Reconciliation, wanted: Mapping[str, int]) -> None:
    """Create missing pods, release surplus ones, and delete those that have ended. wanted: by device type."""
    _call_off(ctx, wanted)
    for pod in ctx.pods:
        known = ctx.ended.get(pod.uid)
        if pod.ended and pod.deleted is None and known is not None and not keeps_place(ctx, pod):
            ctx.act(DeletePod(pod.name, pod.uid, f"{pod.name} has ended ({known.outcome}); it is deleted"))
    live = [pod for pod in ctx.pods if pod.live]
    for kind in sorted({*wanted, *(pod.kind for pod in live)}):
        count, alike = wanted.get(kind, 0), [pod for pod in live if pod.kind == kind]
        if len(alike) > count:
            victims = sorted(alike, key=lambda pod: _worth(ctx, pod))[: len(alike) - count]
            if ctx.status.scaling is not None:
                # The master lets surplus workers stand by once others have taken their place.
                victims = [pod for pod in victims if not attends(ctx, pod, "member")]
            what = f"{kind} workers" if kind else "workers"
            ctx.release(victims, f"scaled in: the job needs {count} {what} and has {len(alike)}")
    # In a job that scales by itself, surplus members still exist when others join.
    if len(live) < sum(wanted.values()) or ctx.status.scaling is not None:
        _fill(ctx, live, wanted)


def attends(ctx: Reconciliation, pod: PodView, *states: str) -> bool:
    """True if the pod's worker has a session with the master, in one of `states` if any are given."""
    job = ctx.job
    if job is None:
        return False
    # The agent names its workers after the host, which has the pod's name.
    return any(
        worker.worker.startswith(f"{pod.name}-") and (not states or worker.state in states)
        for worker in job.workers
    )


def _fill(ctx: Reconciliation, live: list[PodView], wanted: Mapping[str, int]) -> None:
    waiting = ends.waiting_indexes(ctx)
    # Also counts pods of other owners: their names are taken.
    taken = {pod.name for pod in ctx.observed.pods}
    mine = {pod.index for pod in live}
    most = sum(wanted.values()) + (len(live) if ctx.status.scaling is not None else 0)
    free = [index for index in range(most) if index not in mine]
    for kind, count in sorted(wanted.items()):
        alike = sum(pod.kind == kind for pod in live)
        missing = count - alike
        if kind:
            # A device of a pool is in use until its pod is gone.
            missing = count - sum(pod.kind == kind and not pod.ended for pod in ctx.pods)
        places, free = free[: max(missing, 0)], free[max(missing, 0) :]
        what = f"{kind} workers" if kind else "workers"
        for index in places:
            if index not in waiting and pod_name(ctx.identity.name, index) not in taken:
                ctx.act(CreatePod(index, f"the job needs {count} {what} and has {alike}", kind))


def _call_off(ctx: Reconciliation, wanted: Mapping[str, int]) -> None:
    """Cancel the release of pods that still run, if they are wanted again."""
    live = {pod.uid: pod.kind for pod in ctx.pods if pod.live}
    kept_kinds = {
        kind
        for kind in set(live.values())
        if sum(each == kind for each in live.values()) <= wanted.get(kind, 0)
    }
    marked = [
        each for each in ctx.status.ended if each.outcome == "released" and live.get(each.uid) in kept_kinds
    ]
    if marked:
        kept = tuple(each for each in ctx.status.ended if each not in marked)
        ctx.set(ended=kept)


def _worth(ctx: Reconciliation, pod: PodView) -> tuple[bool, bool, bool, bool, int]:
    """Sort key for release, lowest first: already marked, not training, newest."""
    return (
        pod.uid not in ctx.ended,
        pod.scheduled,
        pod.phase == "Running",
        not attends(ctx, pod, "standby"),
        -pod.index,
    )
