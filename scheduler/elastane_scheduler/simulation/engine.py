"""Simulation of a policy on a trace: events, a virtual clock, all costs charged. Pure: one input, one result.

At each arrival, end, change of the offer and time that the policy asked for, the policy decides about all
jobs that are not over, and the changes take effect at once. With `rounds` it decides at multiples of the
round alone, and devices of a job that has ended stay idle until then, as in simulators that step through
time.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from elastane_scheduler.costs import Costs
from elastane_scheduler.errors import SchedulerError
from elastane_scheduler.execution import change
from elastane_scheduler.jobs import Job, JobState, arrived
from elastane_scheduler.pool import Counts, Pool
from elastane_scheduler.simulation.beliefs import Beliefs
from elastane_scheduler.simulation.offers import Offers, steady
from elastane_scheduler.view import Allocation, Policy, View

_SAME_TIME = 1e-9
Progress = Callable[[int, int], None]
"""Called with the jobs that are over, and all."""


@dataclass(frozen=True)
class Rounds:
    """Decisions only at multiples of `seconds`; a first start has a cost, other changes have none."""

    seconds: float
    start_seconds: float


@dataclass(frozen=True)
class Ended:
    """A job that is over.

    wait_seconds: until it had devices first. changes: of its devices, the first included.
    """

    name: str
    arrival_seconds: float
    finish_seconds: float
    wait_seconds: float
    changes: int

    @property
    def completion_seconds(self) -> float:
        """From arrival to end."""
        return self.finish_seconds - self.arrival_seconds


@dataclass
class Outcome:
    """Result of a trace. device_seconds, offered_seconds: of each device type, until the last end.

    unfinished: jobs that cannot run on what is offered. held: with `record`, (time, job, devices) at each
    change.
    """

    ended: list[Ended] = field(default_factory=list)
    unfinished: list[str] = field(default_factory=list)
    device_seconds: list[float] = field(default_factory=list)
    offered_seconds: list[float] = field(default_factory=list)
    changes: int = 0
    decisions: int = 0
    held: list[tuple[float, str, Counts]] = field(default_factory=list)


class Simulation:
    """One run of a trace. Raises SchedulerError where a policy gives out more than there is."""

    def __init__(
        self,
        jobs: Sequence[Job],
        policy: Policy,
        pool: Pool,
        costs: Costs,
        *,
        offers: Offers | None = None,
        beliefs: Beliefs | None = None,
        rounds: Rounds | None = None,
        record: bool = False,
        progress: Progress | None = None,
    ) -> None:
        # Sorted in reverse, jobs of one time would arrive in reverse order, too.
        self._pending = sorted(jobs, key=lambda job: job.arrival_seconds)[::-1]
        self._policy, self._pool, self._costs = policy, pool, costs
        self._offers = list((offers or steady(pool)).changes)[::-1]
        self._offered = (0,) * len(pool.counts)
        self._beliefs = beliefs or Beliefs()
        self._beliefs.prepare(self._pending[::-1])
        self._believed = self._beliefs.sigma > 0 or any(not job.known for job in jobs)
        self._rounds, self._record, self._progress = rounds, record, progress
        self._jobs: list[JobState] = []
        self._ends: list[tuple[float, int, JobState]] = []
        self._number = len(jobs)
        self._pushed = 0
        self._wake = math.inf
        self._now = 0.0
        self._used = [0] * len(pool.counts)
        self._first: dict[str, float] = {}
        self._changes: dict[str, int] = {}
        self._outcome = Outcome(
            device_seconds=[0.0] * len(pool.counts), offered_seconds=[0.0] * len(pool.counts)
        )

    def run(self) -> Outcome:
        """Run until all jobs are over, or none of the remaining ones can ever run."""
        while self._pending or self._jobs:
            now = self._next()
            if now == math.inf:
                break
            self._pass(now)
            self._end(now)
            self._arrive(now)
            if self._jobs:
                self._decide(now)
        self._outcome.unfinished = [state.name for state in self._jobs]
        return self._outcome

    def _next(self) -> float:
        while self._ends and self._ends[0][2].finish_seconds != self._ends[0][0]:
            heapq.heappop(self._ends)
        coming = min(
            self._pending[-1].arrival_seconds if self._pending else math.inf,
            self._ends[0][0] if self._ends else math.inf,
            self._offers[-1][0] if self._offers else math.inf,
        )
        if self._rounds is None:
            return min(coming, self._wake)
        round_seconds = self._rounds.seconds
        after = (math.floor(self._now / round_seconds) + 1) * round_seconds
        if self._jobs and coming < math.inf:
            return after
        return max(after, math.ceil(coming / round_seconds) * round_seconds) if coming < math.inf else coming

    def _pass(self, now: float) -> None:
        elapsed = now - self._now
        if elapsed > 0:
            for i, used in enumerate(self._used):
                self._outcome.device_seconds[i] += used * elapsed
                self._outcome.offered_seconds[i] += self._offered[i] * elapsed
        self._now = now
        while self._offers and self._offers[-1][0] <= now:
            self._offered = self._offers.pop()[1]

    def _end(self, now: float) -> None:
        over: set[int] = set()
        while self._ends and self._ends[0][0] <= now + _SAME_TIME:
            finish, _, state = heapq.heappop(self._ends)
            # A change that moved no end has left two entries.
            if state.finish_seconds == finish and id(state) not in over:
                over.add(id(state))
                self._finish(state)
        if over:
            self._jobs = [state for state in self._jobs if id(state) not in over]
            if self._progress:
                self._progress(len(self._outcome.ended), self._number)

    def _finish(self, state: JobState) -> None:
        job, name = state.job, state.name
        wait = self._first[name] - job.arrival_seconds
        self._outcome.ended.append(
            Ended(name, job.arrival_seconds, state.finish_seconds, wait, self._changes[name])
        )
        self._use(state.devices, -1)
        if self._record:
            self._outcome.held.append((state.finish_seconds, name, (0,) * len(state.devices)))

    def _arrive(self, now: float) -> None:
        while self._pending and self._pending[-1].arrival_seconds <= now:
            self._jobs.append(arrived(self._pending.pop()))

    def _decide(self, now: float) -> None:
        jobs = [self._beliefs.see(state, now) for state in self._jobs] if self._believed else self._jobs
        decision = self._policy.decide(View(now, jobs, self._pool, self._offered, self._costs))
        self._outcome.decisions += 1
        self._wake = decision.wake_seconds if decision.wake_seconds > now else math.inf
        costs = self.costs_of(decision.allocation, now)
        for state, devices in zip(self._jobs, decision.allocation, strict=True):
            if devices != state.devices:
                self._change(state, devices, now, costs)
        if any(used > offered for used, offered in zip(self._used, self._offered, strict=True)):
            raise SchedulerError(
                f"{self._policy.name} gave out {self._pool.describe(tuple(self._used))} at {now:g} s, of "
                f"{self._pool.describe(self._offered)}",
                hint="This is a bug in the policy.",
            )

    def costs_of(self, allocation: Allocation, now: float) -> Costs:
        """Return the costs of a decision's changes: always the same here.

        A subclass may say otherwise, as where workers that start at once slow each other down. allocation: of
        the jobs that are not over, in their order, before any of its changes.
        """
        return self._costs

    def _change(self, state: JobState, devices: Counts, now: float, costs: Costs) -> None:
        if self._rounds is not None:
            started = state.trained_by(now)
            costs = Costs(0.0 if started else self._rounds.start_seconds, 0.0, 0.0)
        self._use(state.devices, -1)
        self._use(devices, 1)
        change(state, devices, now, costs)
        self._first.setdefault(state.name, now)
        self._changes[state.name] = self._changes.get(state.name, 0) + 1
        self._outcome.changes += 1
        if state.finish_seconds < math.inf:
            self._pushed += 1
            heapq.heappush(self._ends, (state.finish_seconds, self._pushed, state))
        if self._record:
            self._outcome.held.append((now, state.name, devices))

    def _use(self, devices: Counts, sign: int) -> None:
        for i, count in enumerate(devices):
            self._used[i] += sign * count
