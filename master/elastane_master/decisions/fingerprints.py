"""Comparison of members' state: if members of a ring hold different state, the job stops.

With its report of a step each member sends digests of its hyperparameters and of part of its state as of the
start of the step. They are compared before the step is prepared, so that a difference is never applied:

  all reports are in --> digests alike?  yes: the step is prepared
                         no:  Explain to all members --> StateDetails --> the job has failed

Nothing is applied in the meantime, so members answer from the same state as their digests. The reason names
the odd worker out (all of them if there is no majority), what differs, and the step. The answer of a member
that is lost, or silent for too long, is not awaited.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping

from elastane_master.decisions import life, majority
from elastane_master.decisions.decision_context import DecisionContext
from elastane_master.decisions.effects import Explain
from elastane_master.decisions.events import StateDetail, StateDetailed
from elastane_master.decisions.state import Drift, JobState
from elastane_proto.history import events as history

EXPLAIN_SECONDS = 10.0
"""Time members have to send the details of their state."""
NAMED_MAX = 3
"""Limit of differing entries named in the reason."""


def hold_back(ctx: DecisionContext) -> bool:
    """True if the current step, fully reported, must not be prepared because members differ."""
    state = ctx.state
    if state.drift is not None:
        return True
    reports = state.steps.reports.values()
    if _alike(r.settings_digest for r in reports) and _alike(r.state_digest for r in reports):
        return False
    ctx.touch()
    state.drift = Drift(state.ring.generation, state.steps.current, ctx.now)
    names = state.ring.names()
    ctx.note(history.StateDiffers(names, state.steps.current))
    for worker in names:
        ctx.send(worker, explain_message(state.drift))
    return True


def explain_message(drift: Drift) -> Explain:
    """Build the request for details that is sent to a member."""
    return Explain(drift.generation, drift.step)


def detailed(ctx: DecisionContext, event: StateDetailed) -> None:
    """Handle the details of a member's state."""
    state, drift = ctx.state, ctx.state.drift
    if ctx.attending(event.worker, event.session) is None or drift is None:
        return
    if (event.generation, event.step) != (drift.generation, drift.step):
        return
    ctx.touch()
    drift.details[event.worker] = event.details
    if set(state.ring.names()) <= drift.details.keys():
        conclude(ctx)


def conclude(ctx: DecisionContext) -> bool:
    """Fail the job with the differences known so far; False if there is none to report."""
    state, drift = ctx.state, ctx.state.drift
    if drift is None:
        return False
    ctx.touch()
    members = sorted(member.worker for member in state.ring.members)
    state.drift = None
    where = f"at the start of step {drift.step}"
    found = _named(drift.details) if len(drift.details) > 1 else []
    what = "; ".join(found[:NAMED_MAX]) + (
        f"; and {len(found) - NAMED_MAX} more" if found[NAMED_MAX:] else ""
    )
    who = (
        majority.odd_ones_out({worker: _whole(details) for worker, details in drift.details.items()})
        or members
    )
    life.end(
        ctx,
        "failed",
        f"{majority.in_words(who, members)} {where}: {what or 'the difference could not be determined'}."
        f" {majority.CURE}",
    )
    return True


def next_deadline(state: JobState) -> float | None:
    """Time at which to stop waiting for answers."""
    return state.drift.since + EXPLAIN_SECONDS if state.drift is not None else None


def expire(ctx: DecisionContext) -> None:
    """Continue without overdue answers."""
    due = next_deadline(ctx.state)
    if due is not None and ctx.now >= due:
        conclude(ctx)


def _alike(digests: object) -> bool:
    """True if all digests that were sent are equal."""
    return len({digest for digest in digests if digest is not None}) < 2  # type: ignore[attr-defined]


def _whole(details: tuple[StateDetail, ...]) -> Hashable:
    return tuple((detail.name, detail.digest) for detail in details)


def _named(details: Mapping[str, tuple[StateDetail, ...]]) -> list[str]:
    """Return the entries that differ, with their values."""
    by_worker = {
        worker: {detail.name: detail for detail in known} for worker, known in sorted(details.items())
    }
    found = []
    for name in dict.fromkeys(name for known in by_worker.values() for name in known):
        each = {worker: known.get(name) for worker, known in by_worker.items()}
        if len({detail.digest if detail else None for detail in each.values()}) > 1:
            values = [
                f"{detail.value if detail and detail.value else 'nothing'} in {worker}"
                for worker, detail in each.items()
            ]
            reported = any(detail is None or detail.value for detail in each.values())
            found.append(f"{name} ({', '.join(values)})" if reported else name)
    return found
