"""Plan of a running job: what other numbers of workers would change, by what its workers measured. Pure.

A step takes as long as the worker with the most work, ceil(N / P) ESTs of c seconds each, and then the rest:
sums, the master's answer, the optimizer. c is known for each device type; the rest is known for the present
ring, and taken to be the same for others.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from elastane_scheduler.amounts import check_amount
from elastane_scheduler.plan import ladder

HOUR_SECONDS = 3600.0


@dataclass(frozen=True)
class WorkerSpeed:
    """What one worker has measured. Times of 0 with counts of 0: nothing yet.

    ests: hosted now. generation, ring_workers: its ring, and the number of workers in it. est_seconds,
    est_spread_seconds: of one EST's part of a step, over est_steps steps. ring_step_seconds: of a whole step
    in this ring, over ring_steps. ests_max: for which there is memory; 0: not known.
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


@dataclass(frozen=True)
class DeviceSpeed:
    """One device type of the job: seconds of an EST's part of a step, and what they rest on.

    ests_max: for which each of its workers has memory; 0: not known.
    """

    device_type: str
    est_seconds: float
    spread_seconds: float
    workers: int
    steps: int
    ests_max: int = 0


@dataclass(frozen=True)
class Rung:
    """A number of workers that pays.

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

    device: the slowest type of the job, on which the rungs are computed; None: nothing was measured yet.
    devices: all types. workers: of the present ring. step_seconds: measured in it; None: not yet.
    rest_seconds: part of it in which no EST is computed. rungs: by number of workers.
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
    device = max(devices, key=lambda known: known.est_seconds, default=None)
    newest = max((speed.generation for speed in speeds), default=0)
    in_ring = [speed for speed in speeds if speed.generation == newest]
    whole = [speed.ring_step_seconds for speed in in_ring if speed.ring_steps]
    step_seconds = statistics.median(whole) if whole else None
    computing = max((speed.ests * speed.est_seconds for speed in in_ring), default=0.0)
    rest = max(0.0, step_seconds - computing) if step_seconds is not None else 0.0
    counts = [
        count for count in ladder(ests) if count >= workers_min and (not workers_max or count <= workers_max)
    ]
    rungs = [] if device is None else [_rung(ests, n, device, rest, steps_left, worker_hour) for n in counts]
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
            )
        )
    return tuple(found)


def _rung(
    ests: int,
    workers: int,
    device: DeviceSpeed,
    rest_seconds: float,
    steps_left: int | None,
    worker_hour: float | None,
) -> Rung:
    most = -(-ests // workers)
    step = most * device.est_seconds + rest_seconds
    finish = None if steps_left is None else steps_left * step
    cost = None
    if finish is not None and worker_hour is not None:
        cost = workers * worker_hour * finish / HOUR_SECONDS
    return Rung(workers, most, step, finish, cost, fits=not device.ests_max or most <= device.ests_max)
