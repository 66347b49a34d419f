"""Plan of a running job: what other numbers of workers would change, from its workers' measurements. Pure.

A step takes as long as the last worker needs for its ESTs, ceil(N / P) of c + a seconds each where all are
alike, and then the rest: sums, the master's answer, the optimizer. c, for computing, and a, for the script's
code after it, are known for each device type; the rest is known for the present ring, and taken to be the
same for others. What the script does once a step is part of the rest. Of unlike workers the fastest come
first, and further ones are taken to be of the type that most are of.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from elastane_scheduler.amounts import check_amount
from elastane_scheduler.plan import TOLERANCE, Shape, ladder

HOUR_SECONDS = 3600.0


@dataclass(frozen=True)
class WorkerSpeed:
    """Measurements of one worker. Times of 0 with counts of 0: nothing yet.

    ests: hosted now. generation, ring_workers: its ring, and the number of workers in it. est_seconds,
    est_spread_seconds: of one EST's part of a step, over est_steps steps. ring_step_seconds: of a whole step
    in this ring, over ring_steps. ests_max: number of ESTs that fit into memory; 0: not known.
    after_est_seconds: of the script's code after each EST's part.
    """

    device_type: str
    ests: int
    generation: int
    ring_workers: int
    est_seconds: float
    est_spread_seconds: float
    est_steps: int
    ring_step_seconds: float
    ring_steps: int
    ests_max: int = 0
    after_est_seconds: float = 0.0

    @property
    def added_seconds(self) -> float:
        """Seconds that each EST adds to a step."""
        return self.est_seconds + self.after_est_seconds


@dataclass(frozen=True)
class DeviceSpeed:
    """One device type of the job: seconds of an EST's part of a step, and the data behind them.

    ests_max: number of ESTs that fit into a worker's memory; 0: not known. after_est_seconds: of the script's
    code after an EST's part.
    """

    device_type: str
    est_seconds: float
    spread_seconds: float
    workers: int
    steps: int
    ests_max: int = 0
    after_est_seconds: float = 0.0

    @property
    def added_seconds(self) -> float:
        """Seconds that each EST adds to a step."""
        return self.est_seconds + self.after_est_seconds


@dataclass(frozen=True)
class Rung:
    """A worthwhile number of workers.

    ests_most: hosted by the worker with the most. finish_seconds: until the job is over; None: unknown.
    cost: of all workers until then; None: unknown. fits: no worker hosts more ESTs than it has memory for, as
    far as that is known.
    """

    workers: int
    ests_most: int
    step_seconds: float
    finish_seconds: float | None
    cost: float | None
    fits: bool = True


@dataclass(frozen=True)
class JobPlan:
    """See the module.

    device: the type that further workers are taken to be of; None: nothing was measured yet.
    devices: all types. workers: of the present ring. step_seconds: measured in it; None: not yet.
    rest_seconds: part of it that does not depend on the ESTs. rungs: by number of workers.
    """

    ests: int
    workers: int
    device: DeviceSpeed | None
    devices: tuple[DeviceSpeed, ...]
    step_seconds: float | None
    rest_seconds: float
    rungs: tuple[Rung, ...]

    def rung_of(self, workers: int) -> Rung | None:
        """Return the rung that a number of workers reaches: the highest one that does not need more."""
        reached = [rung for rung in self.rungs if rung.workers <= workers]
        return reached[-1] if reached else None


def job_plan(
    ests: int,
    speeds: Sequence[WorkerSpeed],
    *,
    workers_min: int = 1,
    workers_max: int = 0,
    steps_left: int | None = None,
    worker_hour: float | None = None,
) -> JobPlan:
    """Return the plan of a job with `ests` ESTs.

    speeds: of the workers of its present ring. workers_min, workers_max: only these numbers; 0: no limit.
    steps_left: None: unknown. worker_hour: price of a worker for an hour; None: unknown. Raises
    InvalidSettings for a price that is no amount.
    """
    if worker_hour is not None:
        check_amount("the price of a worker", worker_hour)
    devices = _devices(speeds)
    device = max(devices, key=lambda known: (known.workers, -known.added_seconds), default=None)
    newest = max((speed.generation for speed in speeds), default=0)
    in_ring = [speed for speed in speeds if speed.generation == newest]
    whole = [speed.ring_step_seconds for speed in in_ring if speed.ring_steps]
    step_seconds = statistics.median(whole) if whole else None
    turns = max((speed.ests * speed.added_seconds for speed in in_ring), default=0.0)
    rest = max(0.0, step_seconds - turns) if step_seconds is not None else 0.0
    steps = (
        [] if device is None else _steps(ests, devices, device, Counter(one.device_type for one in in_ring))
    )
    rungs = [
        _rung(step, rest, steps_left, worker_hour)
        for step in steps
        if step.workers >= workers_min and (not workers_max or step.workers <= workers_max)
    ]
    workers = max((speed.ring_workers for speed in in_ring), default=0)
    return JobPlan(ests, workers, device, devices, step_seconds, rest, tuple(rungs))


def _devices(speeds: Sequence[WorkerSpeed]) -> tuple[DeviceSpeed, ...]:
    found = []
    for name in sorted({speed.device_type for speed in speeds if speed.est_steps}):
        alike = [speed for speed in speeds if speed.device_type == name and speed.est_steps]
        found.append(
            DeviceSpeed(
                name,
                statistics.median(speed.est_seconds for speed in alike),
                statistics.median(speed.est_spread_seconds for speed in alike),
                len(alike),
                sum(speed.est_steps for speed in alike),
                min((speed.ests_max for speed in alike if speed.ests_max), default=0),
                statistics.median(speed.after_est_seconds for speed in alike),
            )
        )
    return tuple(found)


@dataclass(frozen=True)
class _Step:
    """Time that `workers` workers need for their ESTs; see Rung."""

    workers: int
    ests_most: int
    seconds: float
    fits: bool = True


def _steps(
    ests: int, devices: Sequence[DeviceSpeed], further: DeviceSpeed, present: Mapping[str, int]
) -> list[_Step]:
    """Return the worthwhile numbers of workers. present: workers of the ring by device type."""
    if len(devices) == 1:
        (only,) = devices
        most = {workers: -(-ests // workers) for workers in ladder(ests)}
        return [
            _Step(workers, count, count * only.added_seconds, not only.ests_max or count <= only.ests_max)
            for workers, count in most.items()
        ]
    limits = tuple(known.ests_max or ests for known in devices)
    shape = Shape(ests, tuple(known.added_seconds for known in devices), limits)
    fastest = sorted(range(len(devices)), key=lambda place: devices[place].added_seconds)
    order = [place for place in fastest for _ in range(present.get(devices[place].device_type, 0))]
    order += [devices.index(further)] * (ests - len(order))
    counts = [0] * len(devices)
    found: list[_Step] = []
    for workers, place in enumerate(order[:ests], 1):
        counts[place] += 1
        level = shape.level(tuple(counts))
        if level is None:
            continue  # they have memory for fewer ESTs
        seconds, capacities = shape.levels[level]
        if not found or seconds < found[-1].seconds * (1 - TOLERANCE):
            most_on_one = max(n for n, count in zip(capacities, counts, strict=True) if count)
            found.append(_Step(workers, most_on_one, seconds))
    return found


def _rung(plan: _Step, rest_seconds: float, steps_left: int | None, worker_hour: float | None) -> Rung:
    step = plan.seconds + rest_seconds
    finish = None if steps_left is None else steps_left * step
    cost = None
    if finish is not None and worker_hour is not None:
        cost = plan.workers * worker_hour * finish / HOUR_SECONDS
    return Rung(plan.workers, plan.ests_most, step, finish, cost, plan.fits)
