"""The best number of workers for a mode, with given step times. Pure.

    utility      most U(T(k)) - C(k), T(k) = elapsed + b t(k), C(k) = b t(k) k price       (Or et al., eq. 3)
    efficiency   the last rung with ((R - R_old) / (k - k_old)) / (R_old / k_old) > theta   (Or et al., eq. 1)
    budget       least T(k) with spent + C(k) <= budget; else least C(k)
    deadline     least C(k) with T(k) in time; else least T(k)

b: steps left; R: 1 / t. Rungs are compared with the last one that paid, so that the present number of workers
does not decide the result. Equal rungs: the one with fewer workers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from elastane_scheduler.autoscaling.modes import MICROS, Budget, Deadline, Efficiency, Mode, Utility
from elastane_scheduler.plan import ladder

HOUR_SECONDS = 3600.0
#: Part of the time or cost left that a budget or a deadline keeps free, to take a rung, and to keep it.
TAKE_FRACTION, KEEP_FRACTION = 0.05, 0.01


class Bounds(msgspec.Struct, frozen=True):
    """ests: N. workers_min, workers_max: of the job; 1 <= workers_min <= workers_max <= N."""

    ests: int
    workers_min: int
    workers_max: int


class Situation(msgspec.Struct, frozen=True):
    """Inputs of the objective besides the speed.

    now: seconds since the epoch. elapsed_seconds: since the job was created. steps_left: None: unknown.
    worker_hour_micros: price of a worker for an hour, 0: none is known. spent_micros: by the job so far.
    """

    now: float
    elapsed_seconds: float
    steps_left: int | None
    worker_hour_micros: float = 0.0
    spent_micros: int = 0


class Outlook(msgspec.Struct, frozen=True):
    """Expected outcome with a number of workers.

    left_seconds: until the last step is done; None: unknown. cost_micros: of these; None: unknown.
    """

    workers: int
    step_seconds: float
    left_seconds: float | None
    cost_micros: float | None


class Best(msgspec.Struct, frozen=True):
    """The best rung. met: False if no rung fits the budget or the deadline. why: in words."""

    workers: int
    why: str
    met: bool = True


def rungs_within(bounds: Bounds) -> tuple[int, ...]:
    """Return the numbers of workers that may be chosen, ascending: the worthwhile ones, and the minimum."""
    found = {rung for rung in ladder(bounds.ests) if bounds.workers_min <= rung <= bounds.workers_max}
    return tuple(sorted(found | {bounds.workers_min}))


def outlook(workers: int, step_seconds: float, situation: Situation, delay_seconds: float = 0.0) -> Outlook:
    """Return the expected outcome with a number of workers. delay_seconds: before it trains, at its cost."""
    if situation.steps_left is None:
        return Outlook(workers, step_seconds, None, None)
    left = situation.steps_left * step_seconds + delay_seconds
    cost = left * workers * situation.worker_hour_micros / HOUR_SECONDS
    return Outlook(workers, step_seconds, left, cost)


def value(mode: Mode, of: Outlook, situation: Situation, reserve: float = 0.0) -> tuple[float, ...]:
    """Return a key that orders outlooks by a mode, larger is better; efficiency compares neighbours instead.

    reserve: part of the time and cost left that must stay free. The steps left must be known.
    """
    assert of.left_seconds is not None and of.cost_micros is not None
    left, cost = of.left_seconds, of.cost_micros
    # Without a price, worker-seconds stand for money. The last digits of a fit must not order equal rungs.
    price = float(f"{cost if situation.worker_hour_micros else left * of.workers:.9g}")
    match mode:
        case Utility():
            return (mode.at(situation.elapsed_seconds + left) - cost / MICROS, -of.workers)
        case Budget(micros):
            if situation.spent_micros + cost * (1 + reserve) <= micros:
                return (1, -left, -of.workers)
            return (0, -price, -of.workers)
        case Deadline(at):
            if situation.now + left * (1 + reserve) <= at:
                return (1, -price, -of.workers)
            return (0, -left, of.workers)
    raise AssertionError(mode)


def gain(mode: Mode, here: Outlook, there: Outlook, situation: Situation) -> float:
    """Return the gain of a change, as a fraction of the time, cost or utility at stake without it.

    The steps left must be known in both outlooks.
    """
    assert here.left_seconds is not None and there.left_seconds is not None
    assert here.cost_micros is not None and there.cost_micros is not None
    time_gain = 1 - there.left_seconds / max(here.left_seconds, 1e-9)
    if situation.worker_hour_micros:
        money_gain = 1 - there.cost_micros / max(here.cost_micros, 1e-9)
    else:
        money_gain = 1 - there.left_seconds * there.workers / max(here.left_seconds * here.workers, 1e-9)
    match mode:
        case Utility():
            begun = mode.at(situation.elapsed_seconds)
            worth_here = mode.at(situation.elapsed_seconds + here.left_seconds)
            worth_there = mode.at(situation.elapsed_seconds + there.left_seconds)
            gained = worth_there - worth_here + (here.cost_micros - there.cost_micros) / MICROS
            lost = begun - worth_here + here.cost_micros / MICROS
            return gained / lost if lost > 0 else 0.0
        case Budget(micros):
            if situation.spent_micros + here.cost_micros <= micros:
                return time_gain
            return 1.0 if situation.spent_micros + there.cost_micros <= micros else money_gain
        case Deadline(at):
            if situation.now + here.left_seconds <= at:
                return money_gain
            return 1.0 if situation.now + there.left_seconds <= at else time_gain
    raise AssertionError(mode)


def meets(mode: Mode, of: Outlook, situation: Situation) -> bool:
    """Return True unless the job is known to miss its deadline or its budget."""
    if isinstance(mode, Deadline):
        return of.left_seconds is None or situation.now + of.left_seconds <= mode.at
    if isinstance(mode, Budget):
        return of.cost_micros is None or situation.spent_micros + of.cost_micros <= mode.micros
    return True


def best(
    mode: Mode,
    rungs: Sequence[int],
    step_seconds: Callable[[int], float],
    situation: Situation,
    *,
    present: int = 0,
    delay_seconds: float = 0.0,
) -> Best:
    """Return the best of the rungs, ascending, by a mode.

    present: the rung that trains now; delay_seconds: what reaching any other costs.
    """
    if isinstance(mode, Efficiency):
        return _efficient(mode, rungs, step_seconds)
    valued = []
    for rung in rungs:
        is_present = rung == present
        of = outlook(rung, step_seconds(rung), situation, 0.0 if is_present else delay_seconds)
        valued.append((value(mode, of, situation, KEEP_FRACTION if is_present else TAKE_FRACTION), rung))
    first, chosen = max(valued)
    match mode:
        case Utility():
            return Best(chosen, "the highest utility minus cost")
        case Budget(micros):
            if situation.spent_micros >= micros:
                return Best(chosen, "the budget is spent: the cheapest end", met=False)
            within, beyond = "the earliest end within the budget", "no end is within the budget: the cheapest"
        case _:
            within, beyond = "the cheapest end in time", "no end is in time: the earliest"
    return Best(chosen, within if first[0] == 1 else beyond, met=first[0] == 1)


def _efficient(mode: Efficiency, rungs: Sequence[int], step_seconds: Callable[[int], float]) -> Best:
    chosen, gained = rungs[0], 0.0
    for rung in rungs[1:]:
        gain = efficiency(chosen, step_seconds(chosen), rung, step_seconds(rung))
        if gain > mode.theta:
            chosen, gained = rung, gain
    why = (
        f"the last further workers gain {gained:.2f} of the rate per worker"
        if gained
        else "no rung gains more"
    )
    return Best(chosen, f"{why}, theta is {mode.theta:g}")


def efficiency(workers_old: int, seconds_old: float, workers: int, seconds: float) -> float:
    """Return s = ((R - R_old) / (k - k_old)) / (R_old / k_old) for a change of the number of workers."""
    return (seconds_old / seconds - 1) / (workers - workers_old) * workers_old
