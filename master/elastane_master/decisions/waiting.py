"""Limit on the wait for enough workers, because idle workers cost money.

The wait begins when the job is created, when training stops because too few workers are left, and at Resume.
It ends with enough workers, or after max_wait_seconds: then the present workers are released, and the job
stops until Resume.

Its end is stored as an absolute time, so a restart of the master does not extend it. But no worker can join
while no master runs, so after a restart workers have at least the return grace.
"""

from __future__ import annotations

from elastane_master.decisions import life, quarantine, ring
from elastane_master.decisions.decision_context import DecisionContext
from elastane_master.decisions.ring_state import Stage
from elastane_master.decisions.state import JobState
from elastane_proto.history import events as history
from elastane_proto.history.describe import done_again


def begin(state: JobState, now: float) -> None:
    """Start the wait, if it is limited."""
    if state.settings.max_wait_seconds > 0:
        state.waiting_since, state.wait_until = now, now + state.settings.max_wait_seconds


def settle(ctx: DecisionContext) -> None:
    """Start, continue or end the wait, after each decision."""
    state = ctx.state
    if state.waiting_since is None:
        if state.settings.max_wait_seconds > 0 and _too_few(state):
            begin(state, ctx.now)
    elif not _too_few(state):
        state.waiting_since = state.wait_until = None


def master_started(ctx: DecisionContext) -> None:
    """Extend the wait: workers need time to find the restarted master."""
    state = ctx.state
    if state.wait_until is not None:
        state.wait_until = max(state.wait_until, ctx.now + state.settings.return_grace_seconds)


def expire(ctx: DecisionContext) -> None:
    """Release the present workers once the wait is over."""
    state = ctx.state
    if state.waiting_since is None or state.wait_until is None or ctx.now < state.wait_until:
        return
    there, needed = workers_there(state), state.workers_needed
    waited, lost = ctx.now - state.waiting_since, state.steps_unsaved
    reason = f"{there} of {needed} workers were there after {waited:.{1 if waited < 10 else 0}f} s"
    if there:
        reason += ": they are released"
    if lost:
        reason += f"; {done_again(lost)}"
    exceeded = history.JobMaxWaitExceeded(reason, there, needed, state.settings.max_wait_seconds, lost)
    life.halt(ctx, "max_wait_exceeded", reason, exceeded)
    state.waiting_since = state.wait_until = None
    ring.dismiss(ctx)


def workers_there(state: JobState) -> int:
    """Number of workers that stay; those that only lease tasks count, too, because they do the job's work."""
    return sum(
        1
        for record in state.workers.values()
        if not (record.awaited or record.draining or quarantine.for_good(record))
    )


def _too_few(state: JobState) -> bool:
    if state.phase != "waiting" or state.ring.stage is not Stage.NONE:
        return False
    return len(state.workers) < state.workers_needed or workers_there(state) < state.workers_needed
