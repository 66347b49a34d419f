"""Use of their machines by the workers of one job over time, from their heartbeats. In memory only.

Heartbeats carry totals since the process began; a sample has the rates between two of them. Old samples are
dropped: the last 20 minutes are kept, of many workers less.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import Final

SAMPLE_SECONDS: Final = 10.0
"""Minimum time between two samples of a worker."""
SAMPLES_MAX: Final = 120
"""Limit of the samples kept of one worker."""
ALL_SAMPLES_MAX: Final = 50_000
"""Limit of the samples kept of all workers of a job: some megabytes."""
_FEWEST: Final = 2


@dataclass(frozen=True, slots=True)
class Totals:
    """A worker's totals at one time. Fields as in WorkerFigures."""

    time: float
    cpu_seconds: float
    resident_bytes: int
    gpu_use: float
    gpu_bytes: int
    step_seconds: float
    steps: int
    data_wait_seconds: float
    all_reduce_wait_seconds: float


@dataclass(frozen=True, slots=True)
class ResourceSample:
    """What a worker used until `time`, in seconds since the Unix epoch, since the sample before.

    cpu_cores: seconds of processor time per second. gpu_use: 0 to 1; 0: not known. data_wait,
    all_reduce_wait: share of the steps' time.
    """

    time: float
    cpu_cores: float
    resident_bytes: int
    gpu_use: float
    gpu_bytes: int
    steps_per_second: float
    data_wait: float
    all_reduce_wait: float


@dataclass(slots=True)
class _Worker:
    latest: Totals
    samples: deque[ResourceSample] = field(default_factory=deque)


class ResourceSeries:
    """Samples of the workers of one job. Used from one event loop. workers_max: of which some are kept."""

    def __init__(self, workers_max: int) -> None:
        self._workers_max = workers_max
        self._workers: OrderedDict[str, _Worker] = OrderedDict()

    def tell(self, worker: str, totals: Totals) -> None:
        """Take a worker's totals; most are ignored, since a sample covers several heartbeats."""
        known = self._workers.get(worker)
        if known is None:
            self._workers[worker] = _Worker(totals)
            if len(self._workers) > self._workers_max:
                self._workers.popitem(last=False)
            return
        before, seconds = known.latest, totals.time - known.latest.time
        if totals.cpu_seconds < before.cpu_seconds or totals.steps < before.steps:
            known.latest = totals  # another process of that name, or a smaller count after going back
            return
        if seconds < SAMPLE_SECONDS:
            return
        self._workers.move_to_end(worker)
        known.latest = totals
        known.samples.append(_sample(before, totals, seconds))
        kept = max(_FEWEST, min(SAMPLES_MAX, ALL_SAMPLES_MAX // len(self._workers)))
        while len(known.samples) > kept:
            known.samples.popleft()

    def samples(self, worker: str) -> tuple[ResourceSample, ...]:
        """Return the samples of a worker, oldest first."""
        known = self._workers.get(worker)
        return tuple(known.samples) if known is not None else ()


def _sample(before: Totals, now: Totals, seconds: float) -> ResourceSample:
    stepping = now.step_seconds - before.step_seconds

    def share(waited: float) -> float:
        return min(max(waited / stepping, 0.0), 1.0) if stepping > 0 else 0.0

    return ResourceSample(
        time=now.time,
        cpu_cores=(now.cpu_seconds - before.cpu_seconds) / seconds,
        resident_bytes=now.resident_bytes,
        gpu_use=now.gpu_use,
        gpu_bytes=now.gpu_bytes,
        steps_per_second=(now.steps - before.steps) / seconds,
        data_wait=share(now.data_wait_seconds - before.data_wait_seconds),
        all_reduce_wait=share(now.all_reduce_wait_seconds - before.all_reduce_wait_seconds),
    )
