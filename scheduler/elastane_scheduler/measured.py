"""What a job's own steps have shown: seconds of an EST on each device type, exchange, costs of changes. Pure.

Workers report how long each of their ESTs took in the step before. Steps that are no measure of the devices
(replays, and the first two after a change of the ring, which fill caches) are left out.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from elastane_scheduler.amounts import check_amount
from elastane_scheduler.costs import Costs
from elastane_scheduler.errors import InvalidSettings

WINDOW = 31
"""Samples that a value is the median of; odd."""
SETTLING_STEPS = 2
"""Steps after a change of the ring that are not counted."""
DOUBTED_FACTOR = 2.0
"""A sample that differs by more than this factor from the value is doubted."""
DOUBTED_MAX = 3
"""So many doubted samples in a row, which agree with each other, are believed."""
_MAD_TO_SIGMA = 1.4826
"""Of a normal distribution: standard deviation over median absolute deviation."""


@dataclass
class RobustValue:
    """A running median that follows a real change within three samples, and ignores stray ones."""

    _samples: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))
    _doubted: list[float] = field(default_factory=list)

    def add(self, sample: float) -> None:
        """Take a sample, above 0. Raises InvalidSettings."""
        check_amount("a measured time", sample, positive=True)
        if self._samples and _differ(sample, self.value):
            if self._doubted and _differ(sample, statistics.median(self._doubted)):
                self._doubted.clear()
            self._doubted.append(sample)
            if len(self._doubted) < DOUBTED_MAX:
                return
            self._samples.clear()
            self._samples.extend(self._doubted)
        else:
            self._samples.append(sample)
        self._doubted.clear()

    @property
    def count(self) -> int:
        """Number of samples that the value rests on."""
        return len(self._samples)

    @property
    def value(self) -> float:
        """The median. Raises InvalidSettings without samples."""
        if not self._samples:
            raise InvalidSettings("nothing was measured yet", hint="Look at `count` first.")
        return statistics.median(self._samples)

    @property
    def spread(self) -> float:
        """Standard deviation, estimated by the median absolute deviation; 0.0 for one sample."""
        middle = self.value
        return _MAD_TO_SIGMA * statistics.median(abs(sample - middle) for sample in self._samples)


@dataclass(frozen=True)
class Exchange:
    """Seconds of a step beyond the slowest device's: `base_seconds + peer_seconds (P - 1)` if P > 1."""

    base_seconds: float = 0.0
    peer_seconds: float = 0.0

    def seconds(self, devices: int) -> float:
        """Return the seconds for a number of devices."""
        return self.base_seconds + self.peer_seconds * (devices - 1) if devices > 1 else 0.0


def fit_exchange(rests: Mapping[int, float]) -> Exchange:
    """Fit the exchange to measured rests of a step, by the number of devices (1 is left out).

    Least squares with both terms 0 or more; with one number of devices measured, all of the rest is the base.
    """
    points = [(devices - 1.0, max(0.0, rest)) for devices, rest in sorted(rests.items()) if devices > 1]
    if not points:
        return Exchange()
    if len(points) == 1:
        return Exchange(points[0][1])
    mean_x = statistics.fmean(x for x, _ in points)
    mean_y = statistics.fmean(y for _, y in points)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / sum((x - mean_x) ** 2 for x, _ in points)
    base = mean_y - slope * mean_x
    if slope < 0:
        return Exchange(mean_y)
    if base < 0:
        return Exchange(0.0, sum(x * y for x, y in points) / sum(x * x for x, _ in points))
    return Exchange(base, slope)


@dataclass(frozen=True)
class StepMeasure:
    """One worker's measure of one step.

    device_type: of the worker. est_seconds: of each EST that it hosted. steps_since_change: steps that its
    ring had applied before this one. is_replay: the step was run again.
    """

    device_type: str
    est_seconds: Sequence[float]
    steps_since_change: int
    is_replay: bool = False

    @property
    def counts(self) -> bool:
        """True if the step says how fast the device is."""
        return not self.is_replay and self.steps_since_change >= SETTLING_STEPS and bool(self.est_seconds)


@dataclass
class Measured:
    """What is known of one job's speed. Everything starts empty: nothing is assumed.

    est: seconds of an EST by device type. rests: seconds of a step beyond its slowest worker's, by the number
    of workers. stalls, starts, restores: of the job's own changes of devices (see `Costs`).
    """

    est: dict[str, RobustValue] = field(default_factory=dict)
    rests: dict[int, RobustValue] = field(default_factory=dict)
    stalls: RobustValue = field(default_factory=RobustValue)
    starts: RobustValue = field(default_factory=RobustValue)
    restores: RobustValue = field(default_factory=RobustValue)

    def add_worker(self, measure: StepMeasure) -> bool:
        """Take a worker's measure of a step; return whether it counts. Raises InvalidSettings."""
        if not measure.counts:
            return False
        mean = statistics.fmean(measure.est_seconds)
        self.est.setdefault(measure.device_type, RobustValue()).add(mean)
        return True

    def add_step(self, step_seconds: float, measures: Sequence[StepMeasure]) -> bool:
        """Take the time of a whole step, of which all workers' measures are known. Raises InvalidSettings."""
        if not measures or not all(measure.counts for measure in measures):
            return False
        slowest = max(math.fsum(measure.est_seconds) for measure in measures)
        rest = step_seconds - slowest
        if rest > 0:
            self.rests.setdefault(len(measures), RobustValue()).add(rest)
        return rest > 0

    def est_seconds(self, device_type: str) -> float | None:
        """Return the seconds of an EST on a device type; None if it was not measured."""
        known = self.est.get(device_type)
        return known.value if known is not None and known.count else None

    def exchange(self) -> Exchange:
        """Return the exchange that fits what was measured."""
        return fit_exchange({workers: rest.value for workers, rest in self.rests.items()})

    def costs(self, assumed: Costs) -> Costs:
        """Return the costs of this job's changes, those that were not measured as `assumed`."""
        return Costs(
            self.starts.value if self.starts.count else assumed.start_seconds,
            self.stalls.value if self.stalls.count else assumed.stall_seconds,
            self.restores.value if self.restores.count else assumed.restore_seconds,
        )


def _differ(one: float, other: float) -> bool:
    return max(one, other) > DOUBTED_FACTOR * min(one, other)
