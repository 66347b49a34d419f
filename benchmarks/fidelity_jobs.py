"""The jobs of `make fidelity`, their simulation, and its comparison with the measurements. Pure."""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Final

from elastane_scheduler.costs import Costs
from elastane_scheduler.jobs import Job, JobState
from elastane_scheduler.plan import Shape
from elastane_scheduler.policies.catalogue import make_policy
from elastane_scheduler.pool import Counts, Pool
from elastane_scheduler.simulation.beliefs import GUESS_SECONDS_MIN
from elastane_scheduler.simulation.engine import Simulation
from elastane_scheduler.view import Allocation, Decision, Policy, View

DEVIATION_MAX: Final = 0.10
"""Fraction by which a measured average may differ from the simulated one."""
EST_SECONDS: Final = 0.25
"""Seconds that each EST of a job sleeps in a step."""
DECIDE_SECONDS: Final = 1.0
"""Seconds between two decisions of the service, under policies that may change running jobs at any time."""
GAP_SECONDS: Final = 3.0
"""Mean seconds between two arrivals."""


@dataclass(frozen=True, order=True)
class Training:
    """Everything that decides the weights of a job: jobs of one training have the same bits."""

    ests: int
    steps: int


TRAININGS: Final = (
    Training(1, 24), Training(1, 72), Training(2, 24), Training(2, 56), Training(4, 24), Training(4, 40),
)  # fmt: skip


@dataclass(frozen=True)
class SmallJob:
    """A job of the trace. arrival_seconds: after the first."""

    name: str
    training: Training
    arrival_seconds: float


@dataclass(frozen=True)
class Measured:
    """Measurements of a probe, in seconds.

    first_start: from the first submission until a worker joins; includes unpacking code and reading files
    from disk. It is shown but not simulated, because later services find the files that the probe has left.
    starts: the same for later workers, by how many start at once; these share the processors while they load
    libraries. stall: of a ring while a worker joins. restore: beyond a start, for a job that had lost all its
    workers. est: of an EST's part of a step. exchange: added to a step on several workers. end: from the last
    step to the run's end.
    """

    first_start: float
    starts: Mapping[int, float]
    stall: float
    restore: float
    est: float
    exchange: float
    end: float

    def start(self, at_once: int) -> float:
        """Return the start time when `at_once` workers start together, interpolated between measurements."""
        known = sorted(self.starts)
        above = next((count for count in known if count >= at_once), known[-1])
        below = max((count for count in known if count <= at_once), default=known[0])
        if above <= below:
            return self.starts[above]
        part = (at_once - below) / (above - below)
        return self.starts[below] + part * (self.starts[above] - self.starts[below])

    def costs(self, at_once: int = 1) -> Costs:
        """Return the costs of changes when `at_once` workers start together."""
        return Costs(self.start(at_once), self.stall, self.restore)


@dataclass(frozen=True)
class Simulated:
    """Result of a simulation: completion times by job, changes after the first start, and first starts."""

    times: Mapping[str, float]
    changes: int
    starts: Sequence[float] = ()


@dataclass(frozen=True)
class Played:
    """Results of one policy: measured and simulated completion times by job, and the weights of each job.

    starts: measured seconds from the grant to the join of each job's first worker. simulation: the simulated
    starts and changes.
    """

    policy: str
    measured: Mapping[str, float]
    simulation: Simulated
    weights: Mapping[str, str] = field(default_factory=dict)
    starts: Sequence[float] = ()

    @property
    def simulated(self) -> Mapping[str, float]:
        """The simulated completion times."""
        return self.simulation.times

    @property
    def changes(self) -> int:
        """Simulated changes of the number of workers, after the first start."""
        return self.simulation.changes

    @property
    def measured_average(self) -> float:
        """The measured average completion time."""
        return statistics.mean(self.measured.values())

    @property
    def simulated_average(self) -> float:
        """The simulated average completion time."""
        return statistics.mean(self.simulated.values())

    @property
    def ratio(self) -> float:
        """The measured average over the simulated one."""
        return self.measured_average / self.simulated_average


class AsInService:
    """Wraps a policy to decide and to be carried out as in the service.

    It decides once per second. It does not know a job's length before the job trains, and assumes a minute;
    nor does it know the cost of changes here. A running job keeps at least one worker.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self.name = policy.name

    def decide(self, view: View) -> Decision:
        """Limit the policy's decision to the slots not needed for the workers that running jobs keep."""
        seen = [_believed(state, view.now) for state in view.jobs]
        decision = self._policy.decide(replace(view, jobs=seen, costs=Costs()))
        floors = [1 if state.running else 0 for state in view.jobs]
        left = view.offered[0] - sum(floors)
        allocation: Allocation = []
        for (wanted, *_), floor in zip(decision.allocation, floors, strict=True):
            has = max(floor, min(wanted, left + floor))
            left -= has - floor
            allocation.append((has,))
        return replace(decision, allocation=allocation, wake_seconds=view.now + DECIDE_SECONDS)


def _believed(state: JobState, now: float) -> JobState:
    """Return a job's state as the service knows it."""
    if state.trained_by(now):
        return state
    believed = state.believed(GUESS_SECONDS_MIN / state.shape.levels[0][0])
    believed.job = replace(state.job, known=False)
    return believed


class OneHost(Simulation):
    """A simulator in which workers that start at the same time slow each other down.

    The cost of a start depends on the starts in progress when it begins. Later starts would make it longer,
    and ends of others shorter; over many starts both cancel out. first_starts: simulated cost of each job's
    first start.
    """

    def __init__(self, jobs: Sequence[Job], policy: Policy, pool: Pool, measured: Measured) -> None:
        super().__init__(jobs, policy, pool, measured.costs())
        self._measured = measured
        self.first_starts: dict[str, float] = {}

    def costs_of(self, allocation: Allocation, now: float) -> Costs:
        """Return the costs, given all workers that start now or are still starting."""
        starting = sum(_starting(state, devices, now) for state, devices in self._each(allocation))
        costs = self._measured.costs(max(1, starting))
        for state, devices in self._each(allocation):
            if any(devices):
                self.first_starts.setdefault(state.name, costs.start_seconds)
        return costs

    def _each(self, allocation: Allocation) -> Iterator[tuple[JobState, Counts]]:
        return zip(self._jobs, allocation, strict=True)


def _starting(state: JobState, devices: Counts, now: float) -> int:
    """Count the workers of a job that start, or are still starting, once it has these devices."""
    training = next((there for start, there in reversed(state.stages) if start <= now), (0,) * len(devices))
    return sum(max(0, wanted - has) for wanted, has in zip(devices, training, strict=True))


def small_jobs(count: int, seed: int) -> list[SmallJob]:
    """Return `count` jobs, determined by the seed."""
    rng = random.Random(seed)
    found, now = [], 0.0
    for number in range(count):
        found.append(SmallJob(f"job-{number}", rng.choice(TRAININGS), round(now, 2)))
        now += rng.expovariate(1 / GAP_SECONDS)
    return found


def simulate(jobs: Sequence[SmallJob], policy: str, measured: Measured, slots: int) -> Simulated:
    """Simulate the jobs under a policy."""
    shapes: dict[int, Shape] = {}
    pool = Pool(("slot",), (slots,))
    played = []
    for job in jobs:
        ests = job.training.ests
        shape = shapes.setdefault(
            ests, Shape(ests, (measured.est,), exchange_seconds=measured.exchange if ests > 1 else 0.0)
        )
        request = (min(ests, slots),)
        steps = job.training.steps + measured.end / shape.step_seconds(request)
        played.append(Job(job.name, shape, steps, job.arrival_seconds, request))
    simulation = OneHost(played, AsInService(make_policy(policy)), pool, measured)
    outcome = simulation.run()
    times = {ended.name: ended.completion_seconds for ended in outcome.ended}
    return Simulated(times, outcome.changes - len(times), list(simulation.first_starts.values()))


def faults(
    played: Sequence[Played], references: Mapping[Training, str], jobs: Sequence[SmallJob]
) -> list[str]:
    """Return violations of the three conditions that `make fidelity` checks; empty if all hold.

    references: weights of each training's undisturbed run.
    """
    found = [
        f"{one.policy}: measured {one.measured_average:.1f} s, simulated {one.simulated_average:.1f} s: "
        f"{abs(one.ratio - 1):.0%} apart, and {DEVIATION_MAX:.0%} are allowed"
        for one in played
        if abs(one.ratio - 1) > DEVIATION_MAX
    ]
    real = [one.policy for one in sorted(played, key=lambda one: one.measured_average)]
    believed = [one.policy for one in sorted(played, key=lambda one: one.simulated_average)]
    if real != believed:
        found.append(f"measured, the order is {', '.join(real)}; simulated, {', '.join(believed)}")
    for one in played:
        for job in jobs:
            weights, wanted = one.weights.get(job.name, ""), references.get(job.training, "")
            if not weights or weights != wanted:
                found.append(
                    f"{one.policy}: {job.name} has the weights {weights[:16] or '(none)'}, its undisturbed "
                    f"run {wanted[:16] or '(none)'}"
                )
    return found


def as_plain(
    jobs: Sequence[SmallJob], measured: Measured, played: Sequence[Played], found: Sequence[str]
) -> dict[str, object]:
    """Return all figures for JSON."""
    return {
        "holds": not found,
        "faults": list(found),
        "measured": asdict(measured),
        "policies": [
            {
                "policy": one.policy,
                "measured_average": round(one.measured_average, 3),
                "simulated_average": round(one.simulated_average, 3),
                "ratio": round(one.ratio, 4),
                "changes": one.changes,
                "first_starts_measured": [round(seconds, 3) for seconds in one.starts],
                "first_starts_simulated": [round(seconds, 3) for seconds in one.simulation.starts],
                "jobs": [
                    {
                        "name": job.name,
                        "ests": job.training.ests,
                        "steps": job.training.steps,
                        "arrival_seconds": job.arrival_seconds,
                        "measured": round(one.measured[job.name], 3),
                        "simulated": round(one.simulated[job.name], 3),
                        "weights_sha256": one.weights.get(job.name, ""),
                    }
                    for job in jobs
                ],
            }
            for one in played
        ],
    }
