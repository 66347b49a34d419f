"""Accounting of ended pods: each end is counted once, however often the operator is killed.

The list of ended pods is part of the status. A pod is added together with its outcome before it is deleted,
and removed once it is gone and its index may be reused.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from elastane_operator.decisions.pods import End, PodView, judge, pod_name
from elastane_operator.decisions.reconciliation import Reconciliation
from elastane_operator.decisions.status import Ended, Known

LEFT_SECONDS = 10.0
"""Delay before a worker that exited normally is replaced: workers exit shortly before the job succeeds."""

BACKOFF_SECONDS_MAX = 300.0


def count_ends(ctx: Reconciliation, *, leaving: bool) -> End | None:
    """Record new ends; return the one that makes the job fail, if there is one.

    leaving: pods are being released, so their ends are not failures.
    """
    fatal: End | None = None
    # Released pods vanish as planned, which is no preemption.
    if not leaving:
        _count_vanished(ctx)
    _forget_gone(ctx)
    for pod in ctx.pods:
        if pod.uid in ctx.ended:
            continue
        end = judge(pod, ctx.spec.exit_codes)
        if end is None:
            continue
        # A permanent failure fails the job even while its workers leave.
        if leaving and end.outcome != "permanent":
            ctx.set(ended=(*ctx.status.ended, Ended(pod.uid, pod.index, "released")))
            continue
        fatal = _count(ctx, pod, end) or fatal
    known = (Known(pod.uid, pod.index) for pod in ctx.pods if pod.uid not in ctx.ended)
    ctx.set(pods=tuple(known))
    return fatal


def waiting_indexes(ctx: Reconciliation) -> set[int]:
    """Return indexes that may not be reused yet; schedules a look for when the first one may."""
    waiting = set()
    for ended in ctx.status.ended:
        if ended.replace_after is not None and ended.replace_after > ctx.now:
            waiting.add(ended.index)
            ctx.look_at(ended.replace_after)
    return waiting


def backoff_seconds(first_seconds: float, restarts: int) -> float:
    """Wait before restart number `restarts` (from 1): doubled each time, up to a limit."""
    longest = max(first_seconds, BACKOFF_SECONDS_MAX)
    return min(first_seconds * 2.0 ** min(restarts - 1, 30), longest)


def _count(ctx: Reconciliation, pod: PodView, end: End) -> End | None:
    replace_after: datetime | None = None
    fatal: End | None = None
    match end.outcome:
        case "left":
            replace_after = ctx.now + timedelta(seconds=LEFT_SECONDS)
            ctx.note("Normal", "WorkerLeft", end.reason)
        case "preempted":
            ctx.set(preemptions=ctx.status.preemptions + 1)
            # Limits the creation rate when every new pod is preempted immediately.
            soon = pod.created + timedelta(seconds=ctx.spec.restart_backoff_seconds)
            replace_after = soon if soon > ctx.now else None
            ctx.note("Warning", "Preempted", f"{end.reason}; it does not count as a restart")
        case "retryable":
            restarts, budget = ctx.status.restarts + 1, ctx.spec.restart_budget
            ctx.set(restarts=restarts)
            wait = backoff_seconds(ctx.spec.restart_backoff_seconds, restarts)
            replace_after = ctx.now + timedelta(seconds=wait)
            if restarts > budget:
                reason = f"{end.reason}; all {budget} restarts of restartBudget are used up"
                fatal = End("retryable", reason)
                ctx.note("Warning", "RestartBudgetExhausted", reason)
            else:
                ctx.note(
                    "Warning",
                    "Restart",
                    f"{end.reason}; restart {restarts} of {budget} follows in {wait:g} s",
                )
        case "permanent":
            fatal = end
            ctx.note("Warning", "PermanentExit", end.reason)
        case "released":
            pass
    ctx.set(ended=(*ctx.status.ended, Ended(pod.uid, pod.index, end.outcome, replace_after)))
    return fatal


def _count_vanished(ctx: Reconciliation) -> None:
    """Record pods that vanished between looks: with their node, or deleted while the operator was down."""
    there = {pod.uid for pod in ctx.pods} | ctx.ended.keys()
    for known in ctx.status.pods:
        if known.uid not in there:
            name = pod_name(ctx.identity.name, known.index)
            ctx.set(preemptions=ctx.status.preemptions + 1)
            said = (
                f"{name} is gone: deleted by somebody else, or with its node; it does not count as a restart"
            )
            ctx.note("Warning", "Preempted", said)


def _forget_gone(ctx: Reconciliation) -> None:
    there = {pod.uid for pod in ctx.pods}
    kept = tuple(
        each
        for each in ctx.status.ended
        if each.uid in there or (each.replace_after is not None and each.replace_after > ctx.now)
    )
    if kept != ctx.status.ended:
        ctx.set(ended=kept)
