"""Workers of a job hold the same state, or the job stops.

With its report of a step each member sends digests of its hyperparameters and of a part of its state, as
of the step's start. They are compared before the step is prepared, so that nothing which differs is ever
applied:

    all reports are in --> digests alike?  yes: the step is prepared
                                           no:  Explain to all members --> StateDetails --> the job has failed

Nobody applies anything meanwhile, so what a member answers is what its digests were of. The reason names the
worker that stands alone, or all where no majority can tell, what differs, and the step. A member that is lost
before it has answered, or that does not answer, is done without.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping

from elastane_master.decisions import life, majority
from elastane_master.decisions.effects import Explain
from elastane_master.decisions.events import StateDetail, StateDetailed
from elastane_master.decisions.state import Drift, JobState
from elastane_master.decisions.turn import Turn

EXPLAIN_SECONDS = 10.0
"""So long members are waited for to say what their state consists of."""
NAMED_MAX = 3
"""So many of the things that differ are named."""


def hold_back(turn: Turn) -> bool:
    """Whether the current step, of which all reports are in, must not be prepared: members differ."""
    state = turn.state
    if state.drift is not None:
        return True
    reports = state.steps.reports.values()
    if _alike(r.settings_digest for r in reports) and _alike(r.state_digest for r in reports):
        return False
    turn.touch()
    state.drift = Drift(state.ring.generation, state.steps.current, turn.now)
    names = state.ring.names()
    turn.note("state_differs", f"{' and '.join(names)} differ at the start of step {state.steps.current}")
    for worker in names:
        turn.send(worker, explain_message(state.drift))
    return True


def explain_message(drift: Drift) -> Explain:
    """What a member is asked."""
    return Explain(drift.generation, drift.step)


def detailed(turn: Turn, event: StateDetailed) -> None:
    """A member says what its state consists of."""
    state, drift = turn.state, turn.state.drift
    if turn.attending(event.worker, event.session) is None or drift is None:
        return
    if (event.generation, event.step) != (drift.generation, drift.step):
        return
    turn.touch()
    drift.details[event.worker] = event.details
    if set(state.ring.names()) <= drift.details.keys():
        conclude(turn)


def conclude(turn: Turn) -> bool:
    """Fails the job with what is known by now; False if there is no difference to tell of."""
    state, drift = turn.state, turn.state.drift
    if drift is None:
        return False
    turn.touch()
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
        turn,
        "failed",
        f"{majority.in_words(who, members)} {where}: {what or 'it cannot be said in what'}. {majority.CURE}",
    )
    return True


def next_deadline(state: JobState) -> float | None:
    """When answers are waited for no longer."""
    return state.drift.since + EXPLAIN_SECONDS if state.drift is not None else None


def expire(turn: Turn) -> None:
    """Goes on without answers that have not come in time."""
    due = next_deadline(turn.state)
    if due is not None and turn.now >= due:
        conclude(turn)


def _alike(digests: object) -> bool:
    """Whether none of those that were sent differ."""
    return len({digest for digest in digests if digest is not None}) < 2  # type: ignore[attr-defined]


def _whole(details: tuple[StateDetail, ...]) -> Hashable:
    return tuple((detail.name, detail.digest) for detail in details)


def _named(details: Mapping[str, tuple[StateDetail, ...]]) -> list[str]:
    """What differs, and how."""
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
            told = any(detail is None or detail.value for detail in each.values())
            found.append(f"{name} ({', '.join(values)})" if told else name)
    return found
