"""Attempts: which failures may be temporary, the delay before the next attempt, and their number.

Exit codes follow docs/exit-codes.md: 0 success, 1 to 127 permanent failure, 128 to 255 possibly temporary
failure; a taken port is temporary, whatever the code. A lost runner or an undone launch is not a failed
attempt.
"""

from __future__ import annotations

import signal

from elastane_master.decisions.runs.run import Ending, Run
from elastane_master.decisions.runs.state import ServiceSettings


def may_pass(exit_code: int) -> bool:
    """True if another attempt may succeed after one that ended with this code."""
    return exit_code < 0 or exit_code >= 128


def lost_its_port(last_line: str) -> bool:
    """True if a process ended because another one took its port, which was free when the rank was started."""
    return "address already in use" in last_line.lower() or "EADDRINUSE" in last_line


def exit_text(rank: int, exit_code: int) -> str:
    """Describe how an instance ended: "rank 1 ended with 137 (SIGKILL)"."""
    number = exit_code - 128
    try:
        name = f" ({signal.Signals(number).name})" if number > 0 else ""
    except ValueError:
        name = ""
    return f"rank {rank} ended with {exit_code}{name}"


def after_failure(run: Run, what: str, passing: bool) -> Ending:
    """Decide the next state of a run after a failed attempt. passing: another attempt may succeed."""
    # Only the peers of a black box end because a runner is lost.
    by_exit, retries_max = not run.demand.elastic, run.demand.retries_max
    if not passing:
        return Ending("failed", f"{what}; a further attempt would end in the same way", by_exit)
    if run.failures >= retries_max:
        budget = "no retries are allowed" if not retries_max else f"all {retries_max} retries are used"
        return Ending("failed", f"{what}; {budget}", by_exit)
    return Ending("retry", f"{what}; retry {run.failures + 1} of {retries_max}", by_exit)


def backoff_seconds(first_seconds: float, seconds_max: float, failures: int) -> float:
    """Return the delay after this many failures in a row: doubled each time, up to a maximum."""
    return float(min(first_seconds * 2.0 ** min(max(failures - 1, 0), 60), seconds_max))


def retry_delay_seconds(settings: ServiceSettings, failures: int) -> float:
    """Return the delay before the next attempt, after this many failed ones."""
    return backoff_seconds(settings.retry_seconds, settings.retry_seconds_max, failures)


def relaunch_delay_seconds(settings: ServiceSettings, failures: int) -> float:
    """Return the delay before the next launch, after this many in a row were undone."""
    return backoff_seconds(settings.relaunch_seconds, settings.relaunch_seconds_max, failures)


def pause_seconds(settings: ServiceSettings, pauses: int) -> float:
    """Return the length of a runner's next pause. pauses: in a row so far."""
    return backoff_seconds(settings.pause_seconds, settings.pause_seconds_max, pauses)
