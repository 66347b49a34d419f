"""Summary of committed steps for a report, computed in bounded memory. Pure."""

from __future__ import annotations

import bisect
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from elastane_common.logged import LoggedStep

BUCKETS_MAX = 240
DURATIONS_MAX = 4096


@dataclass(slots=True)
class Pause:
    """The times of the commits before and after `at`, seconds since the Unix epoch; None if there is none."""

    at: float
    before: float | None = None
    after: float | None = None

    @property
    def seconds(self) -> float | None:
        """Time between the two commits; None unless both exist."""
        return self.after - self.before if self.before is not None and self.after is not None else None


@dataclass(slots=True)
class StepFold:
    """Accumulates steps in the order of their commits.

    moments: times for which `pause_at` is needed. next_step: the next step to commit. commits: number of
    commits; replayed: how many of them a later commit superseded. samples: consumed by all commits, replays
    included. first, last: times of the first and the last commit.

    To bound memory, every `_every`-th duration is kept, and samples are counted in buckets of `_width`
    seconds; both numbers double whenever their limit is reached.
    """

    moments: Sequence[float] = ()
    next_step: int = 0
    commits: int = 0
    replayed: int = 0
    samples: int = 0
    first: float | None = None
    last: float | None = None
    pauses: list[Pause] = field(default_factory=list)
    _passed: int = 0
    _durations: list[float] = field(default_factory=list)
    _every: int = 1
    _seen: int = 0
    _width: float = 1.0
    _buckets: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.moments = sorted(self.moments)
        self.pauses = [Pause(at) for at in self.moments]

    def take(self, step: LoggedStep) -> None:
        """Add the next commit."""
        if step.step < self.next_step:
            self.replayed += self.next_step - step.step
        self.next_step = step.step + 1
        self.commits += 1
        self.samples += step.samples
        self._note_pauses(step.committed)
        if self.first is None:
            self.first = step.committed
        if self.last is not None:
            self._note_duration(step.committed - self.last)
        self.last = step.committed
        self._note_samples(step.committed - self.first, step.samples)

    @property
    def step_seconds(self) -> float | None:
        """Median time between consecutive commits; None with fewer than two."""
        return statistics.median(self._durations) if self._durations else None

    def throughput(self) -> list[tuple[float, float]]:
        """Return (seconds since the first commit, samples per second), evenly spaced, zeros included."""
        if not self._buckets:
            return []
        return [
            ((number + 0.5) * self._width, self._buckets.get(number, 0) / self._width)
            for number in range(max(self._buckets) + 1)
        ]

    def pause_at(self, at: float) -> Pause:
        """Return the pause around one of `moments`."""
        return self.pauses[bisect.bisect_left(self.moments, at)]

    def _note_pauses(self, committed: float) -> None:
        while self._passed < len(self.pauses) and self.pauses[self._passed].at < committed:
            pause = self.pauses[self._passed]
            pause.before, pause.after = self.last, committed
            self._passed += 1

    def _note_duration(self, seconds: float) -> None:
        self._seen += 1
        if self._seen % self._every == 0:
            self._durations.append(seconds)
            if len(self._durations) > DURATIONS_MAX:
                self._durations, self._every = self._durations[1::2], self._every * 2

    def _note_samples(self, since_first: float, samples: int) -> None:
        number = int(max(since_first, 0.0) / self._width)
        while number >= BUCKETS_MAX:
            joined: dict[int, int] = {}
            for old, count in self._buckets.items():
                joined[old // 2] = joined.get(old // 2, 0) + count
            self._buckets, self._width = joined, self._width * 2
            number //= 2
        self._buckets[number] = self._buckets.get(number, 0) + samples
