"""Simulation of a job with a deadline on a trace of spot availability: its cost, and its end. Pure.

The policy decides at each tick of the trace. Machines that are asked for are paid for at once and train after
a cold start; the others go on meanwhile, since workers come and go without a restart. When the trace has
fewer nodes than the job has on spot, those that trained longest go first. Surplus machines are given back as
soon as the workers that the policy wants have joined. A step is as fast as the rung that the present workers
reach.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from elastane_scheduler.amounts import check_amount
from elastane_scheduler.autoscaling.spot_deadline import (
    SpotDecision,
    SpotMemory,
    SpotPolicy,
    SpotRung,
    SpotView,
)
from elastane_scheduler.errors import InvalidSettings
from elastane_scheduler.plan import ladder
from elastane_scheduler.simulation.availability import Availability

HOUR_SECONDS = 3600.0
_SAME_TIME = 1e-6


@dataclass(frozen=True)
class SpotJob:
    """A job, and its prices.

    ests: logical workers. work_hours: that it takes with `workers` workers, which is also what its cost on
    demand is counted for. spot_price: of a machine, in units of the price on demand. on_demand_max: machines
    on demand at most; None: as many as there are ESTs. exchange_seconds: added to a step of two workers or
    more, where one EST's part takes a second.
    """

    ests: int = 16
    workers: int = 8
    work_hours: float = 24.0
    spot_price: float = 0.33
    cold_start_seconds: float = 360.0
    on_demand_max: int | None = None
    exchange_seconds: float = 0.0

    def __post_init__(self) -> None:
        """Raise InvalidSettings for amounts out of range."""
        if self.ests < 1 or not 1 <= self.workers <= self.ests or (self.on_demand_max or 0) < 0:
            raise InvalidSettings(
                f"{self.workers} workers for {self.ests} ESTs, {self.on_demand_max} on demand",
                hint="Give at least one worker, at most as many as ESTs, and 0 or more on demand.",
            )
        check_amount("the hours of work", self.work_hours, positive=True)
        check_amount("the price of spot", self.spot_price)
        check_amount("a cold start", self.cold_start_seconds)
        check_amount("the exchange", self.exchange_seconds)

    @property
    def rungs(self) -> tuple[SpotRung, ...]:
        """The numbers of workers that pay; one EST's part of a step takes a second."""
        return tuple(
            SpotRung(workers, -(-self.ests // workers) + (self.exchange_seconds if workers > 1 else 0.0))
            for workers in ladder(self.ests)
        )

    @property
    def steps(self) -> float:
        """Steps of the whole work."""
        return self.work_hours * HOUR_SECONDS / self.step_seconds(self.workers)

    def step_seconds(self, workers: int) -> float:
        """Return the seconds of a step with so many workers; infinite for none."""
        return min((rung.step_seconds for rung in self.rungs if rung.workers <= workers), default=math.inf)


@dataclass(frozen=True)
class SpotOutcome:
    """Cost and end of one job.

    cost: over that of the same work with `workers` machines on demand. seconds: until the job is over; None:
    it was given up, far after the deadline. late_seconds: after the deadline; negative: before it.
    on_demand_hours, spot_hours: of machines. lost: spot workers that were taken away.
    """

    cost: float
    seconds: float | None
    late_seconds: float
    on_demand_hours: float
    spot_hours: float
    lost: int

    @property
    def late(self) -> bool:
        """True if the job ended after its deadline, or not at all."""
        return self.late_seconds > _SAME_TIME


@dataclass
class _Machines:
    """Times at which the machines of one class are ready, and the hours that they were had."""

    ready_at: list[float] = field(default_factory=list)
    hours: float = 0.0

    def ready(self, now: float) -> int:
        return sum(at <= now + _SAME_TIME for at in self.ready_at)

    def grow(self, count: int, ready_at: float) -> None:
        self.ready_at += [ready_at] * (count - len(self.ready_at))

    def take_away(self, left: int) -> int:
        """Remove the oldest until so many are left; return how many that were."""
        lost = max(0, len(self.ready_at) - left)
        del self.ready_at[:lost]
        return lost

    def give_back(self, count: int) -> None:
        del self.ready_at[max(0, count) :]


def replay(
    trace: Availability, start_tick: int, job: SpotJob, deadline_seconds: float, policy: SpotPolicy
) -> SpotOutcome:
    """Play one job that starts at a tick and should be over after `deadline_seconds`.

    Without machines on demand it may never end: it is given up after ten times the deadline and the work.
    Raises InvalidSettings.
    """
    check_amount("the deadline", deadline_seconds, positive=True)
    run = _Run(trace, start_tick, job, deadline_seconds, policy)
    give_up = 10 * (deadline_seconds + job.work_hours * HOUR_SECONDS * job.ests)
    while run.steps_left > 0 and run.now < give_up:
        run.tick()
    seconds = run.now if run.steps_left <= 0 else None
    money = run.on_demand.hours + job.spot_price * run.spot.hours
    late = math.inf if seconds is None else seconds - deadline_seconds
    cost = money / (job.workers * job.work_hours)
    return SpotOutcome(cost, seconds, late, run.on_demand.hours, run.spot.hours, run.lost)


class _Run:
    """One job on its way."""

    def __init__(
        self, trace: Availability, start: int, job: SpotJob, deadline: float, policy: SpotPolicy
    ) -> None:
        self._trace, self._job, self._deadline, self._policy = trace, job, deadline, policy
        self._rungs, self._place = job.rungs, start
        self._on_demand_max = job.ests if job.on_demand_max is None else job.on_demand_max
        self._step_seconds = {workers: job.step_seconds(workers) for workers in range(job.ests + 1)}
        self._memory = SpotMemory()
        self.now, self.steps_left, self.lost = 0.0, job.steps, 0
        self.spot, self.on_demand = _Machines(), _Machines()

    def tick(self) -> None:
        """Decide, and train until the next tick or the end."""
        offered = self._trace.at_tick(self._place)
        self._place += 1
        self.lost += self.spot.take_away(offered)
        decision = self._policy.decide(self._view(offered), self._memory)
        self._memory = decision.memory
        self.spot.grow(min(decision.spot_target, offered), self.now + self._job.cold_start_seconds)
        self.on_demand.grow(decision.on_demand_target, self.now + self._job.cold_start_seconds)
        end = self.now + self._trace.gap_seconds
        while self.now < end - _SAME_TIME and self.steps_left > 0:
            self._give_back(decision, offered)
            self._train(end)

    def _view(self, offered: int) -> SpotView:
        return SpotView(
            now_seconds=self.now,
            deadline_seconds=self._deadline,
            steps_left=math.ceil(self.steps_left),
            rungs=self._rungs,
            spot_workers=len(self.spot.ready_at),
            on_demand_workers=len(self.on_demand.ready_at),
            on_demand_ready=self.on_demand.ready(self.now),
            on_demand_max=self._on_demand_max,
            cold_start_seconds=self._job.cold_start_seconds,
            poll_seconds=self._trace.gap_seconds,
            spot_offered=offered,
        )

    def _give_back(self, decision: SpotDecision, offered: int) -> None:
        """Release unwanted machines as soon as those of the other class have joined."""
        spot = min(decision.spot_target, offered)
        if self.on_demand.ready(self.now) >= decision.on_demand_target:
            self.spot.give_back(spot)
        if self.spot.ready(self.now) >= spot:
            self.on_demand.give_back(decision.on_demand_target)

    def _train(self, end: float) -> None:
        """Train until the next machine is ready, the tick ends, or no steps are left."""
        machines = (*self.spot.ready_at, *self.on_demand.ready_at)
        until = min((end, *(at for at in machines if at > self.now + _SAME_TIME)))
        ready = self.spot.ready(self.now) + self.on_demand.ready(self.now)
        step_seconds = self._step_seconds[min(ready, self._job.ests)]
        span = min(until - self.now, self.steps_left * step_seconds)
        self.steps_left -= span / step_seconds
        if self.steps_left < _SAME_TIME:
            self.steps_left = 0.0
        self.now += span
        for place in (self.spot, self.on_demand):
            place.hours += len(place.ready_at) * span / HOUR_SECONDS


@dataclass(frozen=True)
class SpotRow:
    """Results of all starts on some traces, with one deadline and one policy."""

    policy: str
    deadline: float
    outcomes: tuple[SpotOutcome, ...]

    @property
    def cost(self) -> float:
        """Mean over the starts."""
        return sum(outcome.cost for outcome in self.outcomes) / len(self.outcomes)

    @property
    def late(self) -> int:
        """Starts whose job was late."""
        return sum(outcome.late for outcome in self.outcomes)

    @property
    def latest_seconds(self) -> float:
        """The least favourable end, after its deadline; negative: before it."""
        return max(outcome.late_seconds for outcome in self.outcomes)

    def to_plain(self) -> dict[str, Any]:
        """Return the figures as plain values; on_demand_share: of the machine hours."""
        on_demand = sum(outcome.on_demand_hours for outcome in self.outcomes)
        hours = on_demand + sum(outcome.spot_hours for outcome in self.outcomes)
        costs = [outcome.cost for outcome in self.outcomes]
        return {
            "policy": self.policy,
            "deadline": self.deadline,
            "starts": len(costs),
            "late": self.late,
            "latest_seconds": self.latest_seconds if math.isfinite(self.latest_seconds) else None,
            "cost": self.cost,
            "cost_least": min(costs),
            "cost_most": max(costs),
            "on_demand_share": on_demand / hours if hours else 0.0,
            "lost": sum(outcome.lost for outcome in self.outcomes),
        }


def replay_all(
    traces: Sequence[Availability],
    job: SpotJob,
    deadline: float,
    policy: SpotPolicy,
    every_hours: float = 12.0,
) -> SpotRow:
    """Play a job at a start each `every_hours` of each trace, as long as its deadline lies within the trace.

    deadline: times the hours of work. Raises InvalidSettings, also where no start fits.
    """
    check_amount("the deadline, times the work,", deadline, positive=True)
    check_amount("the hours between two starts", every_hours, positive=True)
    seconds = deadline * job.work_hours * HOUR_SECONDS
    outcomes = []
    for trace in traces:
        stride = max(1, round(every_hours * HOUR_SECONDS / trace.gap_seconds))
        ticks = math.ceil(seconds / trace.gap_seconds - _SAME_TIME)
        outcomes += [
            replay(trace, start, job, seconds, policy)
            for start in range(0, len(trace.nodes) - ticks + 1, stride)
        ]
    if not outcomes:
        raise InvalidSettings(
            f"no trace is as long as a deadline of {deadline:g} times {job.work_hours:g} h",
            hint="Give a longer trace, less work, or a shorter deadline.",
        )
    return SpotRow(policy.name, deadline, tuple(outcomes))
