"""Operators' requests on a job. Each takes effect once, however often it is repeated."""

from __future__ import annotations

import msgspec

from elastane_master.decisions import autoscaling, cost, deadline_on_spot, life, pipelines, ring, sessions
from elastane_master.decisions.amounts import DEVICE_TYPES_MAX, DevicePrice
from elastane_master.decisions.decision_context import DecisionContext
from elastane_master.decisions.events import (
    CancelRequested,
    CheckpointRequested,
    DevicePriceRequested,
    DrainRequested,
    PricesRequested,
    Rejection,
    ResumeRequested,
    ScaleRequested,
    SuspendRequested,
)
from elastane_master.decisions.ring_state import Stage
from elastane_master.decisions.state import HALTED, OVER, JobState
from elastane_proto.amounts import money_text
from elastane_proto.history import events as history
from elastane_proto.job_settings import JobSettings
from elastane_scheduler.autoscaling.autoscaler import Decision

Request = (
    ScaleRequested
    | SuspendRequested
    | ResumeRequested
    | CancelRequested
    | DrainRequested
    | CheckpointRequested
    | PricesRequested
)
REQUESTS_MAX = 1000


def request(ctx: DecisionContext, event: Request) -> None:
    """Carry a request out, unless one with its id has already taken effect."""
    if event.request_id and event.request_id in ctx.state.requests:
        return
    match event:
        case ScaleRequested():
            _scale(ctx, event)
        case SuspendRequested():
            _suspend(ctx)
        case ResumeRequested():
            _resume(ctx)
        case CancelRequested():
            _cancel(ctx, event)
        case DrainRequested():
            _drain(ctx, event)
        case CheckpointRequested():
            _checkpoint(ctx, event)
        case PricesRequested():
            _set_prices(ctx, event)
    if event.request_id:
        ctx.touch()
        ctx.state.requests[event.request_id] = type(event).__name__
        if len(ctx.state.requests) > REQUESTS_MAX:
            del ctx.state.requests[next(iter(ctx.state.requests))]


def _scale(ctx: DecisionContext, event: ScaleRequested) -> None:
    state = ctx.state
    _require_not_over(state)
    pipelines.require_scalable(state, event)
    settings = _scaled(state, event, ctx.now)
    least, most = settings.workers_min, settings.workers_max
    ctx.touch()
    if event.scaling is None:
        ctx.note(history.RingScaled(least, most))
    else:
        ctx.note(history.ScalingSet(settings.scaling, least, most))
        state.scaling.budget_spent = False  # a new objective, or a new action when the budget is spent
        if settings.scaling != state.settings.scaling:  # else a change in progress continues
            if state.suspending and state.scaling.suspends:  # for a budget that is no longer the job's
                state.suspending = False
                ctx.note(history.SuspensionCalledOff())
            autoscaling.begin(state)
    state.settings = settings
    pipelines.memory_known(ctx)
    ring.form_if_due(ctx)


def _scaled(state: JobState, event: ScaleRequested, now: float) -> JobSettings:
    """Return the settings as asked for. Raises Rejection."""
    settings = autoscaling.asked(state.settings, event, now)
    if settings != state.settings:
        life.check_settings(settings)
    most = event.workers_max
    if not most and event.scaling is not None:  # only the scaling is set
        most = settings.workers_max or settings.ests
    # If only the maximum is given, the minimum is lowered to it, so that the job does not wait for more
    # workers than allowed.
    least = event.workers_min or min(max(settings.workers_min, 1), most)
    life.check_workers(settings.ests, least, most)
    scaled = msgspec.structs.replace(settings, workers_min=least, workers_max=most)
    pipelines.require_enough(state, scaled)
    return scaled


def scale_preview(state: JobState, event: ScaleRequested, now: float) -> tuple[Decision, ...]:
    """Return the scaling decisions that would follow a request. Raises Rejection."""
    _require_not_over(state)
    pipelines.require_scalable(state, event)
    settings = _scaled(state, event, now)
    if autoscaling.is_on_spot(settings):
        return deadline_on_spot.preview(state, settings, now)
    return autoscaling.preview(state, settings, now)


def _suspend(ctx: DecisionContext) -> None:
    state = ctx.state
    _require_not_over(ctx.state)
    if state.phase in HALTED or state.suspending:
        return
    if state.signature is not None and not state.settings.checkpoint_url:
        raise Rejection(
            "wrong_phase",
            "the job has no checkpoint_url: suspending it would lose its training",
            hint="create the job with a checkpoint_url, or cancel it",
        )
    ctx.touch()
    state.scaling.suspends = False
    if state.ring.stage is Stage.NONE:
        life.suspend(ctx, "suspended on request")
        ring.dismiss(ctx)
    else:
        state.suspending = True
        life.set_phase(
            ctx, "running", "will be suspended once a checkpoint is saved at the next step boundary"
        )


def _resume(ctx: DecisionContext) -> None:
    state = ctx.state
    if state.phase in HALTED or state.scaling.suspends:
        _require_budget(ctx)
    if state.suspending:
        ctx.touch()
        state.suspending = state.scaling.suspends = False
        ctx.note(history.SuspensionCalledOff())
        return
    if state.phase not in HALTED and state.phase != "failed":
        raise Rejection(
            "wrong_phase",
            f"the job is {state.phase}, not suspended",
            hint="only a job that is suspended, failed or exceeded its max wait can be resumed",
            phase=state.phase,
        )
    ctx.touch()
    state.failures, state.failed_step = 0, -1
    state.scaling.suspends = state.scaling.budget_spent = False
    ctx.note(history.JobResumed(state.phase, state.reason))
    life.set_phase(ctx, "waiting", "resumed; no worker is there yet")
    ring.form_if_due(ctx)


def _require_budget(ctx: DecisionContext) -> None:
    """Raise Rejection if the job would suspend itself again at once, because its budget is spent."""
    state = ctx.state
    budget = autoscaling.spent_budget(state, ctx.now)
    if budget is None or state.settings.over_budget != "suspend":
        return
    limit, spent = (
        money_text(micros, state.settings.currency)
        for micros in (budget.micros, cost.view(state, ctx.now).spent_micros)
    )
    raise Rejection(
        "wrong_phase",
        f"the budget of {limit} is spent: the job has cost {spent}",
        hint="first: elastane scale JOB --auto budget=AMOUNT, with a higher amount or --over-budget cheapest",
        phase=state.phase,
    )


def _cancel(ctx: DecisionContext, event: CancelRequested) -> None:
    if ctx.state.phase == "cancelled":
        return
    _require_not_over(ctx.state)
    life.end(ctx, "cancelled", event.reason or "cancelled by an operator")


def _drain(ctx: DecisionContext, event: DrainRequested) -> None:
    record = ctx.state.workers.get(event.worker)
    if record is None:
        raise Rejection(
            "not_found",
            f"the job has no worker {event.worker!r}",
            hint="elastane status lists the workers",
            worker=event.worker,
        )
    if not record.draining:
        # The agent of a worker on another host asks on its behalf, with the reason.
        by = "agent" if event.reason else "operator"
        sessions.drain(ctx, record, event.reason or "asked for by an operator", by=by)


def _checkpoint(ctx: DecisionContext, event: CheckpointRequested) -> None:
    state = ctx.state
    if not state.settings.checkpoint_url:
        raise Rejection(
            "invalid_argument",
            "the job has no checkpoint_url",
            hint="create the job with one; it cannot be added later",
        )
    _require_not_over(ctx.state)
    if state.phase in HALTED or state.all_committed:
        what = "has no workers" if state.phase in HALTED else "has done its last step"
        raise Rejection("wrong_phase", f"the job {what}: there is no step boundary to save at")
    ctx.touch()
    state.checkpoints.wanted = (*state.checkpoints.wanted, event.request_id)


def _set_prices(ctx: DecisionContext, event: PricesRequested) -> None:
    state = ctx.state
    asked: dict[str, object] = {}
    for name in ("spot_price_micros", "on_demand_price_micros"):
        if (price := getattr(event, name)) is not None:
            asked[name] = price
    expires_at = event.expires_at if asked else state.cost.expires_at
    if event.currency:
        asked["currency"] = event.currency
    changed = msgspec.structs.replace(state.settings, **asked)
    life.check_prices(changed)
    devices = _device_prices(state, event.devices)
    if (changed, devices, expires_at) == (state.settings, state.cost.device_prices, state.cost.expires_at):
        return
    before = cost.view(state, ctx.now)
    if changed.currency != before.currency and (before.spent_micros or before.on_demand_micros):
        raise Rejection(
            "wrong_phase",
            f"{money_text(before.spent_micros, before.currency)} have been charged already:"
            f" they cannot become {changed.currency}",
            hint=f"give the prices in {before.currency}",
            currency=before.currency,
        )
    told_before = _prices(state)
    cost.charge(state, ctx.now)
    ctx.touch()
    state.settings, state.cost.device_prices, state.cost.expires_at = changed, devices, expires_at
    if (told := _prices(state)) != told_before:  # unchanged prices with a later expiry are not an event
        ctx.note(history.PricesChanged(told, told_before, cost.spent(state, ctx.now)))


def _device_prices(state: JobState, asked: tuple[DevicePriceRequested, ...]) -> dict[str, DevicePrice]:
    """Return the prices by device type after a request. Raises Rejection."""
    prices = dict(state.cost.device_prices)
    if len({price.device_type for price in asked}) < len(asked):
        raise Rejection("invalid_argument", "a device type has prices twice", field="devices")
    for price in asked:
        if not price.device_type:
            raise Rejection(
                "invalid_argument",
                "a price names no device type",
                hint="give the prices of all types as spot_price_micros and on_demand_price_micros",
                field="devices",
            )
        life.check_price(f"devices[{price.device_type}].spot_price_micros", price.spot_price_micros)
        life.check_price(f"devices[{price.device_type}].on_demand_price_micros", price.on_demand_price_micros)
        if price.spot_price_micros is None and price.on_demand_price_micros is None:
            continue
        old = prices.get(price.device_type, DevicePrice())
        prices[price.device_type] = DevicePrice(
            old.spot_micros if price.spot_price_micros is None else price.spot_price_micros,
            old.on_demand_micros if price.on_demand_price_micros is None else price.on_demand_price_micros,
            price.expires_at,
        )
    if len(prices) > DEVICE_TYPES_MAX:
        raise Rejection(
            "invalid_argument",
            f"prices of {len(prices)} device types",
            hint=f"at most {DEVICE_TYPES_MAX} may have prices of their own",
            field="devices",
        )
    return dict(sorted(prices.items()))


def _prices(state: JobState) -> history.Prices:
    settings = state.settings
    return history.Prices(
        settings.spot_price_micros,
        settings.on_demand_price_micros,
        settings.currency,
        tuple(
            history.DevicePrices(device_type, price.spot_micros, price.on_demand_micros)
            for device_type, price in state.cost.device_prices.items()
        ),
    )


def _require_not_over(state: JobState) -> None:
    if state.phase in OVER:
        raise Rejection("wrong_phase", f"the job is over ({state.phase}): {state.reason}", phase=state.phase)
