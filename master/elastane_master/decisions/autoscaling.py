"""Scaling by itself: how many workers a job asks for, where its user gave a purpose and not a number.

Whoever starts workers (agent, hosts script, operator, runners) follows the target; workers beyond it stand by
and are released. What the target should be is decided by `elastane_scheduler.autoscaling`.
"""

from __future__ import annotations

import msgspec

from elastane_master.decisions import stragglers
from elastane_master.decisions.events import Rejection, ScaleRequested
from elastane_master.decisions.state import JobState, ScalingBook
from elastane_proto.job_settings import JobSettings
from elastane_scheduler.autoscaling.modes import Deadline, Mode, canonical, parse_mode
from elastane_scheduler.errors import InvalidSettings

SETTINGS = ("scaling", "over_budget", "on_demand_workers", "spot_policy", "cold_start_seconds")
"""Settings that decide the target, and no bit: they may change while the job trains."""


class ScalingView(msgspec.Struct, frozen=True):
    """The scaling of a job, as job.proto's Scaling."""

    mode: str
    workers_target: int
    on_demand_target: int
    reason: str
    predicted_finish_at: float | None
    predicted_cost_micros: int | None
    changed_at: float | None
    deadline_at: float | None


def checked(settings: JobSettings, now: float) -> JobSettings:
    """Return the settings with their scaling in the form that is stored. Raises Rejection."""
    try:
        mode = parse_mode(settings.scaling, now, currency=settings.currency)
    except InvalidSettings as error:
        raise Rejection(
            "invalid_argument", str(error), hint=error.hint, field="scaling", value=settings.scaling
        ) from None
    if mode is not None and settings.recovery == "fixed":
        raise Rejection(
            "invalid_argument",
            "a job with fixed recovery trains only with its full number of workers: it cannot scale",
            hint="leave out the scaling, or give elastic recovery",
            field="scaling",
        )
    return msgspec.structs.replace(settings, scaling=canonical(mode))


def asked(settings: JobSettings, event: ScaleRequested, now: float) -> JobSettings:
    """Return the settings with what an operator asks of the scaling. Raises Rejection."""
    given = {name: value for name in SETTINGS if (value := getattr(event, name)) is not None}
    return checked(msgspec.structs.replace(settings, **given), now) if given else settings


def begin(state: JobState) -> None:
    """Forget what was decided: another mode is set."""
    state.scaling = ScalingBook()


def mode_of(state: JobState) -> Mode | None:
    """Return the mode of a job; None if it does not scale by itself."""
    return parse_mode(state.settings.scaling, state.decided_at)


def workers_target(state: JobState) -> int:
    """Return how many workers a job that scales by itself should have, within its bounds."""
    settings = state.settings
    most = min(settings.workers_max or settings.ests, settings.ests)
    return max(min(state.scaling.target or most, most), min(settings.workers_min, most))


def view(state: JobState) -> ScalingView | None:
    """Return the scaling of a job as it is shown; None if it does not scale by itself."""
    mode = mode_of(state)
    if mode is None:
        return None
    book, target, settings = state.scaling, workers_target(state), state.settings
    most = min(settings.workers_max or settings.ests, settings.ests)
    return ScalingView(
        mode=settings.scaling,
        workers_target=min(target + stragglers.standbys_wanted(state), most),
        on_demand_target=min(book.on_demand_target, target),
        reason=book.reason or "nothing is measured yet: as many workers as may train",
        predicted_finish_at=book.predicted_finish_at,
        predicted_cost_micros=book.predicted_cost_micros,
        changed_at=book.changed_at,
        deadline_at=mode.at if isinstance(mode, Deadline) else None,
    )
