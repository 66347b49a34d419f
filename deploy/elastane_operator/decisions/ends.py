"""Accounting of ended pods: each end is counted once, however often the operator is killed.

The list of ended pods is part of the status. A pod is added together with its outcome before it is deleted,
and removed once it is gone and its index may be reused.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from elastane_operator.decisions.pods import End, PodView, judge, pod_name
from elastane_operator.decisions.status import Ended, Known
from elastane_operator.decisions.turn import Turn

LEFT_SECONDS = 10.0
"""Delay before a worker that exited normally is replaced: workers exit shortly before the job succeeds."""

BACKOFF_SECONDS_MAX = 300.0


def count_ends(turn: Turn, *, leaving: bool) -> End | None:
    """Record new ends; return the one that makes the job fail, if there is one.

    leaving: pods are being released, so their ends are not failures.
    """
    fatal: End | None = None
    # Released pods vanish as planned, which is no preemption.
    if not leaving:
        _count_vanished(turn)
    _forget_gone(turn)
    for pod in turn.pods:
        if pod.uid in turn.ended:
            continue
        end = judge(pod, turn.spec.exit_codes)
        if end is None:
            continue
        # A permanent failure fails the job even while its workers leave.
        if leaving and end.outcome != "permanent":
            turn.set(ended=(*turn.status.ended, Ended(pod.uid, pod.index, "released")))
            continue
        fatal = _count(turn, pod, end) or fatal
    known = (Known(pod.uid, pod.index) for pod in turn.pods if pod.uid not in turn.ended)
    turn.set(pods=tuple(known))
    return fatal


def waiting_indexes(turn: Turn) -> set[int]:
    """Indexes that may not be reused yet; plans a look for the time when the first one may."""
    waiting = set()
    for ended in turn.status.ended:
        if ended.replace_after is not None and ended.replace_after > turn.now:
            waiting.add(ended.index)
            turn.look_at(ended.replace_after)
    return waiting


def backoff_seconds(first_seconds: float, restarts: int) -> float:
    """Wait before restart number `restarts` (from 1): doubled each time, up to a limit."""
    longest = max(first_seconds, BACKOFF_SECONDS_MAX)
    return min(first_seconds * 2.0 ** min(restarts - 1, 30), longest)


def _count(turn: Turn, pod: PodView, end: End) -> End | None:
    replace_after: datetime | None = None
    fatal: End | None = None
    match end.outcome:
        case "left":
            replace_after = turn.now + timedelta(seconds=LEFT_SECONDS)
            turn.note("Normal", "WorkerLeft", end.reason)
        case "preempted":
            turn.set(preemptions=turn.status.preemptions + 1)
            # Limits the creation rate when every new pod is preempted immediately.
            soon = pod.created + timedelta(seconds=turn.spec.restart_backoff_seconds)
            replace_after = soon if soon > turn.now else None
            turn.note("Warning", "Preempted", f"{end.reason}; it does not count as a restart")
        case "retryable":
            restarts, budget = turn.status.restarts + 1, turn.spec.restart_budget
            turn.set(restarts=restarts)
            wait = backoff_seconds(turn.spec.restart_backoff_seconds, restarts)
            replace_after = turn.now + timedelta(seconds=wait)
            if restarts > budget:
                reason = f"{end.reason}; all {budget} restarts of restartBudget are used up"
                fatal = End("retryable", reason)
                turn.note("Warning", "RestartBudgetExhausted", reason)
            else:
                turn.note(
                    "Warning",
                    "Restart",
                    f"{end.reason}; restart {restarts} of {budget} follows in {wait:g} s",
                )
        case "permanent":
            fatal = end
            turn.note("Warning", "PermanentExit", end.reason)
        case "released":
            pass
    turn.set(ended=(*turn.status.ended, Ended(pod.uid, pod.index, end.outcome, replace_after)))
    return fatal


def _count_vanished(turn: Turn) -> None:
    """Record pods that vanished between looks: with their node, or deleted while the operator was down."""
    there = {pod.uid for pod in turn.pods} | turn.ended.keys()
    for known in turn.status.pods:
        if known.uid not in there:
            name = pod_name(turn.identity.name, known.index)
            turn.set(preemptions=turn.status.preemptions + 1)
            said = (
                f"{name} is gone: deleted by somebody else, or with its node; it does not count as a restart"
            )
            turn.note("Warning", "Preempted", said)


def _forget_gone(turn: Turn) -> None:
    there = {pod.uid for pod in turn.pods}
    kept = tuple(
        each
        for each in turn.status.ended
        if each.uid in there or (each.replace_after is not None and each.replace_after > turn.now)
    )
    if kept != turn.status.ended:
        turn.set(ended=kept)
