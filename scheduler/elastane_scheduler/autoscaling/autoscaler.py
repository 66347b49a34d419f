"""Decides when a job tries another number of workers, moves to it, and moves back. Pure.

    measure    the present rung, then one other: the one that the optimistic model favours, else a neighbour
    scale      fit the model; go to the best rung for the mode (objectives.py) if that is worth a change
    verify     over 20 steps of the new rung; if it is worse:
    roll_back  to the rung before; the other is barred for ten minutes, then twenty

Nothing is measured while a worker is a straggler, and steps that become longer while a rung is verified do
not count against it, because the rung is not the cause.

Measured rungs are used as measured; only rungs that were never tried are predicted. Everything is measured
again when the type of device changes, or when the present rung's step time differs by 20 % from its record.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

import msgspec

from elastane_scheduler.autoscaling.modes import (
    MICROS,
    Budget,
    Deadline,
    Efficiency,
    Mode,
    time_text,
)
from elastane_scheduler.autoscaling.objectives import (
    Best,
    Bounds,
    Situation,
    best,
    efficiency,
    gain,
    meets,
    outlook,
    rungs_within,
    value,
)
from elastane_scheduler.autoscaling.speed_model import Sample, SpeedModel, possible

MEASURE_STEPS = 3
"""Steps of a rung before it counts as measured; more, up to VERIFY_STEPS, as long as a change would take."""
VERIFY_STEPS = 20
"""Steps of a rung that was jumped to, before it is kept or left."""
LOOK_STEPS = 10
"""Steps between two looks."""
PAUSE_SECONDS = 30.0
CHANGES_MAX = 8
"""Voluntary changes within an hour; going back is none."""
HOUR_SECONDS = 3600.0
BAR_SECONDS, BAR_SECONDS_MAX = 600.0, 86_400.0
CHANGE_FACTOR = 2.0
"""Factor by which the cost of a change is weighted (as in balance.py)."""
GAIN_FRACTION_MIN, GUESS_FRACTION_MIN = 0.02, 0.05
"""A change must gain this part of what is still to be lost: to a rung that was measured, or was not."""
LEAST_FRACTION = 0.01
"""No step is predicted to take less than this part of one that was measured."""
NOISE_FRACTION = 0.02
"""Rungs that differ by less are equal."""
THETA_FRACTION = 0.1
"""By so much an efficiency must be beyond theta before the job changes."""
DRIFT_FRACTION = 0.2
DRIFT_LOOKS = 2
"""Looks in a row at which the present rung differs before it is measured anew."""
REACH_SECONDS = 300.0
"""Time in which a target should be reached, before the job does with fewer workers for a while; and for
which a straggler keeps a rung from being measured."""
EXPLORE_FACTOR = 10.0
"""Measuring a second rung must cost less than the time left by this factor."""

_FEW_STEPS = "too few steps are left to try another number"

Models = tuple[SpeedModel, ...]
Action = Literal["keep", "scale", "verify", "roll_back", "none"]


class Rung(msgspec.Struct, frozen=True, array_like=True):
    """Measurements with a number of workers. at: time of the measurement."""

    step_seconds: float
    steps: int
    at: float


class Bar(msgspec.Struct, frozen=True, array_like=True):
    """A rung that must not be tried before `until`. seconds: how long it is barred."""

    until: float
    seconds: float


class AutoscalerState(msgspec.Struct, frozen=True):
    """State of the autoscaler; stored by the master.

    now: latest time seen; a clock that steps back counts as standing still. target: workers asked for, 0:
    never decided. before: rung to go back to; 0: nothing is being verified. exploring: the target is only
    measured. changes: times of voluntary changes. asked_at: of the last change of the target. drifts: looks
    in a row at which the present rung differed. short_since: since when fewer workers train than asked for.
    straggler: the one that was seen last; disturbed_since: since when it has been one, None once that is how
    fast the job is.
    """

    now: float = 0.0
    target: int = 0
    before: int = 0
    exploring: bool = False
    device_type: str = ""
    rungs: dict[int, Rung] = {}
    barred: dict[int, Bar] = {}
    changes: tuple[float, ...] = ()
    asked_at: float = 0.0
    drifts: int = 0
    short_since: float | None = None
    disturbed_since: float | None = None
    straggler: str = ""


class Measurement(msgspec.Struct, frozen=True):
    """Measurements of a job at a step boundary.

    now: seconds since the epoch. ring_workers: that train. steps: of this ring that `step_seconds`, a median,
    rests on; settling_steps: before these. growth: factor by which the newer ones are longer than the older
    ones (step_times.py). steps_left: None: unknown. device_type: that most workers are of. change_seconds:
    stall of a change. worker_hour_micros: price of a worker for an hour; 0: unknown. straggler: a worker of
    the ring that is one; empty: none.
    """

    now: float
    elapsed_seconds: float
    ring_workers: int
    step_seconds: float
    steps: int
    steps_left: int | None
    device_type: str = ""
    change_seconds: float = 1.0
    worker_hour_micros: float = 0.0
    spent_micros: int = 0
    settling_steps: int = 0
    growth: float = 1.0
    straggler: str = ""


class Decision(msgspec.Struct, frozen=True):
    """Decision of the autoscaler. target: workers to ask for.

    action: "scale": to another target; "verify", "keep": as it is; "roll_back"; "none": nothing can be
    decided. seconds_before, seconds_after: of a step, before a change and predicted (or, going back,
    measured) after it; 0: unknown. barred_seconds: of the rung that was left. met: False if no rung meets the
    budget or the deadline. look_steps: when to decide again; 0: after LOOK_STEPS.
    """

    state: AutoscalerState
    target: int
    action: Action
    reason: str
    predicted_finish_at: float | None = None
    predicted_cost_micros: int | None = None
    seconds_before: float = 0.0
    seconds_after: float = 0.0
    barred_seconds: float = 0.0
    met: bool = True
    look_steps: int = 0


def decide(state: AutoscalerState, mode: Mode, bounds: Bounds, seen: Measurement) -> Decision:
    """Return the decision for now; called every few steps, never while a change is in progress."""
    decision = _Look(state, mode, bounds, seen).decide()
    if isinstance(mode, Budget) and seen.ring_workers and not seen.worker_hour_micros:
        reason = f"{decision.reason}; a worker has no price: the budget cannot be kept"
        return msgspec.structs.replace(decision, reason=reason)
    return decision


def ahead(
    state: AutoscalerState, mode: Mode, bounds: Bounds, seen: Measurement, looks_max: int = 60
) -> tuple[Decision, ...]:
    """Return the decisions from a measurement on, if every step takes the predicted or measured time.

    The first is what `decide` says; further ones only where the target changes, the last one as it stays.
    """
    made: list[Decision] = []
    for _ in range(looks_max):
        decision = decide(state, mode, bounds, seen)
        state = decision.state
        changes = decision.target != seen.ring_workers
        if changes or not made:
            made.append(decision)
        if not changes and (len(made) > 1 or decision.action == "none") and state.before == 0:
            if decision != made[-1]:
                made.append(decision)
            break
        if not state.rungs:
            break
        steps = VERIFY_STEPS if changes else LOOK_STEPS
        seconds = _predicted(state, bounds, decision.target)
        spent = seconds * steps + (seen.change_seconds if changes else 0.0)
        seen = msgspec.structs.replace(
            seen,
            now=seen.now + spent,
            elapsed_seconds=seen.elapsed_seconds + spent,
            ring_workers=decision.target,
            step_seconds=seconds,
            steps=steps if changes else seen.steps + steps,
            steps_left=None if seen.steps_left is None else max(0, seen.steps_left - steps),
        )
    return tuple(made)


def _predicted(state: AutoscalerState, bounds: Bounds, workers: int) -> float:
    if workers in state.rungs:
        return state.rungs[workers].step_seconds
    least = LEAST_FRACTION * min(one.step_seconds for one in state.rungs.values())
    samples = [Sample(rung, one.step_seconds, one.steps) for rung, one in state.rungs.items()]
    return max(least, possible(bounds.ests, samples)[0].step_seconds(workers))


class _Look:
    """One decision."""

    def __init__(self, state: AutoscalerState, mode: Mode, bounds: Bounds, seen: Measurement) -> None:
        self.now = max(state.now, seen.now)
        self.state = msgspec.structs.replace(
            state,
            now=self.now,
            changes=tuple(at for at in state.changes if at > self.now - HOUR_SECONDS),
        )
        self.mode, self.bounds, self.seen = mode, bounds, seen
        self.rungs = rungs_within(bounds)
        self.target = min(max(state.target or bounds.workers_max, bounds.workers_min), bounds.workers_max)
        self.situation = Situation(
            self.now, seen.elapsed_seconds, seen.steps_left, seen.worker_hour_micros, seen.spent_micros
        )

    def decide(self) -> Decision:
        seen = self.seen
        if not (math.isfinite(seen.step_seconds) and seen.step_seconds > 0 and seen.ring_workers > 0):
            return self._same("none", "nothing is measured yet")
        before = self.state.before
        if before == self.target or not self.bounds.workers_min <= before <= self.bounds.workers_max:
            self._set(before=0)  # other bounds were set meanwhile
        self._end_bars()
        if seen.device_type and seen.device_type != self.state.device_type:
            if self.state.device_type:
                self._forget()
            self._set(device_type=seen.device_type)
        if len(self.rungs) == 1:
            only = self.rungs[0]
            met = True
            if seen.steps >= MEASURE_STEPS and seen.ring_workers == only:
                self._measured()
                met = meets(self.mode, outlook(only, seen.step_seconds, self.situation), self.situation)
            return self._to(only, "keep", f"{only} is the only number within the bounds that pays", met=met)
        if seen.steps_left is None and not isinstance(self.mode, Efficiency):
            name = type(self.mode).__name__.lower()
            why = f"the number of steps is unknown: {name} cannot be decided, only efficiency"
            return self._same("none", why)
        if words := self._disturbed():
            return self._same("keep", words)
        if (missing := self._steps_missing()) > 0:
            words = f"{seen.steps} of {seen.steps + missing} steps are measured with {seen.ring_workers}"
            return msgspec.structs.replace(self._same("keep", words), look_steps=min(missing, LOOK_STEPS))
        if seen.ring_workers != self.target:
            return self._short()
        self._set(short_since=None)
        self._note_drift()
        self._measured()
        self._doubt()
        if self.state.before:
            return self._verify()
        return self._choose()

    def _steps_missing(self) -> int:
        """Return how many more steps the present rung needs to count as measured, or to be judged."""
        seen = self.seen
        if self.state.before:
            return VERIFY_STEPS - seen.steps - seen.settling_steps
        # Steps that are short settle in more of them, and more of them cost little beside a change.
        as_long = min(seen.change_seconds / seen.step_seconds, VERIFY_STEPS)
        needed = max(MEASURE_STEPS, math.ceil(as_long))
        if seen.steps < VERIFY_STEPS and seen.growth < 1 - DRIFT_FRACTION:  # they still become shorter
            needed = max(needed, min(seen.steps + MEASURE_STEPS, VERIFY_STEPS))
        return needed - seen.steps

    def _disturbed(self) -> str:
        """Return the reason for which a straggler keeps the job from being measured; "": it is measured.

        One that stays is how fast the job is: what was being verified is then kept without a verdict, and
        what was measured without it is no measure any more.
        """
        name = self.seen.straggler
        if not name:
            self._set(straggler="", disturbed_since=None)
        elif name != self.state.straggler:
            self._set(straggler=name, disturbed_since=self.now)
        since = self.state.disturbed_since
        if since is None:
            return ""
        self._set(drifts=0)
        if (left := since + REACH_SECONDS - self.now) > 0:
            return f"{name} is a straggler: nothing is measured for {left:.0f} s, unless that ends"
        self._set(rungs={}, before=0, exploring=False, disturbed_since=None)
        return ""

    # ------------------------------------------------------------------ what is known

    def _set(self, **changes: object) -> None:
        self.state = msgspec.structs.replace(self.state, **changes)

    def _forget(self) -> None:
        self._set(rungs={}, barred={}, before=0, exploring=False, drifts=0)

    def _end_bars(self) -> None:
        """Discard the measurement of a rung whose bar has ended, if it was unusual."""
        for workers, bar in self.state.barred.items():
            known = self.state.rungs.get(workers)
            if known is None or bar.until > self.now or known.at > bar.until - bar.seconds:
                continue
            others = {rung: one for rung, one in self.state.rungs.items() if rung != workers}
            models = self._models(others)
            usual = min((one.step_seconds(workers) for one in models), default=0.0)
            if known.step_seconds > (1 + DRIFT_FRACTION) * usual:
                self._set(rungs=others)

    def _note_drift(self) -> None:
        """Discard all measurements if the present rung's step time has changed."""
        known = self.state.rungs.get(self.seen.ring_workers)
        if known is None or self.state.before:
            self._set(drifts=0)
            return
        differs = abs(self.seen.step_seconds - known.step_seconds) > DRIFT_FRACTION * known.step_seconds
        drifts = self.state.drifts + 1 if differs else 0
        if drifts > DRIFT_LOOKS:
            self._forget()
        else:
            self._set(drifts=drifts)

    def _measured(self) -> None:
        seen, rungs = self.seen, dict(self.state.rungs)
        if not self.state.drifts:
            rungs[seen.ring_workers] = Rung(seen.step_seconds, seen.steps, self.now)
        self._set(rungs=rungs)

    def _doubt(self) -> None:
        """Discard the previous rung if its median was measured while its ring still settled."""
        before, rungs = self.state.before, self.state.rungs
        if before in rungs and rungs[before].steps < 2 * self.seen.settling_steps:
            self._set(rungs={workers: one for workers, one in rungs.items() if workers != before})

    def _models(self, rungs: Mapping[int, Rung] | None = None) -> Models:
        """Return the models of what was measured, but for rungs that were left because they were slow."""
        known, barred = self.state.rungs if rungs is None else rungs, self.state.barred
        usual = {
            rung: one for rung, one in known.items() if rung not in barred or barred[rung].until <= self.now
        }
        samples = [Sample(workers, one.step_seconds, one.steps) for workers, one in (usual or known).items()]
        return possible(self.bounds.ests, samples)

    def _step_seconds(self, models: Models, workers: int) -> float:
        """Return the measured time, else the least possible one: an untried rung may be better."""
        known = self.state.rungs
        if workers in known:
            return known[workers].step_seconds
        least = LEAST_FRACTION * min(one.step_seconds for one in known.values())
        return max(least, min(one.step_seconds(workers) for one in models))

    def _allowed(self) -> list[int]:
        """Return the rungs that may be chosen; the present number, if all are barred."""
        barred = self.state.barred
        present = self.seen.ring_workers
        free = [
            rung
            for rung in self.rungs
            if rung == present or rung not in barred or barred[rung].until <= self.now
        ]
        return free or [present]

    # ------------------------------------------------------------------ decisions

    def _short(self) -> Decision:
        """Decide while the ring has not the requested size: workers are missing, or have yet to leave."""
        seen, state = self.seen, self.state
        self._set(drifts=0)  # of a ring of another size
        self._measured()
        if not state.target:  # nobody has asked for a number yet: what is there is measured
            if not self._may_explore():
                return self._same("keep", f"{_FEW_STEPS}: as many as may train")
            self.target = seen.ring_workers
            return self._choose()
        words = f"{seen.ring_workers} of {self.target} workers train"
        since = state.short_since if state.short_since is not None else self.now
        self._set(short_since=since)
        if seen.ring_workers > self.target or self.now < since + REACH_SECONDS:
            return self._to(self.target, "keep", words)
        barred = self._bar(self.target)
        self._set(before=0, exploring=False, short_since=None)
        self.target = seen.ring_workers
        return self._choose(
            f"{words} after {self.now - since:.0f} s: no more are requested for {barred:.0f} s"
        )

    def _verify(self) -> Decision:
        """Decide once the ring has its new size and has run enough steps."""
        state, seen = self.state, self.seen
        before, exploring = state.before, state.exploring
        models = self._models()
        old, new = self._step_seconds(models, before), seen.step_seconds
        is_worse = self._is_worse(seen.ring_workers, new, before, old)
        if is_worse and seen.growth > 1 + DRIFT_FRACTION and seen.steps < 2 * VERIFY_STEPS:
            return self._to(
                self.target, "keep", "steps became longer while it was verified: it is watched for longer"
            )
        self._set(before=0, exploring=False)
        if not is_worse:
            # It was reached and is good: if it is left again, it is barred as for the first time.
            barred = {rung: bar for rung, bar in state.barred.items() if rung != seen.ring_workers}
            self._set(barred=barred)
            return self._choose("verified")
        if exploring and not self._is_odd(before, old):
            chosen = self._best(models)
            if chosen.workers not in (before, seen.ring_workers):
                return self._choose()
        bar = self._bar(seen.ring_workers)
        self._set(target=before, asked_at=self.now)
        why = f"a step takes {_text(new)} with {seen.ring_workers}, and {_text(old)} with {before}"
        return self._to(before, "roll_back", why, seconds=(old, new), barred=bar)

    def _is_odd(self, before: int, old: float) -> bool:
        """True if steps are longer than any exchange explains, or than with fewer workers."""
        workers, new = self.seen.ring_workers, self.seen.step_seconds
        if workers > before:
            return new > (1 + NOISE_FRACTION) * old
        ests = self.bounds.ests
        return new > (1 + DRIFT_FRACTION) * old * -(-ests // workers) / -(-ests // before)

    def _is_worse(self, workers: int, seconds: float, before: int, seconds_before: float) -> bool:
        """True if the previous rung is better by the mode, by more than noise."""
        if isinstance(self.mode, Efficiency):
            if workers > before:
                return (
                    efficiency(before, seconds_before, workers, seconds * (1 - NOISE_FRACTION))
                    <= self.mode.theta
                )
            return (
                efficiency(workers, seconds * (1 + NOISE_FRACTION), before, seconds_before) > self.mode.theta
            )
        here = outlook(workers, seconds * (1 - NOISE_FRACTION), self.situation)
        there = outlook(before, seconds_before, self.situation, self.seen.change_seconds)
        return value(self.mode, there, self.situation) > value(self.mode, here, self.situation)

    def _best(self, models: Models, mode: Mode | None = None) -> Best:
        delay = CHANGE_FACTOR * self.seen.change_seconds
        return best(
            mode or self.mode,
            self._allowed(),
            lambda workers: self._step_seconds(models, workers),
            self.situation,
            present=self.seen.ring_workers,
            delay_seconds=delay,
        )

    def _choose(self, how: str = "") -> Decision:
        """Choose the rung to train with, or to measure."""
        seen, state = self.seen, self.state
        models = self._models()
        chosen = self._best(models)
        is_known = len(state.rungs) > 1
        wanted = chosen.workers
        why = chosen.why
        if not is_known and wanted == seen.ring_workers:
            wanted, why = self._second(), "a second number of workers is measured"
        if wanted == seen.ring_workers:
            return self._to(wanted, "keep", f"{why}{_in(how)}", met=chosen.met)
        if not is_known and not self._may_explore():
            return self._to(self.target, "keep", _FEW_STEPS)
        if is_known and not self._pays(models, wanted):
            return self._to(
                seen.ring_workers,
                "keep",
                f"no other number is worth the cost of a change{_in(how)}",
                met=chosen.met,
            )
        if (wait := self._pause()) > 0:
            return self._to(
                self.target,
                "keep",
                f"{wanted} would be better; the next change is possible in {wait:.0f} s",
                met=chosen.met,
            )
        return self._change(models, wanted, why, exploring=not is_known, met=chosen.met)

    def _change(self, models: Models, wanted: int, why: str, *, exploring: bool, met: bool) -> Decision:
        seen = self.seen
        seconds = self._step_seconds(models, wanted)
        self._set(
            target=wanted,
            before=seen.ring_workers,
            exploring=exploring,
            changes=(*self.state.changes, self.now),
            asked_at=self.now,
        )
        return self._to(wanted, "scale", why, seconds=(seen.step_seconds, seconds), met=met, models=models)

    def _second(self) -> int:
        """Return the rung to measure beside the present one: half as many workers, or the next more."""
        present = self.seen.ring_workers
        allowed = self._allowed()
        fewer = [rung for rung in allowed if rung < present]
        more = [rung for rung in allowed if rung > present]
        if fewer:
            return fewer[-1]
        return more[0] if more else present

    def _may_explore(self) -> bool:
        left = self.seen.steps_left
        if left is None:
            return True
        cost = 2 * self.seen.change_seconds + VERIFY_STEPS * self.seen.step_seconds
        return left * self.seen.step_seconds > EXPLORE_FACTOR * cost

    def _pays(self, models: Models, wanted: int) -> bool:
        """True if a change gains more than noise; its cost is already part of the choice."""
        seen, mode, situation = self.seen, self.mode, self.situation
        if isinstance(mode, Efficiency):
            grows = wanted > seen.ring_workers
            strict = Efficiency(mode.theta * (1 + (THETA_FRACTION if grows else -THETA_FRACTION)))
            again = self._best(models, strict).workers
            return again > seen.ring_workers if grows else again < seen.ring_workers
        here = outlook(seen.ring_workers, seen.step_seconds, situation)
        there = outlook(wanted, self._step_seconds(models, wanted), situation)
        least = GAIN_FRACTION_MIN if wanted in self.state.rungs else GUESS_FRACTION_MIN
        return gain(mode, here, there, situation) > least

    def _pause(self) -> float:
        """Return the time for which no voluntary change may be made yet."""
        changes = self.state.changes
        if len(changes) >= CHANGES_MAX:
            return changes[-CHANGES_MAX] + HOUR_SECONDS - self.now
        return changes[-1] + PAUSE_SECONDS - self.now if changes else 0.0

    def _bar(self, workers: int) -> float:
        known = self.state.barred.get(workers)
        seconds = min(2 * known.seconds, BAR_SECONDS_MAX) if known is not None else BAR_SECONDS
        self._set(barred={**self.state.barred, workers: Bar(self.now + seconds, seconds)})
        return seconds

    def _same(self, action: Action, reason: str) -> Decision:
        """Ask for as many workers as before; a job without a decision stays without one."""
        return Decision(self.state, self.target, action, reason)

    def _to(
        self,
        target: int,
        action: Action,
        reason: str,
        *,
        seconds: tuple[float, float] = (0.0, 0.0),
        barred: float = 0.0,
        met: bool = True,
        models: Models = (),
    ) -> Decision:
        if target != self.state.target:
            self._set(target=target)
        if not models and self.state.rungs:
            models = self._models()
        finish = cost = None
        if models:
            ahead = outlook(target, self._step_seconds(models, target), self.situation)
            if ahead.left_seconds is not None:
                finish = self.now + ahead.left_seconds
            if ahead.cost_micros is not None and self.seen.worker_hour_micros:
                cost = self.seen.spent_micros + round(ahead.cost_micros)
        if not met:
            reason = f"{reason}{_missed(self.mode, finish, cost)}"
        return Decision(self.state, target, action, reason, finish, cost, *seconds, barred, met)


def _missed(mode: Mode, finish: float | None, cost: int | None) -> str:
    match mode:
        case Deadline(at) if finish is not None:
            return f"; {time_text(at)} is missed, the earliest is {time_text(finish)}"
        case Budget(micros) if cost is not None:
            return f"; it will have cost {cost / MICROS:.2f} of {micros / MICROS:.2f}"
    return ""


def _in(how: str) -> str:
    return f" ({how})" if how else ""


def _text(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1000 * seconds:.1f} ms"
