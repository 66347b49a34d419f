"""Autoscaling: number of workers for a job whose user gave an objective instead of a number.

The programs that start workers (agent, hosts script, operator, runners) follow the target; surplus workers
stand by and are released. `elastane_scheduler.autoscaling` decides the target.
"""

from __future__ import annotations

import statistics
from collections import Counter

import msgspec

from elastane_master.decisions import balance, cost, stragglers
from elastane_master.decisions.decision_context import DecisionContext
from elastane_master.decisions.events import Rejection, ScaleRequested
from elastane_master.decisions.ring_state import Stage
from elastane_master.decisions.state import JobState, ScalingBook, SpotBook
from elastane_proto.amounts import money_text
from elastane_proto.history import events as history
from elastane_proto.job_settings import JobSettings
from elastane_scheduler.autoscaling.autoscaler import (
    LOOK_STEPS,
    MEASURE_STEPS,
    AutoscalerState,
    Decision,
    Measurement,
    ahead,
    decide,
)
from elastane_scheduler.autoscaling.modes import Budget, Deadline, Mode, canonical, parse_mode, time_text
from elastane_scheduler.autoscaling.objectives import Bounds
from elastane_scheduler.autoscaling.step_times import growth, settled
from elastane_scheduler.errors import InvalidSettings

WINDOW_STEPS = 40
"""Newest steps of a ring of which the median counts."""
SETTLING_STEPS = 2
"""First steps of a ring that are not counted, as workers count none of them: they connect, and kernels are
chosen."""

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
    """Return the settings with their scaling in stored form. Raises Rejection."""
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
    """Return the settings with an operator's change of the scaling. Raises Rejection."""
    given = {name: value for name in SETTINGS if (value := getattr(event, name)) is not None}
    return checked(msgspec.structs.replace(settings, **given), now) if given else settings


def begin(state: JobState) -> None:
    """Start another mode from the current number of workers; measurements are kept."""
    state.scaling = begun(state)


def begun(state: JobState) -> ScalingBook:
    """Return the book with which a mode begins."""
    book = state.scaling
    known = AutoscalerState(
        now=book.autoscaler.now,
        target=len(state.active_members()),
        device_type=book.autoscaler.device_type,
        rungs=book.autoscaler.rungs,
        changes=book.autoscaler.changes,
    )
    return ScalingBook(
        target=known.target,
        autoscaler=known,
        generation=book.generation,
        steps=book.steps,
        times=book.times,
        look_at=book.steps,
        spot=SpotBook(rungs=book.spot.rungs, rests=book.spot.rests),
    )


def mode_of(state: JobState) -> Mode | None:
    """Return the mode of a job; None if it does not scale by itself."""
    return parse_mode(state.settings.scaling, 0.0)


def is_on_spot(settings: JobSettings) -> bool:
    """True if a job's targets are decided by deadline_on_spot.py: its deadline may have workers on demand."""
    return settings.on_demand_workers > 0 and settings.scaling.startswith("deadline=")


def workers_target(state: JobState) -> int:
    """Return how many workers a job that scales by itself should have, within its bounds."""
    settings = state.settings
    most = settings.workers_most
    return max(min(state.scaling.target or most, most), min(settings.workers_min, most))


def workers_asked(state: JobState) -> int:
    """Return how many workers to start: the target, plus a standby if that pays off."""
    settings = state.settings
    most = min(settings.workers_max or settings.ests, settings.ests)
    wanted = workers_target(state) + stragglers.standbys_wanted(state)
    return min(max(wanted, _held_back(state)), most)


def _held_back(state: JobState) -> int:
    """Return the previous number of workers while fewer are tried: the others stand by meanwhile.

    Only for as long as new workers would take to start; after that, standbys would cost more.
    """
    known = state.scaling.autoscaler
    is_tried = known.before > known.target == state.scaling.target
    until = known.asked_at + state.settings.cold_start_seconds
    return known.before if is_tried and state.decided_at < until else 0


# ------------------------------------------------------------------ at a step boundary


def step_prepared(ctx: DecisionContext, since: float) -> None:
    """Record the time of the step prepared now, and decide if due. since: time of the previous step.

    Called at each boundary, before the change of the ring there is decided.
    """
    state, book = ctx.state, ctx.state.scaling
    if not state.settings.scaling:
        return
    disturbed, is_other = bool(_straggler(state)), book.generation != state.ring.generation
    if is_other or book.disturbed != disturbed:
        book.settling = SETTLING_STEPS if is_other else book.settling
        book.generation, book.disturbed = state.ring.generation, disturbed
        book.steps, book.times, book.look_at = 0, (), MEASURE_STEPS
        if not is_other:
            return
    if book.settling:
        book.settling -= 1
        return
    book.times = (*book.times[-(WINDOW_STEPS - 1) :], max(0.0, ctx.now - since))
    book.steps += 1
    if book.steps >= book.look_at and _may_change(state) and not is_on_spot(state.settings):
        book.look_at = book.steps + (_look(ctx) or LOOK_STEPS)


def _may_change(state: JobState) -> bool:
    """True if no change of the ring and no checkpoint is in flight, and steps are left."""
    steps_left = not state.total_steps or state.steps.current < state.total_steps
    is_settled = not (state.ring.gone or state.ring.put_off or state.suspending or state.finished)
    return steps_left and is_settled and state.checkpoints.in_flight is None and not state.awaited()


def _look(ctx: DecisionContext) -> int:
    """Decide; return after how many steps to decide again, 0: after LOOK_STEPS."""
    state, book = ctx.state, ctx.state.scaling
    mode = mode_of(state)
    assert mode is not None
    before = workers_target(state)
    seen = measurement(state, ctx.now)
    decision = decide(book.autoscaler, mode, bounds(state, state.settings), seen)
    book.autoscaler, book.target, book.reason = decision.state, decision.target, decision.reason
    book.predicted_finish_at = decision.predicted_finish_at
    book.predicted_cost_micros = decision.predicted_cost_micros
    if isinstance(mode, Budget) and seen.spent_micros >= mode.micros:
        book.budget_spent = True
        suspends_if_spent(state)
    if decision.target == before:
        return decision.look_steps
    book.changed_at = ctx.now
    rates = _rate(decision.seconds_before), _rate(decision.seconds_after)
    text, why = state.settings.scaling, decision.reason
    if decision.action == "roll_back":
        ctx.note(history.ScaleRolledBack(before, decision.target, text, why, *rates, decision.barred_seconds))
    else:
        ctx.note(history.JobAutoscaled(before, decision.target, 0, text, why, *rates))
    return decision.look_steps


def _straggler(state: JobState) -> str:
    """Return a straggler in the ring; empty if there is none."""
    slow = (one.worker for one in state.active_members() if one.straggler and not one.draining)
    return min(slow, default="")


def spent_budget(state: JobState, now: float) -> Budget | None:
    """Return the job's budget if it is spent; None if it is not, and without one."""
    mode = mode_of(state)
    if isinstance(mode, Budget) and cost.view(state, now).spent_micros >= mode.micros:
        return mode
    return None


def suspends_if_spent(state: JobState) -> bool:
    """Request suspension of a job whose budget is spent, if so configured and possible; return whether it is.

    The job is suspended at the next step boundary; other callers must check whether there is one.
    """
    if state.settings.over_budget != "suspend":
        return False
    if not state.settings.checkpoint_url:
        without = "; without a checkpoint_url it cannot be suspended"
        state.scaling.reason = f"{state.scaling.reason.removesuffix(without)}{without}"
        return False
    state.suspending = state.scaling.suspends = True
    return True


def look_between(ctx: DecisionContext) -> None:
    """Decide during a step, if a boundary would allow a decision now."""
    state, book = ctx.state, ctx.state.scaling
    is_measured = bool(book.times) and book.generation == state.ring.generation
    if is_measured and state.ring.stage is Stage.RUNNING and _may_change(state):
        _look(ctx)


def why_suspended(state: JobState) -> str:
    """Return why the job suspends itself; "" if it does not."""
    if not state.scaling.suspends:
        return ""
    mode = mode_of(state)
    micros = mode.micros if isinstance(mode, Budget) else 0
    return f"the budget of {money_text(micros, state.settings.currency)} is spent"


def bounds(state: JobState, settings: JobSettings) -> Bounds:
    """Return the range of numbers of workers that settings and memory allow."""
    most = settings.workers_most
    return Bounds(settings.ests, min(max(settings.workers_min, workers_fitting(state)), most), most)


def workers_fitting(state: JobState) -> int:
    """Return the smallest number of workers with memory for all ESTs, by the members' own reports."""
    ests, most_of_type = state.settings.ests, state.balance.ests_max
    limits = [
        min(record.ests_max or ests, most_of_type.get(record.device_type, ests))
        for record in state.active_members()
    ]
    return -(-ests // max(1, *limits)) if limits else 1


def measurement(state: JobState, now: float) -> Measurement:
    """Return the measurement of the job at a boundary; for a ring not measured here, its workers' reports."""
    book, members = state.scaling, state.active_members()
    is_measured = bool(book.times) and book.generation == state.ring.generation
    # Only the first times of a ring may be left out of the window.
    window = book.times if is_measured else ()
    times = settled(window) if book.steps <= WINDOW_STEPS else window
    left_out = len(window) - len(times)
    step_seconds, steps = statistics.median(times) if is_measured else 0.0, book.steps - left_out
    if not is_measured and (known := balance.ring_step_seconds(state)) is not None:
        step_seconds, steps = known, balance.RING_STEPS_MIN
    types = Counter(record.device_type for record in members if record.device_type)
    prices = [cost.price_micros(state, record.device_type, record.capacity) for record in members]
    return Measurement(
        now=now,
        elapsed_seconds=max(0.0, now - state.created_at),
        ring_workers=len(members),
        step_seconds=step_seconds,
        steps=steps,
        steps_left=max(0, state.total_steps - state.steps.current) if state.total_steps else None,
        device_type=min(types, key=lambda name: (-types[name], name), default=""),
        change_seconds=state.balance.change_seconds,
        worker_hour_micros=sum(prices) / len(prices) if prices and all(prices) else 0.0,
        spent_micros=cost.view(state, now).spent_micros,
        settling_steps=left_out,
        growth=growth(times),
        straggler=_straggler(state),
    )


def preview(state: JobState, settings: JobSettings, now: float) -> tuple[Decision, ...]:
    """Return the decisions that would follow from these settings if steps take the predicted time.

    The first is the decision at the job's next boundary. Changes nothing.
    """
    mode = parse_mode(settings.scaling, now, currency=settings.currency)
    if mode is None:
        return ()
    is_same = settings.scaling == state.settings.scaling
    known = (state.scaling if is_same else begun(state)).autoscaler
    return ahead(known, mode, bounds(state, settings), measurement(state, now))


# ------------------------------------------------------------------ what is shown


def view(state: JobState) -> ScalingView | None:
    """Return the view of a job's scaling; None if it does not scale by itself."""
    mode = mode_of(state)
    if mode is None:
        return None
    book = state.scaling
    return ScalingView(
        mode=state.settings.scaling,
        workers_target=workers_asked(state),
        on_demand_target=min(book.on_demand_target, workers_target(state)),
        reason=book.reason or _before_measuring(mode, state.decided_at),
        predicted_finish_at=book.predicted_finish_at,
        predicted_cost_micros=book.predicted_cost_micros,
        changed_at=book.changed_at,
        deadline_at=mode.at if isinstance(mode, Deadline) else None,
    )


def _before_measuring(mode: Mode, now: float) -> str:
    words = "nothing is measured yet: as many workers as the bounds allow"
    if isinstance(mode, Deadline) and mode.at <= now:
        return f"the deadline, {time_text(mode.at)}, is past; {words}"
    return words


def _rate(seconds: float) -> float:
    return 1 / seconds if seconds else 0.0
