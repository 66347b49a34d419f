"""Reconciliation of a pool: from spec, previous status, jobs and pods to the next status.

The status is the decision. It is written in one request, if nobody else has written meanwhile. Jobs read
their share in it before they change a pod. A plan is made only when its inputs have changed or its policy
requests it, so a restarted operator keeps every share as it was.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

import msgspec

from elastane_operator.decisions.pool_grants import with_grants
from elastane_operator.decisions.pool_jobs import PoolJob, PoolPod
from elastane_operator.decisions.pool_planning import guarantee_is_due, make_plan
from elastane_operator.decisions.pool_spec import PoolSpec
from elastane_operator.decisions.pool_status import Devices, PoolStatus, Share
from elastane_operator.decisions.status import with_condition

JOBS_MAX = 1024
"""Jobs of one pool that can have a share: an object of the API server is at most some megabytes large."""


def look_at_pool(
    spec: PoolSpec,
    status: PoolStatus,
    jobs: Sequence[PoolJob],
    pods: Sequence[PoolPod],
    now: datetime,
    generation: int = 1,
) -> PoolStatus:
    """Decide the share of each job of a pool; return the pool's next status."""
    ordered = sorted(jobs, key=lambda job: (job.created, job.namespace, job.name))[:JOBS_MAX]
    before = {job.uid: status.share_of(job.uid) or _adopted(job, now) for job in ordered}
    shares = [before[job.uid] for job in ordered]
    digest = inputs_digest(spec, ordered, pods)
    if digest != status.inputs or (status.wake_at is not None and now >= status.wake_at):
        status, shares = _planned(spec, status, ordered, before, pods, now)
        status = msgspec.structs.replace(status, inputs=digest)
    shares = with_grants(spec, ordered, shares, pods)
    return _reported(spec, status, ordered, shares, now, generation)


def refuse_pool(status: PoolStatus, problems: Sequence[str], now: datetime, generation: int) -> PoolStatus:
    """Return the status of a pool whose spec is invalid: every share stays as it is."""
    said = "; ".join(problems)
    conditions = with_condition(
        status.conditions, "Ready", False, "InvalidSpec", said, now=now, generation=generation
    )
    return msgspec.structs.replace(status, conditions=conditions, observed_generation=generation)


def inputs_digest(spec: PoolSpec, jobs: Sequence[PoolJob], pods: Sequence[PoolPod]) -> str:
    """Return a digest of the inputs that require a new plan; progress is left out, as it always changes."""
    gated = {pod.owner_uid for pod in pods if pod.gated}
    parts = [
        (
            job.uid, job.active, job.ests, job.workers_min, job.workers_max, job.queue, job.priority,
            job.weight, sorted(job.unusable), job.steps > 0, job.est_seconds is not None, job.uid in gated,
            job.mixes, sorted(job.est_seconds_on) if job.mixes else [],
        )
        for job in jobs
    ]  # fmt: skip
    encoded = msgspec.json.encode([spec, parts], order="deterministic")
    return hashlib.sha256(encoded).hexdigest()[:16]


def _planned(
    spec: PoolSpec,
    status: PoolStatus,
    jobs: Sequence[PoolJob],
    before: dict[str, Share],
    pods: Sequence[PoolPod],
    now: datetime,
) -> tuple[PoolStatus, list[Share]]:
    is_over = any(
        _sum(before.values(), kind) > quota for kind, quota in zip(spec.names, spec.quotas, strict=True)
    )
    is_due = is_over or guarantee_is_due(spec, jobs, before)
    quiet = status.quiet_until is not None and now < status.quiet_until and not is_due
    plan = make_plan(spec, jobs, before, pods, now, quiet=quiet)
    active = {job.uid for job in jobs if job.active}
    reshaped = [
        share
        for share in plan.shares
        if share.uid in active and before[share.uid].planned and share.planned != before[share.uid].planned
    ]
    quiet_until = status.quiet_until
    if reshaped:
        quiet_until = now + timedelta(seconds=spec.cool_down_seconds)
    wake_at = None
    if quiet_until is not None and now < quiet_until:
        wake_at = quiet_until
    elif 0 < plan.wake_seconds < math.inf:
        # At least a second, for policies that want to decide constantly.
        wake_at = now + timedelta(seconds=max(plan.wake_seconds, 1.0, spec.cool_down_seconds))
    changed = [share for share in plan.shares if share.planned != before[share.uid].planned]
    last = "; ".join(share.reason for share in changed[:3]) if changed else status.last_decision
    replaced = msgspec.structs.replace(
        status, quiet_until=quiet_until, wake_at=wake_at, decided_at=now, last_decision=last[:1000]
    )
    return replaced, list(plan.shares)


def _adopted(job: PoolJob, now: datetime) -> Share:
    """Return the first share of a job: that of its own status, if its pool was recreated."""
    acknowledged = dict(job.acknowledged)
    started = next(iter(acknowledged), "") if job.in_ring else ""
    return Share(
        namespace=job.namespace,
        name=job.name,
        uid=job.uid,
        queue=job.queue,
        planned=acknowledged,
        granted=acknowledged,
        reason=f"{job.full_name} has what it had 0 s ago: no plan was made yet",
        at=now,
        started_on=started,
        revision=max(job.revision, 0) + 1,
        outstanding=acknowledged,
    )


def _reported(
    spec: PoolSpec,
    status: PoolStatus,
    jobs: Sequence[PoolJob],
    shares: Sequence[Share],
    now: datetime,
    generation: int,
) -> PoolStatus:
    active = {job.uid for job in jobs if job.active}
    running = sum(share.uid in active and bool(share.planned) for share in shares)
    granted: Devices = {kind: _granted(shares, kind) for kind in spec.names}
    offered: Devices = dict(zip(spec.names, spec.quotas, strict=True))
    return msgspec.structs.replace(
        status,
        observed_generation=generation,
        conditions=with_condition(
            status.conditions, "Ready", True, "Planned", "", now=now, generation=generation
        ),
        offered=offered,
        granted=granted,
        running=running,
        waiting=len(active) - running,
        summary=", ".join(f"{granted[kind]}/{offered[kind]} {kind}" for kind in spec.names),
        shares=tuple(shares),
    )


def _granted(shares: Sequence[Share], kind: str) -> int:
    return sum(share.granted.get(kind, 0) for share in shares)


def _sum(shares: Iterable[Share], kind: str) -> int:
    return sum(share.planned.get(kind, 0) for share in shares)
