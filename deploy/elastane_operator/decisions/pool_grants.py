"""Pods that each job may have now, while shares move towards the plan.

A device is granted again only when no other job can have a pod on it: by a grant, by what it has acknowledged
in its status, or by a terminating pod. So the pods of a pool never exceed its quota, whatever an operator
does or does not see.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from elastane_operator.decisions.pool_jobs import PoolJob, PoolPod
from elastane_operator.decisions.pool_spec import PoolSpec
from elastane_operator.decisions.pool_status import Share


def with_grants(
    spec: PoolSpec, jobs: Sequence[PoolJob], shares: Sequence[Share], pods: Sequence[PoolPod]
) -> list[Share]:
    """Return the shares in order, with grants lowered to plans, or raised as far as devices are free."""
    before = {share.uid: share for share in shares}
    by_uid = {job.uid: job for job in jobs}
    now = {share.uid: _lowered(_confirmed(share, by_uid[share.uid])) for share in shares}
    free = {kind: _free(kind, spec, jobs, now, pods) for kind in spec.names}
    for job in jobs:
        share = now.get(job.uid)
        if share is None:
            continue
        held = {kind: _held(kind, job, share, pods) for kind in spec.names}
        granted = dict(share.granted)
        for kind in spec.names:
            raised = min(share.planned.get(kind, 0), held[kind] + max(free[kind], 0))
            if raised > granted.get(kind, 0):
                granted[kind] = raised
        if granted == share.granted or (not share.granted and sum(granted.values()) < job.workers_min):
            continue
        for kind, count in granted.items():
            if kind in free and count > share.granted.get(kind, 0):
                free[kind] -= max(0, count - held[kind])
        now[job.uid] = msgspec.structs.replace(share, granted=granted)
    return [_revised(before[share.uid], now[share.uid]) for share in shares]


def _confirmed(share: Share, job: PoolJob) -> Share:
    """Drop earlier grants once the job has acknowledged the current one."""
    if job.revision not in (share.revision, -1) or share.outstanding == share.granted:
        return share
    return msgspec.structs.replace(share, outstanding=dict(share.granted))


def _revised(before: Share, now: Share) -> Share:
    """Count a change of the grant; until it is acknowledged, the job may still act on the previous one."""
    if now.granted == before.granted:
        return now
    kinds = {*now.outstanding, *before.granted, *now.granted}
    most = {
        kind: max(given.get(kind, 0) for given in (now.outstanding, before.granted, now.granted))
        for kind in sorted(kinds)
    }
    return msgspec.structs.replace(now, revision=before.revision + 1, outstanding=most)


def _lowered(share: Share) -> Share:
    granted = {kind: min(count, share.planned.get(kind, 0)) for kind, count in share.granted.items()}
    kept = {kind: count for kind, count in granted.items() if count}
    return share if kept == share.granted else msgspec.structs.replace(share, granted=kept)


def _held(kind: str, job: PoolJob, share: Share | None, pods: Sequence[PoolPod]) -> int:
    """Devices that a job has or may still take."""
    present = sum(pod.owner_uid == job.uid and pod.device_type == kind for pod in pods)
    promised = 0
    if share is not None:
        promised = max(share.granted.get(kind, 0), share.outstanding.get(kind, 0))
    return max(present, promised, job.acknowledged.get(kind, 0))


def _free(
    kind: str,
    spec: PoolSpec,
    jobs: Sequence[PoolJob],
    shares: dict[str, Share],
    pods: Sequence[PoolPod],
) -> int:
    known = {job.uid for job in jobs}
    orphans = sum(pod.owner_uid not in known and pod.device_type == kind for pod in pods)
    held = sum(_held(kind, job, shares.get(job.uid), pods) for job in jobs)
    device = spec.device_type(kind)
    return (0 if device is None else device.quota) - held - orphans
