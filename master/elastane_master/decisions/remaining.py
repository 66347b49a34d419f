"""Time left for a job, from its workers' measurements. Pure."""

from __future__ import annotations

from elastane_master.decisions import balance
from elastane_master.decisions.state import OVER, JobState


def seconds_left(state: JobState) -> float | None:
    """Return the seconds until the job's last step if its ring stays as it is; None: unknown.

    Unknown for jobs that do not train now, or whose number of steps or speed is not known yet.
    """
    if state.phase in OVER:
        return 0.0
    step_seconds = _step_seconds(state)
    if state.phase != "running" or not state.total_steps or step_seconds is None:
        return None
    return max(0, state.total_steps - state.steps.committed) * step_seconds


def _step_seconds(state: JobState) -> float | None:
    """Return the seconds of a step: as measured in this ring, or the time of its slowest worker."""
    whole = balance.ring_step_seconds(state)
    if whole is not None:
        return whole
    parts = []
    for member in state.ring.members:
        record = state.workers.get(member.worker)  # None: it has left, and the next ring is not formed yet
        parts.append((member.end - member.start) * record.added_seconds if record is not None else 0.0)
    return max(parts) if parts and all(parts) else None
