"""A job's share of its pool, stored in the job's status before any pod changes."""

from __future__ import annotations

import statistics

import msgspec

from elastane_operator.decisions.pod_counts import wanted_pods
from elastane_operator.decisions.pool_status import Share
from elastane_operator.decisions.reconciliation import Reconciliation
from elastane_operator.decisions.status import SchedulingStatus


def is_parked(ctx: Reconciliation) -> bool:
    """True if the job's pool gives it no devices now."""
    return ctx.spec.scheduling is not None and not wanted_pods(ctx)


def follow_pool(ctx: Reconciliation) -> None:
    """Copy the pool's decision to the status, with events and the condition Scheduled.

    If the pool cannot be read, or has not decided yet, the job keeps its previous share.
    """
    if ctx.spec.scheduling is None:
        return
    before = ctx.status.scheduling or SchedulingStatus()
    pool = ctx.observed.pool
    share = None if pool is None else pool.share
    name = ctx.spec.scheduling.pool
    if ctx.status.finished or ctx.spec.suspend:
        revision = before.revision if share is None else share.revision
        none = msgspec.structs.replace(before, pool=name, devices={}, planned={}, revision=revision)
        ctx.set(scheduling=_measured(ctx, none))
        ctx.condition("Scheduled", False, "NotWanted", "the job is over or suspended, and needs no devices")
        return
    if share is None:
        error = "" if pool is None else pool.error
        said = error or f"pool {name} has not decided about the job yet"
        kept = msgspec.structs.replace(before, pool=name, reason=said)
        ctx.set(scheduling=_measured(ctx, kept))
        ctx.condition("Scheduled", bool(kept.devices), "PoolMissing" if error else "NotDecided", said)
        return
    now = SchedulingStatus(
        pool=name,
        devices=dict(share.granted),
        planned=dict(share.planned),
        reason=share.reason,
        predicted_finish=share.predicted_finish,
        at=share.at,
        revision=share.revision,
        est_seconds=before.est_seconds,
        est_seconds_on=before.est_seconds_on,
    )
    _tell(ctx, before, share)
    ctx.set(scheduling=_measured(ctx, now))
    word = "Granted" if share.granted else "Releasing" if share.planned else "Waiting"
    ctx.condition("Scheduled", bool(share.granted), word, share.reason)


def _tell(ctx: Reconciliation, before: SchedulingStatus, share: Share) -> None:
    """Post events for devices granted, taken or declined."""
    kinds = sorted({*before.devices, *share.granted})
    change = {kind: share.granted.get(kind, 0) - before.devices.get(kind, 0) for kind in kinds}
    more = ", ".join(f"{count} {kind}" for kind, count in change.items() if count > 0)
    fewer = ", ".join(f"{-count} {kind}" for kind, count in change.items() if count < 0)
    if fewer:
        ctx.note("Normal", "Taken", f"{fewer} taken: {share.reason}")
    if more:
        ctx.note("Normal", "Granted", f"{more} granted: {share.reason}")
    told = ctx.status.condition("Scheduled")
    if not share.planned and not before.devices and (told is None or told.reason != "Waiting"):
        ctx.note("Normal", "Declined", share.reason)


def _measured(ctx: Reconciliation, scheduling: SchedulingStatus) -> SchedulingStatus:
    seconds = None if ctx.job is None else ctx.job.est_seconds
    if ctx.job is None or not seconds:
        return scheduling
    by_type: dict[str, list[float]] = {}
    for worker in ctx.job.workers:
        kind = next((pod.kind for pod in ctx.pods if worker.worker.startswith(f"{pod.name}-")), "")
        if kind and worker.est_seconds:
            by_type.setdefault(kind, []).append(worker.est_seconds)
    # Two digits suffice for planning, and the status changes less often.
    found = {kind: f"{statistics.median(measured):.2g}" for kind, measured in sorted(by_type.items())}
    return msgspec.structs.replace(
        scheduling, est_seconds=f"{seconds:.2g}", est_seconds_on=scheduling.est_seconds_on | found
    )
