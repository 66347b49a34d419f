"""A running median that ignores outliers but quickly follows a real change. Pure."""

from __future__ import annotations

import statistics
from bisect import bisect_left, insort
from collections import deque
from typing import Final

WINDOW: Final = 31
"""Number of samples in the median; odd."""
DOUBTED_FACTOR: Final = 2.0
"""A sample that differs from the median by more than this factor is doubted."""
DOUBTED_MAX: Final = 3
"""Number of consecutive doubted samples that replace all others if they agree with one another."""
_MAD_TO_SIGMA: Final = 1.4826
"""Ratio of standard deviation to median absolute deviation in a normal distribution."""


class RunningMedian:
    """Median of the last samples. The first doubted ones change nothing; the third in a row replaces all."""

    def __init__(self) -> None:
        self._samples: deque[float] = deque()
        #: The same in ascending order: each step adds to three medians, and sorting would cost the most.
        self._ascending: list[float] = []
        self._doubted: list[float] = []

    def add(self, sample: float) -> None:
        """Add a sample. Zero and negative ones are ignored; a clock that runs backwards may produce them."""
        if not sample > 0:
            return
        if self._samples and _differ(sample, self.value):
            if self._doubted and _differ(sample, statistics.median(self._doubted)):
                self._doubted.clear()
            self._doubted.append(sample)
            if len(self._doubted) < DOUBTED_MAX:
                return
            self._samples = deque(self._doubted)
            self._ascending = sorted(self._doubted)
        else:
            self._samples.append(sample)
            insort(self._ascending, sample)
            if len(self._samples) > WINDOW:
                del self._ascending[bisect_left(self._ascending, self._samples.popleft())]
        self._doubted.clear()

    @property
    def count(self) -> int:
        """Number of samples in the median."""
        return len(self._samples)

    @property
    def value(self) -> float:
        """The median; 0.0 without samples."""
        count = len(self._ascending)
        if not count:
            return 0.0
        middle = self._ascending[count // 2]
        return middle if count % 2 else (self._ascending[count // 2 - 1] + middle) / 2

    @property
    def spread(self) -> float:
        """Standard deviation, estimated by the median absolute deviation; 0.0 for fewer than two samples."""
        if not self._samples:
            return 0.0
        middle = self.value
        return _MAD_TO_SIGMA * statistics.median(abs(sample - middle) for sample in self._samples)


def _differ(one: float, other: float) -> bool:
    return max(one, other) > DOUBTED_FACTOR * min(one, other)
