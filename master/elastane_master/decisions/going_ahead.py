"""Puts planned changes of a ring off where members go ahead, so that they drop nothing that they have begun.

    step s    a member reports that it may apply it before Prepared(s) comes, and begin s + 1
    Prepared(s)      says next_waits: s + 1 is applied only once its own Prepared is there
    Prepared(s + 1)  brings the change: nobody has begun s + 2

A change that cannot wait is made at once, and costs what members have begun of the next step, as one that is
not planned does: where a worker leaves with its node before another step is likely to end.
"""

from __future__ import annotations

from typing import Final

from elastane_master.decisions.assignment import Choice
from elastane_master.decisions.state import JobState

STEPS_LEFT_MIN: Final = 2.0
"""A worker must have this many times the duration of a step left, to take part in one more: steps vary, and
what follows, Ready and the hand-over, takes its time too."""


def hurry(state: JobState, choice: Choice, now: float, step_seconds: float) -> str:
    """Return why the change to `choice` is made at once, to be added to its reason; empty if it can wait.

    step_seconds: of a step of the ring, as far as it is known.
    """
    stays = {member.worker for member in choice.members}
    leaving = [
        (record.leave_by - now, record.worker)
        for record in state.active_members()
        if record.leave_by is not None and record.worker not in stays
    ]
    left_seconds, worker = min(leaving, default=(float("inf"), ""))
    if left_seconds >= STEPS_LEFT_MIN * step_seconds:
        return ""
    return (
        f"; at once, and step {state.steps.current} is begun anew where it has begun: {worker} has"
        f" {max(left_seconds, 0.0):.3g} s left, and a step takes {step_seconds:.3g} s"
    )


def postpones(state: JobState, hurry: str) -> bool:
    """True if a planned change waits for the next boundary, of which Prepared tells the members.

    Called with a change that would be announced now, in a ring in which some member goes ahead. hurry: why it
    cannot wait. Changes that were put off once are not put off again: a worker that says that it goes ahead
    although it was told to wait is at fault.
    """
    book = state.steps
    if hurry or book.change_waits:
        return False
    book.change_waits = True
    return True
