"""Number of pods, and the choice of which to create or release.

Indexes 0 to workers.max - 1 are filled, lowest first; an index is taken as long as any pod has its name. Two
operators that look at the same time therefore create the same pods, and the second one is told that they
exist.
"""

from __future__ import annotations

from elastane_operator.decisions import ends
from elastane_operator.decisions.actions import CreatePod, DeletePod
from elastane_operator.decisions.pods import PodView, pod_name
from elastane_operator.decisions.reconciliation import Reconciliation


def fit(ctx: Reconciliation, wanted: int) -> None:
    """Create missing pods, release surplus ones, and delete those that have ended."""
    _call_off(ctx, wanted)
    for pod in ctx.pods:
        known = ctx.ended.get(pod.uid)
        if pod.ended and pod.deleted is None and known is not None:
            ctx.act(
                DeletePod(pod.name, pod.uid, f"{pod.name} has ended ({known.outcome}); its place is cleared")
            )
    live = [pod for pod in ctx.pods if pod.live]
    if len(live) > wanted:
        victims = sorted(live, key=lambda pod: _worth(ctx, pod))[: len(live) - wanted]
        reason = f"scaled in: {wanted} workers are wanted, {len(live)} are there"
        ctx.release(victims, reason)
    elif len(live) < wanted:
        _fill(ctx, live, wanted)


def attends(ctx: Reconciliation, pod: PodView, *states: str) -> bool:
    """True if the pod's worker has a session with the master, in one of `states` if any are given."""
    job = ctx.job
    if job is None:
        return False
    # The agent names its workers after the host, whose name is the pod's.
    return any(
        worker.worker.startswith(f"{pod.name}-") and (not states or worker.state in states)
        for worker in job.workers
    )


def _fill(ctx: Reconciliation, live: list[PodView], wanted: int) -> None:
    waiting = ends.waiting_indexes(ctx)
    # Also counts pods of other owners: their names are taken.
    taken = {pod.name for pod in ctx.observed.pods}
    mine = {pod.index for pod in live}
    places = [index for index in range(wanted) if index not in mine][: wanted - len(live)]
    reason = f"{wanted} workers are wanted, {len(live)} are there"
    for index in places:
        if index not in waiting and pod_name(ctx.identity.name, index) not in taken:
            ctx.act(CreatePod(index, reason))


def _call_off(ctx: Reconciliation, wanted: int) -> None:
    """Keep pods that were to be released but still run, if they are wanted again."""
    live = {pod.uid for pod in ctx.pods if pod.live}
    marked = [each for each in ctx.status.ended if each.outcome == "released" and each.uid in live]
    if marked and len(live) <= wanted:
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
